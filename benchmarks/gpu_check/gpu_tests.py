"""Stage: the tests in ``tests/gpu``, on this GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_check.context import Context

TREE = Path(__file__).resolve().parents[2]
FOLDER = Path("tests") / "gpu"

# Tests of this check itself, and tests that run on the CPU.
_NOT_THESE = ("test_gpu_check.py", "test_codec_kernels.py")
# With less memory, concurrent tests would only wait for each other.
_CORES_FOR_ALL_AT_ONCE = 8


def run(context: Context) -> None:
    """Run each file in a separate process: some start trainings, which need the GPU."""
    names = sorted(path.name for path in (TREE / FOLDER).glob("test_*.py"))
    names = [name for name in names if name not in _NOT_THESE]
    if context.quick:
        names = ["test_device.py"]
    at_once = len(os.sched_getaffinity(0)) >= _CORES_FOR_ALL_AT_ONCE
    running = []
    for name in names:
        process = _started(name, context.fake)
        running.append((name, process))
        if not at_once:
            _ended(context, name, process)
    if at_once:
        for name, process in running:
            _ended(context, name, process)


def _started(name: str, fake: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--color=no"]
    environment = {
        **os.environ,
        "TEST_GPU": "fake" if fake else "real",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # several processes share the GPU
    }
    return subprocess.Popen(
        [*command, str(FOLDER / name)],
        cwd=TREE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _ended(context: Context, name: str, process: subprocess.Popen[str]) -> None:
    try:
        output, _ = process.communicate(timeout=max(context.seconds_left(), 0.0))
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        output += "\nnot through in time"
    print(output)
    lines = output.strip().splitlines() or ["nothing was said"]
    passed = process.returncode == 0
    summary = lines[-1].strip("= ")
    context.figures[name] = {"passed": passed, "summary": summary}
    if not passed:
        context.figures[name]["output"] = "\n".join(lines[-60:])
        context.broken.append(f"{name}: {summary}")
    context.line(f"tests, {name}", summary, "all pass")
    context.save()
