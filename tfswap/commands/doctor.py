"""Say whether tfswap works here, and how to fix what does not."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tfswap.activation import activate
from tfswap.commands.diagnosis import Diagnosis, GpuFacts, failure, lines, problem_lines
from tfswap.commands.trial import try_training
from tfswap.io.amounts import readable_bytes
from tfswap.machine import budget as budgets
from tfswap.machine import codecs, host_memory, nvcomp
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

# Optional extras of the package: the module that they install, and what it is for.
_EXTRAS = {
    "report": ("matplotlib", "report.to_png, and pictures in log_dir"),
    "ilp": ("scipy", 'policy="tvdnn_ilp"'),
    "bo": ("bayes_opt", 'policy="autoswap:bo"'),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--verbose", action="store_true", help="print all facts")
    parser.add_argument("--json", action="store_true", help="print all facts as one JSON object")
    parser.add_argument("--spill-dir", help="also measure a file tier in this folder")
    parser.add_argument(
        "--no-trial", action="store_true", help="skip the small training under a budget"
    )


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis; return 1 if there is a problem, else 0."""
    found = environment_problems(os.environ)
    # TensorFlow imports Keras: with another backend, neither could be examined.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if not options.verbose:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        with contextlib.suppress(LibraryError):  # status() has the reason
            library.load()
    except Exception as error:  # then nothing else can be examined
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        found.append(
            "`import tensorflow` fails. Mend that first, for example by installing it again (pip "
            f"install --force-reinstall tensorflow-cpu, or tensorflow). It raises {what}"
        )
        text = [failure(len(found)), *problem_lines(found, options.verbose)]
        print(json.dumps({"problems": found}, indent=2) if options.json else "\n".join(text))
        return 1
    try:
        with warnings.catch_warnings():  # that options have no effect without the library
            warnings.simplefilter("ignore")
            activate()
    except ValueError as error:  # an option in the environment
        found.append(str(error))
    diagnosis = diagnose(found, options.spill_dir, trial=not options.no_trial)
    if options.json:
        print(json.dumps(asdict(diagnosis), indent=2, default=str))
    else:
        print("\n".join(lines(diagnosis, options.verbose)))
    return 1 if diagnosis.problems else 0


def diagnose(
    found: Sequence[str] = (), spill_dir: str | None = None, trial: bool = True
) -> Diagnosis:
    """Examine this process, its libraries and its limits; if nothing is wrong, try a training.

    Args:
        found: Problems that were found before.
        spill_dir: Folder to measure a file tier in; None for none.
        trial: Whether to try a training.
    """
    state = status()
    build = _build_info()
    memory = memory_stats() if state["loaded"] else None
    host, cgroup = host_memory.host_memory(), host_memory.cgroup_memory()
    gpus = tuple(_gpus()) if state["loaded"] else ()
    in_use_bytes = memory["bytes_in_use"] if memory else 0
    auto_budget_bytes = budgets.resolve("auto", in_use_bytes=in_use_bytes)
    missing_codecs = {name: why for name in codecs.NAMES if (why := codecs.why_not(name))}
    found = [*problems(state, host, cgroup, gpus), *found]
    # With a problem, it would fail for the same reason.
    tried = try_training() if trial and not found else None
    if tried is not None and tried.problem:
        found.append(tried.problem)
    return Diagnosis(
        status=state,
        built_for=build.get("tensorflow"),
        compiler=build.get("compiler"),
        memory=memory,
        host=host,
        cgroup=cgroup,
        link=Machine.measure(),
        gpus=gpus,
        cores=cores(),
        codecs={speed.name: _gb_s(speed) for speed in codec_speeds() if speed.threads == 1},
        missing_codecs=missing_codecs,
        missing_extras=_missing_extras(missing_codecs, bool(gpus)),
        file=None if spill_dir is None else _file(spill_dir),
        auto_budget_bytes=auto_budget_bytes,
        auto_host_limit_bytes=budgets.resolve_host_limit(
            "auto", auto_budget_bytes, in_use_bytes=in_use_bytes
        ),
        trial=tried,
        problems=tuple(found),
    )


def _missing_extras(missing_codecs: Mapping[str, str], with_gpus: bool) -> dict[str, str]:
    found = {}
    if missing_codecs:
        names: dict[str, list[str]] = {}
        for name, why in missing_codecs.items():
            names.setdefault(why, []).append(name)
        found["codecs"] = "; ".join(f"{', '.join(names[why])}: {why}" for why in names)
    for extra, (module, purpose) in _EXTRAS.items():
        if find_spec(module) is None:
            found[extra] = f'{purpose}: pip install "tfswap[{extra}]"'
    if with_gpus and nvcomp.find_nvcomp() is None:
        found["gpu-codecs"] = f"{', '.join(nvcomp.NAMES)} on GPUs: {nvcomp.INSTALL}"
    return found


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
    elif find_spec("keras") is None:
        found.append("Keras is not installed, and AutoSwap needs it: pip install keras.")
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
    backend, where = _keras_backend(environment)
    if backend != "tensorflow":
        found.append(
            f"{where} is {backend!r}: AutoSwap needs Keras on TensorFlow. Set "
            "KERAS_BACKEND=tensorflow."
        )
    if re.search(r"--tf_xla_auto_jit=[^0-]", environment.get("TF_XLA_FLAGS", "")):
        found.append(
            "TF_XLA_FLAGS makes XLA compile parts of graphs (--tf_xla_auto_jit), in which nothing "
            "can be swapped. Remove that flag."
        )
    return found


def _keras_backend(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the backend that Keras will choose, and where it is set."""
    variable = "KERAS_BACKEND"
    if environment.get(variable):
        return environment[variable], variable
    home = Path("~").expanduser()
    base = home if os.access(home, os.W_OK) else Path("/tmp")
    file = Path(environment.get("KERAS_HOME", base / ".keras"), "keras.json").expanduser()
    try:
        chosen = json.loads(file.read_bytes()).get("backend", "tensorflow")
    except (OSError, ValueError, AttributeError):  # Keras ignores most of these, too
        chosen = "tensorflow"
    return str(chosen), f'"backend" in {file}'


def _build_info() -> dict[str, str]:
    try:
        return library.build_info()
    except LibraryError:
        return {}
