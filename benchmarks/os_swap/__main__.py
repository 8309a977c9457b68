"""Train in less memory than needed: the kernel's swapping against tfswap's file tier.

    python -m benchmarks.os_swap --model ResNet50 --batch 16 --image 224 --rss 2000,1600,1300

Needs root. Each training runs in a separate process, within a memory cgroup of that many MiB and
with a swap file: once under stock TensorFlow, once under tfswap, whose file tier is on the same
disk. (The kernel also swaps out what either process no longer uses, for example of its start.) The
cgroup and the swap file are removed at the end. For each limit, in turns:

    unlimited ─▶ tfswap ─▶ os_swap ─▶ unlimited ─▶ ...
    └────────── --repeats times ─────────┘

A JSON line for each limit. Keys: rss_mib unlimited_step_s os_swap_step_s tfswap_step_s
os_swap_ratio tfswap_ratio (both to the unlimited step of the same turns); null: a training ran out
of memory. Times are medians over all timed steps. Further keys are from the output of tfswap's last
training (`training.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.os_swap.limits import MemoryLimit, NotAllowed, SwapFile

_MIB = 1 << 20
_CHILD = "benchmarks.os_swap.training"
# By key name: how to train, and whether within the limit.
KINDS = {"unlimited": ("plain", False), "tfswap": ("tfswap", True), "os_swap": ("plain", True)}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.os_swap", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", default="ResNet50", help="of keras.applications (ResNet50)")
    parser.add_argument("--batch", type=int, default=16, help="examples in a step (16)")
    parser.add_argument("--image", type=int, default=224, help="pixels (224)")
    parser.add_argument("--rss", default="2000,1600,1300", help="limits in MiB, with commas")
    parser.add_argument("--steps", type=int, default=8, help="timed, of each training (8)")
    parser.add_argument("--repeats", type=int, default=1, help="of each training (1)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="on the disk for the swap file and the file tier",
    )
    parser.add_argument("--skip", default="", help="of: unlimited, os_swap, tfswap; with commas")
    parser.add_argument("--verbose", action="store_true", help="what trainings say, on stderr")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trainings; return the exit status."""
    options = parse(arguments)
    skipped = set(filter(None, options.skip.split(",")))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # so that nothing is left behind
    try:
        limits = [int(limit) for limit in options.rss.split(",")]
        with MemoryLimit() as cgroup:
            for rss_mib in limits:
                cgroup.set_bytes(rss_mib * _MIB)
                # The same for both: a limit, a disk, and a swap file on it.
                with SwapFile(options.folder, 4 << 30):
                    trained = in_turns(options, skipped, cgroup)
                print(json.dumps(line(rss_mib, trained)), flush=True)
    except NotAllowed as error:
        print(f"benchmarks.os_swap: {error}", file=sys.stderr)
        return 2
    return 0


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def in_turns(
    options: argparse.Namespace, skipped: set[str], cgroup: MemoryLimit
) -> dict[str, list[dict[str, Any]]]:
    """Return the output of the trainings within one limit, by mode."""
    trained: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(options.repeats):
        for kind, (mode, limited) in KINDS.items():
            if kind not in skipped:
                trained[kind].append(train(options, mode, cgroup if limited else None))
    return trained


def train(options: argparse.Namespace, mode: str, cgroup: MemoryLimit | None) -> dict[str, Any]:
    """Run one training in a separate process; return its output, none if it was killed."""
    command = [sys.executable, "-m", _CHILD, mode, options.model, str(options.batch),
               str(options.image), str(options.steps), str(options.folder)]  # fmt: skip
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=None if options.verbose else subprocess.DEVNULL,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        text=True,
        preexec_fn=None if cgroup is None else cgroup.enter,
    )
    try:
        output, _ = child.communicate()
    finally:
        child.kill()
        child.wait()
    if options.verbose:
        print(output, file=sys.stderr)
    if child.returncode != 0:
        print(f"{mode}: the training ended with {child.returncode}", file=sys.stderr)
        return {}
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _step_s(trained: list[dict[str, Any]]) -> float | None:
    """Return the median of all steps; None if a training was killed."""
    if not trained or not all(trained):
        return None
    return statistics.median(step_s for each in trained for step_s in each["step_s"])


def _ratio(step_s: float | None, unlimited_s: float | None) -> float | None:
    return None if step_s is None or unlimited_s is None else round(step_s / unlimited_s, 3)


def line(rss_mib: int, trained: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the line of one limit."""
    step_s = {kind: _step_s(each) for kind, each in trained.items()}
    said = trained["tfswap"][-1] if trained["tfswap"] else {}
    return {
        "rss_mib": rss_mib,
        "unlimited_step_s": step_s["unlimited"],
        "os_swap_step_s": step_s["os_swap"],
        "tfswap_step_s": step_s["tfswap"],
        "os_swap_ratio": _ratio(step_s["os_swap"], step_s["unlimited"]),
        "tfswap_ratio": _ratio(step_s["tfswap"], step_s["unlimited"]),
        **{key: value for key, value in said.items() if key != "step_s"},
    }


if __name__ == "__main__":
    sys.exit(main())
