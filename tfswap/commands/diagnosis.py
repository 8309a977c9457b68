"""What ``tfswap doctor`` finds, as data and as the lines that it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from tfswap.commands.trial import Trial
from tfswap.io.amounts import readable_bytes
from tfswap.machine.far_tier import FarTier
from tfswap.machine.host_memory import CgroupMemory, HostMemory
from tfswap.machine.machine import Machine

_MAX_CHARACTERS = 600  # of a printed problem: some of TensorFlow's errors fill pages


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
        missing_extras: What each missing extra of the package is for and how to install it, by
            name.
        file: The file tier in the given folder, or the reason why there is none; None without a
            folder.
        auto_budget_bytes: What budget="auto" would be now.
        auto_host_limit_bytes: What host_limit="auto" would be beside that budget.
        trial: A small training under a budget; None if it was skipped.
        problems: Problems, each with its remedy.
    """

    status: dict[str, Any]
    built_for: str | None
    compiler: str | None
    memory: dict[str, Any] | None
    host: HostMemory
    cgroup: CgroupMemory
    link: Machine
    gpus: tuple[GpuFacts, ...]
    cores: int
    codecs: dict[str, tuple[float, float]]
    missing_codecs: dict[str, str]
    missing_extras: dict[str, str]
    file: FarTier | str | None
    auto_budget_bytes: int
    auto_host_limit_bytes: int
    trial: Trial | None
    problems: tuple[str, ...]


def lines(diagnosis: Diagnosis, verbose: bool = False) -> list[str]:
    """Return the printed diagnosis: the verdict, the problems, and some facts or all of them.

    With some facts and up to four problems, these are at most ten lines.
    """
    facts = _all_facts(diagnosis) if verbose else _some_facts(diagnosis)
    width = max(map(len, facts))
    return [
        _verdict(diagnosis),
        *problem_lines(diagnosis.problems, verbose),
        *(f"{name:<{width}}  {fact}" for name, fact in facts.items()),
        *([] if verbose else ["More facts: tfswap doctor --verbose"]),
    ]


def problem_lines(problems: Sequence[str], verbose: bool = False) -> list[str]:
    """Return the printed problems, one line each."""
    return [
        f"PROBLEM: {problem if verbose else shorten(problem, _MAX_CHARACTERS, placeholder=' ...')}"
        for problem in problems
    ]


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis.problems:
        return failure(len(diagnosis.problems))
    if diagnosis.trial is None:
        return "No problem found. The small training under a budget was skipped (--no-trial)."
    return f"tfswap works here: {_trial(diagnosis.trial)}."


def failure(problems: int) -> str:
    """Return the verdict if there are problems."""
    return f"tfswap does not work here: {problems} problem{'s' if problems > 1 else ''}."


def _trial(trial: Trial) -> str:
    return (
        f"a training that needs {readable_bytes(trial.unswapped_peak_bytes)} on {trial.device} ran "
        f"in {readable_bytes(trial.budget_bytes)} with the same losses"
    )


def _some_facts(diagnosis: Diagnosis) -> dict[str, str]:
    facts = {"TensorFlow": _tensorflow(diagnosis)}
    if diagnosis.status["loaded"]:
        facts["devices"] = _devices(diagnosis)
    facts["memory"] = (
        f"{_memory(diagnosis.host)}; cgroup: "
        f"{_limit(diagnosis.cgroup.limit_bytes, diagnosis.cgroup.available_bytes)}; "
        f'budget="auto" is {readable_bytes(diagnosis.auto_budget_bytes)} now'
    )
    facts["extras"] = (
        f"not installed: {', '.join(diagnosis.missing_extras)} (--verbose has the commands)"
        if diagnosis.missing_extras
        else "all installed"
    )
    if diagnosis.file is not None:
        facts["file"] = _file(diagnosis.file)
    return facts


def _all_facts(diagnosis: Diagnosis) -> dict[str, str]:
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
        "memory": _memory(diagnosis.host),
        "cgroup": _limit(diagnosis.cgroup.limit_bytes, diagnosis.cgroup.available_bytes),
        "budget": _limit(memory["budget_bytes"] if memory else None, None)
        + f'; "auto" is {readable_bytes(diagnosis.auto_budget_bytes)} now',
        "host limit": _limit(memory["host_limit_bytes"] if memory else None, None)
        + f'; "auto" is {readable_bytes(diagnosis.auto_host_limit_bytes)} now',
    }
    for gpu in diagnosis.gpus:
        facts[gpu.name] = _gpu(gpu)
    if diagnosis.trial is not None and not diagnosis.trial.problem:
        facts["trial"] = _trial(diagnosis.trial)
    facts["codecs"] = "out / in, GB/s: " + ", ".join(
        f"{name} {out / 1e9:.1f} / {back / 1e9:.1f}"
        for name, (out, back) in diagnosis.codecs.items()
    )
    for name, why in diagnosis.missing_extras.items():
        facts[f"no {name}"] = why
    if diagnosis.file is not None:
        facts["file"] = _file(diagnosis.file)
    if memory:
        facts["in use"] = (
            f"{readable_bytes(memory['bytes_in_use'])} on the device, "
            f"{readable_bytes(memory['host_bytes_in_use'])} in far memory"
        )
    return facts


def _tensorflow(diagnosis: Diagnosis) -> str:
    built = "" if diagnosis.built_for is None else f"; tfswap was built for {diagnosis.built_for}"
    return f"{diagnosis.status['tensorflow'] or 'not installed'}{built}"


def _devices(diagnosis: Diagnosis) -> str:
    owned = {"CPU": diagnosis.status["device_is_ours"]}
    owned |= {gpu.name: gpu.is_ours for gpu in diagnosis.gpus}
    parts = []
    for is_ours, owner in ((True, "tfswap's"), (False, "TensorFlow's own")):
        names = [name for name, each in owned.items() if each == is_ours]
        if names:
            parts.append(f"{', '.join(names)} ({owner})")
    return ", ".join(parts)


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


def _file(file: FarTier | str) -> str:
    if isinstance(file, str):
        return file
    return (
        f"out {file.out_bytes_per_s / 1e9:.1f} GB/s, in {file.in_bytes_per_s / 1e9:.1f} GB/s, "
        "both at once"
    )


def _built(diagnosis: Diagnosis) -> str:
    if diagnosis.built_for is None:
        return "unknown"
    return f"TensorFlow {diagnosis.built_for}, by {diagnosis.compiler}"


def _memory(host: HostMemory) -> str:
    return f"{readable_bytes(host.total_bytes)}, {readable_bytes(host.available_bytes)} available"


def _limit(limit_bytes: int | None, available_bytes: int | None) -> str:
    if limit_bytes is None:
        return "no limit"
    available = "" if available_bytes is None else f", {readable_bytes(available_bytes)} available"
    return f"{readable_bytes(limit_bytes)}{available}"
