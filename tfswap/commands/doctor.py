"""Show the state of libraries, devices and limits, and how to fix problems."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from tfswap.activation import activate
from tfswap.commands.trial import Trial, try_training
from tfswap.io.amounts import readable_bytes
from tfswap.machine import budget as budgets
from tfswap.machine import codecs, host_memory
from tfswap.machine.codec_speed import codec_speeds
from tfswap.machine.devices import NOT_OURS, visible_gpus
from tfswap.machine.far_tier import CodecSpeed, FarTier
from tfswap.machine.file_link import measure_file_tier
from tfswap.machine.gpu_link import measure_gpu_link
from tfswap.machine.machine import Machine, cores
from tfswap.ops import library
from tfswap.ops.loaded_library import LibraryError
from tfswap.state import memory_stats, status

# With less available memory than this, a large allocation may kill the process.
_SCARCE_BYTES = 256 << 20


@dataclass(frozen=True)
class GpuFacts:
    """What is known about a GPU.

    Attributes:
        name: "GPU:0", ...
        is_ours: Whether it is tfswap's device, with a budget and swaps.
        memory_bytes: Maximum memory of TensorFlow's allocator on it; None if unknown.
        link: The link to pinned host memory; None if it was not measured.
    """

    name: str
    is_ours: bool
    memory_bytes: int | None
    link: Machine | None


@dataclass(frozen=True)
class Diagnosis:
    """All findings; sizes in bytes, speeds in bytes per second.

    Attributes:
        status: `tfswap.status()`.
        built_for: The TensorFlow release that libtfswap was compiled against; None if unknown.
        compiler: The compiler; None if unknown.
        memory: `tfswap.memory_stats()`; None without the library.
        host: Total and available memory of the machine.
        cgroup: Limit of this process's cgroup and memory available under it.
        link: Copy speeds of the machine.
        gpus: The visible GPUs.
        cores: Number of cores that this process may use.
        codecs: Out and in speed of each usable codec in one thread, for a tensor that it halves.
        missing_codecs: Reason why each other codec is not usable, by name.
        file: The file tier in the given folder, or the reason why there is none; None without a
            folder.
        auto_budget_bytes: What budget="auto" would be now.
        auto_host_limit_bytes: What host_limit="auto" would be beside that budget.
        trial: A small training under a budget; None if it was skipped or is impossible.
        problems: Problems, each with its remedy.
    """

    status: dict[str, Any]
    built_for: str | None
    compiler: str | None
    memory: dict[str, Any] | None
    host: host_memory.HostMemory
    cgroup: host_memory.CgroupMemory
    link: Machine
    gpus: tuple[GpuFacts, ...]
    cores: int
    codecs: dict[str, tuple[float, float]]
    missing_codecs: dict[str, str]
    file: FarTier | str | None
    auto_budget_bytes: int
    auto_host_limit_bytes: int
    trial: Trial | None
    problems: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--spill-dir", help="also measure a file tier in this folder")
    parser.add_argument(
        "--no-trial", action="store_true", help="skip the small training under a budget"
    )


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis; return 1 if there is a problem, else 0."""
    try:
        activate()
    except ValueError as error:  # an option in the environment
        print(f"tfswap doctor: {error}", file=sys.stderr)
        return 1
    diagnosis = diagnose(options.spill_dir, trial=not options.no_trial)
    if options.json:
        print(json.dumps(asdict(diagnosis), indent=2, default=str))
    else:
        print("\n".join(lines(diagnosis)))
    return 1 if diagnosis.problems else 0


def diagnose(spill_dir: str | None = None, trial: bool = True) -> Diagnosis:
    """Examine this process, its libraries, its limits and the folder; try a training."""
    state = status()
    build = _build_info()
    memory = memory_stats() if state["loaded"] else None
    host, cgroup = host_memory.host_memory(), host_memory.cgroup_memory()
    gpus = tuple(_gpus()) if state["loaded"] else ()
    in_use_bytes = memory["bytes_in_use"] if memory else 0
    auto_budget_bytes = budgets.resolve("auto", in_use_bytes=in_use_bytes)
    tried = try_training() if trial and state["device_is_ours"] else None
    found = [*problems(state, host, cgroup, gpus), *environment_problems(os.environ)]
    if tried is not None and tried.problem:
        found.append(tried.problem)
    return Diagnosis(
        status=state,
        built_for=getattr(build, "TENSORFLOW_VERSION", None),
        compiler=getattr(build, "COMPILER", None),
        memory=memory,
        host=host,
        cgroup=cgroup,
        link=Machine.measure(),
        gpus=gpus,
        cores=cores(),
        codecs={speed.name: _gb_s(speed) for speed in codec_speeds() if speed.threads == 1},
        missing_codecs={name: why for name in codecs.NAMES if (why := codecs.why_not(name))},
        file=None if spill_dir is None else _file(spill_dir),
        auto_budget_bytes=auto_budget_bytes,
        auto_host_limit_bytes=budgets.resolve_host_limit(
            "auto", auto_budget_bytes, in_use_bytes=in_use_bytes
        ),
        trial=tried,
        problems=tuple(found),
    )


# Codecs are compared on a tensor of this size that they halve.
_CODED_BYTES = 32 << 20


def _gb_s(speed: CodecSpeed) -> tuple[float, float]:
    times_ns = (each.ns(_CODED_BYTES, 0.5) for each in (speed.encode, speed.decode))
    out, back = (_CODED_BYTES * 1e9 / ns for ns in times_ns)
    return out, back


def _file(folder: str) -> FarTier | str:
    try:
        return measure_file_tier(folder, None)
    except OSError as error:
        return str(error)


def _gpus() -> Iterator[GpuFacts]:
    lib = library.load()
    for gpu in visible_gpus(lib):
        if not gpu.is_ours:
            yield GpuFacts(gpu.name, False, None, None)
            continue
        try:
            link = measure_gpu_link(lib, gpu.number)
        except LibraryError:  # the GPU's memory is full
            link = None
        memory_bytes = lib.memory_stats(gpu.number)["memory_bytes"] or None
        yield GpuFacts(gpu.name, True, memory_bytes, link)


def problems(
    state: dict[str, Any],
    host: host_memory.HostMemory,
    cgroup: host_memory.CgroupMemory,
    gpus: Sequence[GpuFacts] = (),
) -> list[str]:
    """Return the problems of the process and the machine, each with its remedy."""
    found = []
    if not state["loaded"]:
        found.append(state["problem"] or "The library is not loaded: import tfswap first.")
    elif not state["device_is_ours"]:
        found.append(
            "libtfswap is loaded, but TensorFlow's CPU device is not tfswap's: another library has "
            "replaced the device factory. Import tfswap before that library, or without it."
        )
    if not all(gpu.is_ours for gpu in gpus):
        found.append(NOT_OURS)
    if any(not training["in_force"] for training in state["trainings"]):
        found.append(
            "The plan of a running training is not active. Do not change "
            "tf.config.optimizer's options while it runs."
        )
    for function in state["functions"]:
        if function["outcome"] == "refused":
            found.append(
                f"The plan was not applied to graph {function['fingerprint']}: "
                f"{function['reason']}. Train without plan= to make a new one."
            )
    available_bytes = host.available_bytes
    if cgroup.available_bytes is not None:
        available_bytes = min(available_bytes, cgroup.available_bytes)
    if available_bytes < _SCARCE_BYTES:
        found.append(
            f"Only {readable_bytes(available_bytes)} of memory are available. End other processes, "
            "or raise the limit of this cgroup (docker run --memory, MemoryMax= of systemd)."
        )
    return found


def environment_problems(environment: Mapping[str, str]) -> list[str]:
    """Return the environment variables that prevent swapping, each with its remedy."""
    found = []
    backend = environment.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        found.append(
            f"KERAS_BACKEND is {backend!r}: AutoSwap needs Keras on TensorFlow. Set "
            "KERAS_BACKEND=tensorflow."
        )
    if re.search(r"--tf_xla_auto_jit=[^0-]", environment.get("TF_XLA_FLAGS", "")):
        found.append(
            "TF_XLA_FLAGS makes XLA compile parts of graphs (--tf_xla_auto_jit), in which nothing "
            "can be swapped. Remove that flag."
        )
    return found


def lines(diagnosis: Diagnosis) -> list[str]:
    """Return the printed diagnosis."""
    state, memory, link = diagnosis.status, diagnosis.memory, diagnosis.link
    facts = {
        "library": "loaded" if state["loaded"] else "not loaded",
        "built for": _built(diagnosis),
        "TensorFlow": state["tensorflow"] or "not installed",
        "device": "CPU, tfswap's" if state["device_is_ours"] else "CPU, not tfswap's",
        "plan": "active" if state["plan_in_force"] else "none active",
        "link": (
            f"{link.name}: out {link.out_bytes_per_s / 1e9:.1f} GB/s, "
            f"in {link.in_bytes_per_s / 1e9:.1f} GB/s, {diagnosis.cores} cores"
        ),
        "memory": (
            f"{readable_bytes(diagnosis.host.total_bytes)}, "
            f"{readable_bytes(diagnosis.host.available_bytes)} available"
        ),
        "cgroup": _limit(diagnosis.cgroup.limit_bytes, diagnosis.cgroup.available_bytes),
        "budget": _limit(memory["budget_bytes"] if memory else None, None)
        + f'; "auto" is {readable_bytes(diagnosis.auto_budget_bytes)} now',
        "host limit": _limit(memory["host_limit_bytes"] if memory else None, None)
        + f'; "auto" is {readable_bytes(diagnosis.auto_host_limit_bytes)} now',
    }
    for gpu in diagnosis.gpus:
        facts[gpu.name] = _gpu(gpu)
    if diagnosis.trial is not None and not diagnosis.trial.problem:
        facts["trial"] = (
            f"a training that needs {readable_bytes(diagnosis.trial.unswapped_peak_bytes)} on "
            f"{diagnosis.trial.device} ran in {readable_bytes(diagnosis.trial.budget_bytes)} with "
            "the same losses"
        )
    facts["codecs"] = "out / in, GB/s: " + ", ".join(
        f"{name} {out / 1e9:.1f} / {back / 1e9:.1f}"
        for name, (out, back) in diagnosis.codecs.items()
    )
    for why in sorted(set(diagnosis.missing_codecs.values())):
        missing = [name for name, each in diagnosis.missing_codecs.items() if each == why]
        facts["missing"] = f"{', '.join(missing)}: {why}"
    if isinstance(diagnosis.file, FarTier):
        facts["file"] = (
            f"out {diagnosis.file.out_bytes_per_s / 1e9:.1f} GB/s, "
            f"in {diagnosis.file.in_bytes_per_s / 1e9:.1f} GB/s, both at once"
        )
    elif diagnosis.file is not None:
        facts["file"] = diagnosis.file
    if memory:
        facts["in use"] = (
            f"{readable_bytes(memory['bytes_in_use'])} on the device, "
            f"{readable_bytes(memory['host_bytes_in_use'])} in far memory"
        )
    width = max(map(len, facts))
    report = [f"{name:<{width}}  {fact}" for name, fact in facts.items()]
    report.append("")
    if not diagnosis.problems:
        return [*report, "No problems found."]
    return [*report, *(f"PROBLEM: {problem}" for problem in diagnosis.problems)]


def _gpu(gpu: GpuFacts) -> str:
    if not gpu.is_ours:
        return "TensorFlow's own"
    known = ["tfswap's"]
    if gpu.memory_bytes is not None:
        known.append(readable_bytes(gpu.memory_bytes))
    if gpu.link is not None:
        known.append(
            f"{gpu.link.name}: out {gpu.link.out_bytes_per_s / 1e9:.1f} GB/s, "
            f"in {gpu.link.in_bytes_per_s / 1e9:.1f} GB/s"
        )
    return ", ".join(known)


def _built(diagnosis: Diagnosis) -> str:
    if diagnosis.built_for is None:
        return "unknown"
    return f"TensorFlow {diagnosis.built_for}, by {diagnosis.compiler}"


def _limit(limit_bytes: int | None, available_bytes: int | None) -> str:
    if limit_bytes is None:
        return "no limit"
    available = "" if available_bytes is None else f", {readable_bytes(available_bytes)} available"
    return f"{readable_bytes(limit_bytes)}{available}"


def _build_info() -> Any:
    try:
        return import_module("tfswap._build_info")
    except ImportError:
        return None
