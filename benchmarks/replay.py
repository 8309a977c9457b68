"""Measure the cost of an allocation and its free: a step on TensorFlow's allocator and on the slab.

Nothing is computed: each thread makes a recorded step's allocations and frees in order, with
its own slots. "slab" is the planned allocator alone, over an allocator that is unused if all goes
as planned; "device" is all of the device's allocators, "bfc" TensorFlow's. They take turns;
values are medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.allocators import Chain
from tfswap.addresses.packing import Buffers, pack
from tfswap.plan.slots import GRANULE_BYTES
from tfswap.step.timeline import OUTLIVES_STEP_NS, Timeline
from tfswap.traces.read import read_trace

TRACE = Path(__file__).resolve().parent / "traces" / "ResNet50_16x96.profile"
ALLOCATORS = {
    "bfc": "bfc",
    "slab": "slab budget system",
    "device": "statistics recording slab budget system",
}
_MIN_BYTES = 4096
_ROUNDS = 5


def events_of(timeline: Timeline) -> tuple[NDArray[np.int64], int]:
    """Return a step's allocations and frees as (bytes or -1, block, offset), and the height."""
    inside = (timeline.buffer_alloc_ns >= 0) & (timeline.buffer_free_ns != OUTLIVES_STEP_NS)
    kept = np.flatnonzero(inside & (timeline.buffer_bytes >= _MIN_BYTES))
    sizes = timeline.buffer_bytes[kept]
    begin, end = timeline.buffer_alloc_ns[kept], timeline.buffer_free_ns[kept]
    blocks = np.arange(len(kept))
    times = np.concatenate([begin, np.maximum(end, begin + 1)])
    order = np.lexsort((np.concatenate([np.ones_like(blocks), np.zeros_like(blocks)]), times))
    # On the clock of the events, on which the packed step is replayed.
    place = np.empty(len(times), dtype=np.int64)
    place[order] = np.arange(len(times))
    granules = -(-sizes // GRANULE_BYTES)
    packing = pack(Buffers(granules, place[: len(kept)], place[len(kept) :]), seconds=2.0)
    rows = np.empty((len(times), 3), dtype=np.int64)
    rows[: len(kept), 0] = sizes
    rows[len(kept) :, 0] = -1
    rows[:, 1] = np.concatenate([blocks, blocks])
    rows[:, 2] = np.tile(packing.offsets * GRANULE_BYTES, 2)
    return rows[order], packing.height * GRANULE_BYTES


def replay(trace: Path, threads: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Yield lines: trace pairs threads allocator ns_per_pair ratio_to_bfc failures taken.

    Args:
        trace: A timeline of tfswap.
        threads: Number of concurrent threads.
        repeats: Number of steps in a round.

    Raises:
        OSError, ValueError: The trace cannot be read.
    """
    events, height = events_of(read_trace(trace))
    pairs = len(events) // 2
    ns: dict[str, list[float]] = {name: [] for name in ALLOCATORS}
    counts: dict[str, tuple[int, int]] = {}
    for _ in range(_ROUNDS):
        for name, names in ALLOCATORS.items():
            with Chain(names, 2 * threads * height) as chain:
                chain.install("replay", f"op\t0\t0\t0\t{threads * height}")
                chain.replay(events, height, threads, 2)
                taken, failures = chain.replay(events, height, threads, repeats)
                ns[name].append(taken / (pairs * repeats))
                counts[name] = failures, chain.stats().get("taken", 0)
    of_bfc = statistics.median(ns["bfc"])
    for name in ALLOCATORS:
        median = statistics.median(ns[name])
        yield {
            "trace": trace.name,
            "pairs": pairs,
            "threads": threads,
            "allocator": name,
            "ns_per_pair": round(median, 1),
            "ratio_to_bfc": round(median / of_bfc, 3),
            "failures": counts[name][0],
            "taken": counts[name][1],
        }
