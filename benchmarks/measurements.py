"""Benchmark output in files, from which a document can be made again.

FOLDER/<benchmark>.jsonl begins with a line {"about": {...}}: machine, versions, runs; the
benchmark's lines follow.
FOLDER/<benchmark>.log has the progress messages.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark
from benchmarks.one_case import TREE

_TAIL_CHARACTERS = 600


@dataclass(frozen=True)
class Run:
    """One run of a benchmark.

    Attributes:
        command: Its command line.
        seconds: Its duration.
        problem: The reason of a failure; "": it succeeded.
    """

    command: str
    seconds: float
    problem: str = ""


@dataclass(frozen=True)
class Measured:
    """The stored results of a benchmark.

    Attributes:
        name: The benchmark's name.
        date: The date of the run.
        machine: See `machine`.
        is_quick: Whether its runs were the quick ones.
        runs: Its runs, in order.
        lines: All of its output lines.
    """

    name: str
    date: str
    machine: dict[str, str]
    is_quick: bool
    runs: list[Run]
    lines: list[dict[str, Any]] = field(default_factory=list)


def machine() -> dict[str, str]:
    """Return the machine: hardware, and installed software."""
    processor = _first(r"model name\s*: (.*)", "/proc/cpuinfo") or platform.processor()
    kib = int(_first(r"MemTotal:\s*(\d+)", "/proc/meminfo") or 0)
    facts = {
        "processor": f"{processor.strip()}, {os.cpu_count()} cores",
        "memory": f"{kib / 2**20:.0f} GiB",
        "system": f"Linux {platform.release()}",
        "Python": platform.python_version(),
    }
    for title, names in (
        ("TensorFlow", ("tensorflow", "tensorflow-cpu")),
        ("Keras", ("keras",)),
        ("tfswap", ("tfswap",)),
    ):
        facts[title] = next(filter(None, map(_version, names)), "not installed")
    commit = _commit()
    if commit:
        facts["tfswap"] += f", commit {commit}"
    return facts


def _first(pattern: str, path: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return found[1] if found else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    command = ["git", "-C", str(TREE), "rev-parse", "--short=10", "HEAD"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


def measure(
    benchmark: Benchmark, is_quick: bool, folder: Path, more: Sequence[str] = ()
) -> Measured:
    """Run a benchmark; keep its output even if it fails.

    Args:
        benchmark: The benchmark.
        is_quick: Whether to do the quick runs.
        folder: Folder of the files.
        more: Machine-dependent arguments of all runs. Defaults to none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    found = Measured(benchmark.name, today, machine(), is_quick, [])
    limit_s = benchmark.quick_limit_s if is_quick else benchmark.limit_s
    with (folder / f"{benchmark.name}.log").open("w") as log:
        for arguments in benchmark.quick if is_quick else benchmark.full:
            command = ["-m", f"benchmarks.{benchmark.name}", *shlex.split(arguments)]
            begun_s = time.monotonic()
            printed, problem = printed_by([sys.executable, *command, *more], limit_s, log)
            seconds = round(time.monotonic() - begun_s, 1)
            if not printed and not problem:
                problem = "it printed nothing"
            found.runs.append(Run(f"python {shlex.join(command)}", seconds, problem))
            found.lines.extend(printed)
    save(found, folder)
    return found


def printed_by(command: list[str], limit_s: float, log: Any) -> tuple[list[dict[str, Any]], str]:
    """Return the JSON lines of a process, and its problem ("": none)."""
    begins = log.tell()
    process = subprocess.Popen(
        command, cwd=TREE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    )
    try:
        text, _ = process.communicate(timeout=limit_s)
        problem = f"ended with status {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes of its cases
        text, _ = process.communicate()
        problem = f"not done after {limit_s:.0f} s"
    if problem:
        said = Path(log.name).read_text(errors="replace")[begins:].strip()
        last = said[-_TAIL_CHARACTERS:].splitlines()[-1:] or [""]
        problem = f"{problem}: {last[0]}" if last[0] else problem
    return lines_of(text), problem


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects among lines, of which the last one may be truncated."""
    found = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def save(measured: Measured, folder: Path) -> None:
    """Write a benchmark's file."""
    about = {key: value for key, value in asdict(measured).items() if key != "lines"}
    lines = [{"about": about}, *measured.lines]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{measured.name}.jsonl").write_text(text)


def load(name: str, folder: Path) -> Measured | None:
    """Return the stored results of a benchmark; None if there are none."""
    path = folder / f"{name}.jsonl"
    if not path.exists():
        return None
    first, *lines = lines_of(path.read_text())
    about = first["about"]
    about["runs"] = [Run(**run) for run in about["runs"]]
    return Measured(**about, lines=lines)
