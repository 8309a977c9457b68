"""Planned addresses: from recorded steps to the slots of one slab.

A slot belongs to what an op allocates: its name, the kind of the allocation (output, temporary,
other) and the how-manieth of that kind it is in one run of the op. Lifetimes come from steps that
were recorded with the plan in force, so that what is swapped out leaves its addresses free and
comes back wherever there is room.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap.packing import Buffers, pack
from tfswap.trace import StepTrace

GRANULE_BYTES = 1024
"""Slots begin and end at its multiples (``Slab::kGranuleBytes``)."""

HEADER_BYTES = 64
"""That each block has in front (``RecordingAllocator::kHeaderBytes``)."""

OUTSIDE = -2
"""The offset of what stays out of the slab (``kOutside``)."""

Key = tuple[str, int, int]
"""Op, kind, ordinal."""


@dataclass(frozen=True)
class Slot:
    """A planned place.

    Attributes:
        op: The op that allocates.
        kind: 0 an output, 1 a temporary, 2 other.
        ordinal: The how-manieth of that kind in one run of the op.
        offset_bytes: From the slab's begin; -2 for what outlives its step (a variable's new value)
            and stays out of the slab: its memory would be in the way of the next step's.
        size_bytes: Of the block, with its header.
    """

    op: str
    kind: int
    ordinal: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Layout:
    """The slots of one graph.

    Attributes:
        slots: One a key.
        height_bytes: The end of the highest.
        max_live_bytes: The largest load of the slots: no layout is lower.
    """

    slots: tuple[Slot, ...] = ()
    height_bytes: int = 0
    max_live_bytes: int = 0

    def to_text(self) -> str:
        """What the device's allocator reads: a line a slot."""
        return "\n".join(
            f"{s.op}\t{s.kind}\t{s.ordinal}\t{s.offset_bytes}\t{s.size_bytes}" for s in self.slots
        )


def plan_layout(
    traces: Sequence[StepTrace],
    is_planned: Callable[[str], bool],
    *,
    seconds: float = 1.0,
) -> Layout:
    """Packs what the recorded steps allocate.

    Args:
        traces: Recordings of whole steps; in none of them may two slots be in each other's way.
        is_planned: Whether an op of that name gets slots.
        seconds: How long to search for a lower layout.
    """
    pieces = _Pieces()
    for trace in traces:
        pieces.add(trace, is_planned)
    return pieces.layout(seconds)


class _Pieces:
    """When each key is live, on one clock on which the recorded steps come one after the other."""

    def __init__(self) -> None:
        self._spans: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        self._sizes: dict[Key, Counter[int]] = defaultdict(Counter)
        self._outside: set[Key] = set()
        self._now = 0

    def add(self, trace: StepTrace, is_planned: Callable[[str], bool]) -> None:
        names = trace.names
        planned = np.fromiter((is_planned(name) for name in names), bool, len(names))
        ours = trace.buffers[planned[trace.buffers["name"]] & (trace.buffers["alloc_ns"] >= 0)]
        ours = ours[np.argsort(ours["alloc_ns"], kind="stable")]
        length = int(trace.end_ns - trace.start_ns) + 1
        runs = _starts_of_runs(trace)
        made: Counter[tuple[int, int, int]] = Counter()
        for row in ours:
            name, kind, alloc_ns = int(row["name"]), int(row["kind"]), int(row["alloc_ns"])
            run = int(np.searchsorted(runs.get(name, _NO_RUNS), alloc_ns, side="right"))
            key = (names[name], kind, made[name, kind, run])
            made[name, kind, run] += 1
            self._sizes[key][int(row["bytes"])] += 1
            if row["free_ns"] < 0:
                self._outside.add(key)
                continue
            begin = alloc_ns - int(trace.start_ns)
            end = max(int(row["free_ns"]) - int(trace.start_ns), begin + 1)
            self._spans[key].append((self._now + begin, self._now + end))
        self._now += length

    def layout(self, seconds: float) -> Layout:
        sizes = {key: self._sizes[key].most_common(1)[0][0] + HEADER_BYTES for key in self._sizes}
        keys = sorted(self._spans.keys() - self._outside, key=lambda key: self._spans[key][0])
        lower, upper, gaps = [], [], []
        for place, key in enumerate(keys):
            spans = _merged(self._spans[key])
            lower.append(spans[0][0])
            upper.append(spans[-1][1])
            gaps += [
                (place, before[1], after[0])
                for before, after in zip(spans, spans[1:], strict=False)
            ]
        buffers = Buffers(
            size=-(-np.array([sizes[key] for key in keys], dtype=np.int64) // GRANULE_BYTES),
            lower=np.array(lower, dtype=np.int64),
            upper=np.array(upper, dtype=np.int64),
            gaps=np.array(gaps, dtype=np.int64).reshape(-1, 3),
        )
        packing = pack(buffers, seconds=seconds)
        slots = [
            Slot(*key, int(offset) * GRANULE_BYTES, sizes[key])
            for key, offset in zip(keys, packing.offsets, strict=True)
        ]
        slots += [Slot(*key, OUTSIDE, sizes[key]) for key in sorted(self._outside)]
        height_bytes, max_live_bytes = packing.height, buffers.max_live
        return Layout(tuple(slots), height_bytes * GRANULE_BYTES, max_live_bytes * GRANULE_BYTES)


_NO_RUNS = np.empty(0, dtype=np.int64)


def _starts_of_runs(trace: StepTrace) -> dict[int, NDArray[np.int64]]:
    """When the runs of ops began that ran several times (in a loop), by name."""
    counts = Counter(trace.ops["name"].tolist())
    starts: dict[int, NDArray[np.int64]] = {}
    for name, count in counts.items():
        if count > 1:
            starts[name] = np.sort(trace.ops["start_ns"][trace.ops["name"] == name])
    return starts


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of stretches, in order, without touching ones."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged
