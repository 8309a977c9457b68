"""Training in less memory than it needs: the kernel's swapping beside tfswap's file tier.

    python -m benchmarks.os_swap --model ResNet50 --batch 16 --image 224 --rss 2000,1600,1300

Needs root. Each training runs in a process of its own, within a memory cgroup of so many MiB and
with a swap file: once TensorFlow as it is, once under tfswap, whose file tier is on the same disk.
(What either process does not use any more, of its start say, the kernel swaps out.) And once
without a limit. The cgroup and the swap file are taken away at the end.

A JSON line for each limit. Keys: rss_mib unlimited_step_s os_swap_step_s tfswap_step_s
os_swap_ratio tfswap_ratio (both to the unlimited step); null: a training ran out of memory. Of
tfswap's training also what it says of itself (`training.py`).
"""

from __future__ import annotations

import argparse
import json
import os
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


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.os_swap", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", default="ResNet50", help="of keras.applications (ResNet50)")
    parser.add_argument("--batch", type=int, default=16, help="examples in a step (16)")
    parser.add_argument("--image", type=int, default=224, help="pixels (224)")
    parser.add_argument("--rss", default="2000,1600,1300", help="limits in MiB, with commas")
    parser.add_argument("--steps", type=int, default=8, help="timed, of each training (8)")
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
    """Runs the trainings; answers the exit status."""
    options = parse(arguments)
    skipped = set(filter(None, options.skip.split(",")))
    try:
        limits = [int(limit) for limit in options.rss.split(",")]
        with MemoryLimit() as cgroup:
            unlimited_s = None
            if "unlimited" not in skipped:
                unlimited_s = _step_s(train(options, "plain", None))
            for rss_mib in limits:
                cgroup.set_bytes(rss_mib * _MIB)
                # The same for both: a limit, a disk, and a swap file on it.
                with SwapFile(options.folder, 4 << 30):
                    plain = {} if "os_swap" in skipped else train(options, "plain", cgroup)
                    swapped = {} if "tfswap" in skipped else train(options, "tfswap", cgroup)
                print(json.dumps(line(rss_mib, unlimited_s, plain, swapped)), flush=True)
    except NotAllowed as error:
        print(f"benchmarks.os_swap: {error}", file=sys.stderr)
        return 2
    return 0


def train(options: argparse.Namespace, mode: str, cgroup: MemoryLimit | None) -> dict[str, Any]:
    """One training in a process of its own; what it says of itself, nothing if it was killed."""
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
    output, _ = child.communicate()
    if options.verbose:
        print(output, file=sys.stderr)
    if child.returncode != 0:
        print(f"{mode}: the training ended with {child.returncode}", file=sys.stderr)
        return {}
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _step_s(result: dict[str, Any]) -> float | None:
    return statistics.median(result["step_s"]) if result else None


def _ratio(step_s: float | None, unlimited_s: float | None) -> float | None:
    return None if step_s is None or unlimited_s is None else round(step_s / unlimited_s, 3)


def line(
    rss_mib: int, unlimited_s: float | None, plain: dict[str, Any], swapped: dict[str, Any]
) -> dict[str, Any]:
    """What is printed for one limit."""
    os_swap_s, tfswap_s = _step_s(plain), _step_s(swapped)
    return {
        "rss_mib": rss_mib,
        "unlimited_step_s": unlimited_s,
        "os_swap_step_s": os_swap_s,
        "tfswap_step_s": tfswap_s,
        "os_swap_ratio": _ratio(os_swap_s, unlimited_s),
        "tfswap_ratio": _ratio(tfswap_s, unlimited_s),
        **{key: value for key, value in swapped.items() if key != "step_s"},
    }


if __name__ == "__main__":
    sys.exit(main())
