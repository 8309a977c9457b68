"""The fuzzed Python parsers: functions of bytes, by name.

Each passes the bytes to a parser, which may refuse them with a ValueError only. Accepted input is
used a little, written and read again.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from tfswap import options, saved_model
from tfswap.io.untrusted_json import parse_json
from tfswap.jobs import job_trace
from tfswap.jobs.job_trace import JobTrace
from tfswap.jobs.lease import read_record
from tfswap.jobs.messages import FROM_BROKERS, FROM_JOBS, parse
from tfswap.machine.codec_speed import read_cache, speed_from_json
from tfswap.machine.presets import load_machines
from tfswap.plan.cache import PlanMemory
from tfswap.plan.renaming import renamed
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.plan.slots import slots_to_text
from tfswap.planning.plan_function import plan_function
from tfswap.step.timeline import peak_load
from tfswap.step.trace import StepTrace
from tfswap.traces import array_file, timeline_file
from tfswap.traces.events import find_step, timeline_of
from tfswap.traces.singa import read_singa
from tfswap.traces.timeline_file import load_profile, load_timeline

GRAPH = "0123456789abcdef"
"""Of remembered plans."""

_folder = Path(tempfile.mkdtemp(prefix="tfswap-fuzz-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def _file(data: bytes, name: str = "input") -> Path:
    path = _folder / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(data)
    return path


def plan(data: bytes) -> None:
    """Read the text of a plan."""
    made = SwapPlan.from_json(data.decode("utf-8", "surrogateescape"))
    assert SwapPlan.from_json(made.to_json()) == made
    for function in made.functions:
        slots_to_text(function.layouts).encode()
        nodes = [swap.tensor.rpartition(":")[0] for swap in function.swaps]
        renamed(function, GRAPH, [f"PartitionedCall/{node}" for node in nodes])


def remembered_plan(data: bytes) -> None:
    """Read a plan in the folder of remembered plans, beside a valid profile."""
    folder = _folder / "plans"
    memory = PlanMemory(folder, "context")
    link = job_trace.Machine("link", 2e9, 3e9)
    if not folder.exists():
        memory.keep(_good_profile(), FunctionPlan(GRAPH), 1 << 20, link)
    (folder / f"{GRAPH}-context-{1 << 20}-{GRAPH}.plan").write_bytes(data)
    assert set(memory.plans(1 << 20, link)) <= {GRAPH}
    assert memory.profile(GRAPH) is not None


def _good_profile():  # type: ignore[no-untyped-def]
    path = Path(__file__).parent / "corpus" / "profile" / "good"
    return load_profile(path)


def profile(data: bytes) -> None:
    """Read a profile without checking its checksums."""
    path = _file(data)
    update = zipfile.ZipExtFile._update_crc  # type: ignore[attr-defined]
    zipfile.ZipExtFile._update_crc = lambda self, new: None  # type: ignore[attr-defined]
    try:
        load_profile(path)
        timeline = load_timeline(path)
    finally:
        zipfile.ZipExtFile._update_crc = update  # type: ignore[attr-defined]
    assert peak_load(timeline) >= 0


def step(data: bytes) -> None:
    """Read a profile as JSON, array by array, and plan accepted ones."""
    arrays = parse_json(data, "a profile")
    if not isinstance(arrays, dict):
        raise ValueError("no arrays")
    types = {**timeline_file._ARRAYS, **timeline_file._OPTIONAL}
    made = {}
    for name, value in arrays.items():
        if name not in types:
            continue
        if types[name] is np.uint8:
            value = list(f"{value}".encode("utf-8", "replace"))
        try:
            made[name] = np.array(value, dtype=types[name])
        except (OverflowError, TypeError) as error:
            raise ValueError(f"no array: {error}") from error
    path = _folder / "step"
    array_file.write_arrays(made, path)
    profile = load_profile(path)
    machine = job_trace.Machine("link", 2e9, 3e9)
    budget_bytes = 3 * peak_load(profile.timeline) // 4 + 1
    for policy in ("auto", "greedy", "capuchin", "autoswap:aoa", "vdnn_all", "tensile"):
        with suppress(ValueError):  # no plan fits
            plan_function(profile, policy, machine, budget_bytes, 0)


def trace_of_job(data: bytes) -> None:
    """Read a step as a job sends it, uncompressed and compressed."""
    for message in (data, job_trace.MAGIC + zlib.compress(data, 1)):
        try:
            made = JobTrace.from_bytes(message)
        except job_trace.BadTrace:
            continue
        assert JobTrace.from_bytes(made.to_bytes()).link == made.link
        assert peak_load(made.timeline) >= 0


def message(data: bytes) -> None:
    """Read a message of a job or a broker."""
    for allowed in (FROM_JOBS, FROM_BROKERS):
        try:
            parse(data, allowed)
        except ValueError:
            continue


def lease(data: bytes) -> None:
    """Read a lease."""
    record = read_record(_file(data))
    assert record is None or record.held_bytes >= 0


def events(data: bytes) -> None:
    """Read a list of memory events of Apache SINGA."""
    assert peak_load(timeline_of(find_step(read_singa(_file(data)), 4), 1)) >= 0


def recording(data: bytes) -> None:
    """Read a recording of the profiler."""
    StepTrace.from_bytes(data)


def asset(data: bytes) -> None:
    """Read the asset of a saved model."""
    _file(data, str(saved_model.ASSET))
    found = saved_model.options_of(_folder)
    assert found is not None and found.spill_dir is None and found.save_plan is None


def machines(data: bytes) -> None:
    """Read a user's file of machines."""
    load_machines(_file(data))


def codec_times(data: bytes) -> None:
    """Read a cache file of codec speeds."""
    found = read_cache(_file(data, "codecs/zvc.json"))
    for each in found if isinstance(found, list) else []:
        speed = speed_from_json(each)
        assert speed is None or speed.encode.ns(1 << 20, 0.5) >= 0


def environment(data: bytes) -> None:
    """Read options from environment variables, one per line."""
    given = {}
    for line in data.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and "\0" not in line:
            given[f"TFSWAP_{name}"] = value
    if "TFSWAP_PLAN" in given:  # a path that the user names
        del given["TFSWAP_PLAN"]
    options.from_environment(given)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "asset": asset,
    "codec_times": codec_times,
    "environment": environment,
    "events": events,
    "lease": lease,
    "machines": machines,
    "message": message,
    "plan": plan,
    "profile": profile,
    "recording": recording,
    "remembered_plan": remembered_plan,
    "step": step,
    "trace_of_job": trace_of_job,
}
"""By the name of the folder of their corpus."""

JSON = ("asset", "codec_times", "lease", "machines", "message", "plan", "remembered_plan", "step")
"""Those whose input is JSON."""


def run(name: str, data: bytes) -> bool:
    """Return whether a target accepts an input; refusals are ValueErrors."""
    try:
        TARGETS[name](data)
    except ValueError:
        return False
    return True
