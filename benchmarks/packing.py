"""Measure the heights and speeds of packers: a JSON line a file.

    python -m benchmarks.packing FILES...

FILE is an instance of MiniMalloc (columns id,lower,upper,size; the capacity is the number in its
name), an event list of SINGA, or a timeline of tfswap (`benchmarks/traces`). Keys: instance
buffers capacity max_live height solved seconds; for traces also kind, and first_fit and best_fit:
the heights of SmartPool's coloring. Sizes are in bytes, or in the instance's own unit.
``solved``: within the capacity; for a trace that is its largest load, the lower bound.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfswap.addresses.packing import Buffers, best_fit, find_fault, first_fit, pack
from tfswap.step.timeline import OUTLIVES_STEP_NS, Timeline
from tfswap.traces.events import Events, Kind, Step, find_step
from tfswap.traces.read import read_trace
from tfswap.traces.singa import read_singa


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="at most, each file (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the searches (1)")
    return parser.parse_args(arguments)


def read_instance(path: Path) -> tuple[Buffers, int]:
    """Return an instance of MiniMalloc and its capacity."""
    capacity = re.search(r"\.(\d+)\.", path.name)
    if capacity is None:
        raise ValueError(f"{path}: the name says no capacity, as in A.1048576.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [
        np.array([int(row[c]) for row in rows], np.int64) for c in ("size", "lower", "upper")
    ]
    return Buffers(*columns), int(capacity[1])


def buffers_of_events(step: Step) -> Buffers:
    """Return the blocks of a repeating step, on the clock of its events.

    A block that continues into the next step keeps its addresses from its allocation to its free.
    A block longer than a step needs as many addresses as its concurrent copies: all are in use
    all the time.
    """
    events, length = step.events, step.length
    allocated, freed = _ends(events)
    size, lower, upper, gaps = [], [], [], []
    for block, begin in allocated.items():
        if not step.start <= begin < step.start + length:
            continue
        first = begin - step.start
        last = freed.get(block, len(events) + 2 * length) - step.start
        if last <= length:
            spans = [(first, last)]
        elif last - first <= length:
            spans = [(0, last - length), (first, length)]
        else:
            spans = [(0, length)] * (-(-(last - first) // length))
        if len(spans) == 2 and spans[0] != spans[1] and last - first <= length:
            if spans[0][1] < spans[1][0]:
                gaps.append((len(size), spans[0][1], spans[1][0]))
            spans = [(0, length)]
        for span in spans:
            size.append(int(events.bytes[begin]))
            lower.append(span[0])
            upper.append(span[1])
    return Buffers(
        np.array(size, np.int64),
        np.array(lower, np.int64),
        np.array(upper, np.int64),
        gaps=np.array(gaps, np.int64).reshape(-1, 3),
    )


def _ends(events: Events) -> tuple[dict[int, int], dict[int, int]]:
    allocated, freed = {}, {}
    for i in range(len(events)):
        if events.kind[i] == Kind.MALLOC:
            allocated[int(events.block[i])] = i
        elif events.kind[i] == Kind.FREE:
            freed[int(events.block[i])] = i
    return allocated, freed


def buffers_of_timeline(timeline: Timeline) -> Buffers:
    """Return the allocations of a recorded step; those that outlive it are live all the time."""
    outlives = timeline.buffer_free_ns == OUTLIVES_STEP_NS
    end_ns = timeline.step_ns + 1
    there = timeline.buffer_alloc_ns < 0
    lower = np.where(there | outlives, -1, timeline.buffer_alloc_ns)
    upper = np.where(outlives, end_ns, timeline.buffer_free_ns)
    kept = (timeline.buffer_bytes > 0) & (upper > lower)
    return Buffers(timeline.buffer_bytes[kept], lower[kept], upper[kept])


def measure(path: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Return the line of one file."""
    more: dict[str, Any] = {}
    if path.suffix == ".csv" and path.open().readline().startswith("id,"):
        buffers, capacity = read_instance(path)
    else:
        if zipfile.is_zipfile(path):
            buffers = buffers_of_timeline(read_trace(path))
        else:
            buffers = buffers_of_events(find_step(read_singa(path)))
        capacity = buffers.max_live
        more["kind"] = "trace"
        more["first_fit"] = first_fit(buffers).height
        more["best_fit"] = best_fit(buffers).height
    begun_s = time.perf_counter()
    packing = pack(buffers, seconds=seconds, capacities=[capacity], seed=seed)
    taken_s = time.perf_counter() - begun_s
    fault = find_fault(buffers, packing)
    if fault:
        raise AssertionError(f"{path}: {fault}")
    return {
        "instance": path.name,
        "buffers": len(buffers),
        "capacity": capacity,
        "max_live": buffers.max_live,
        "height": packing.height,
        "solved": packing.height <= capacity,
        "seconds": round(taken_s, 3),
        **more,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines; return 0, or 1 if a file cannot be read."""
    options = parse(arguments)
    status = 0
    for path in options.files:
        try:
            print(json.dumps(measure(path, options.seconds, options.seed)), flush=True)
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
