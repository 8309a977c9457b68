"""Run the race tests' programs, and read their output."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builds
import pytest

OPTIONS = {
    # TSan tracks at most 64 locks held at once, and a table of blocks takes as many.
    "TSAN_OPTIONS": "detect_deadlocks=0 exitcode=66",
    # TensorFlow keeps its objects until the process ends.
    "ASAN_OPTIONS": "detect_leaks=0 detect_stack_use_after_return=1 exitcode=66",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
REPORTS = ("ThreadSanitizer", "AddressSanitizer", "runtime error:", "FAILED:")


def made(build: Callable[[], Path]) -> Path:
    """Build the program; skip the test if that is impossible here."""
    try:
        return build()
    except builds.Unavailable as error:
        pytest.skip(str(error))


def explored(program: Path, *arguments: str, timeout_s: float = 600) -> list[dict[str, Any]]:
    """Explore all small programs of an executable; return the results, without failures."""
    ran = _run(program, *arguments, timeout_s=timeout_s)
    assert ran.returncode == 0, ran.stderr[-8000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def refused(program: Path, *arguments: str, timeout_s: float = 600) -> str:
    """Run small programs, one of which must fail with its schedule; return the error."""
    ran = _run(program, *arguments, timeout_s=timeout_s)
    assert ran.returncode == 1, ran.stdout + ran.stderr[-4000:]
    found = re.search(r"FAILED: (.*)\nby this schedule:\n  \S", ran.stderr)
    assert found, ran.stderr[-4000:]
    return found.group(1)


def hammered(program: Path, watched: str, seconds: float, folder: Path) -> dict[str, int]:
    """Run a stress test without a report or an error; return how often each action ran."""
    arguments = ("--seconds", str(seconds), "--folder", str(folder))
    ran = _run(program, *arguments, timeout_s=60 + 10 * seconds)
    said = [word for word in REPORTS if word in ran.stderr]
    assert ran.returncode == 0 and not said, f"{watched}:\n{ran.stderr[:12000]}"
    done = json.loads(ran.stdout)
    assert min(done.values()) > 0, done
    return done


def _run(program: Path, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        env={**os.environ, **OPTIONS},
        cwd=builds.BUILT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
