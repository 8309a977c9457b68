"""AutoSwap's overheads as counted by its authors' script, for comparison with their logs.

Real steps run differently: overheads are added up without delaying later ops, prefetched tensors
take no memory before their use, and an op index stands for a moment. The real planner
is `tfswap.planning.planners.papers.autoswap`; this shows only that the same trace
gives the same numbers.
Source: arXiv 1903.06631 and its script, including its mistakes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap.traces.events import Kind, Step

MIB = 1 << 20
SCORES = ("doa", "aoa", "swdoa")


@dataclass(frozen=True)
class Candidate:
    """A gap across the peak, between the events `after` and `before` of the step."""

    after: int
    before: int
    bytes: int


class PublishedAccounting:
    """One step with its predecessor and successor.

    Args:
        step: The step; the events hold one before and one after it.
        untouched_bytes: Memory in blocks that no event of the trace names.
    """

    def __init__(self, step: Step, untouched_bytes: int = 0) -> None:
        events, self._start, self._length = step.events, step.start, step.length
        self._time_ns = events.time_ns - events.time_ns[step.start]
        self.load = _load(step, untouched_bytes)
        self.peak = int(np.argmax(self.load))
        self.candidates = _candidates(step, self.peak)

    def overhead_ms(self, score: str, limit_bytes: int) -> tuple[float, int]:
        """Return added waits and the load's peak after one score's selection under one limit."""
        chosen, peak_bytes = self._select(self._order(score), limit_bytes)
        return self._overhead_ns(chosen, limit_bytes) / 1e6, peak_bytes

    def _at_ns(self, event: int) -> int:
        return int(self._time_ns[self._start + event])

    def _inside(self, candidate: Candidate) -> slice:
        return slice(max(candidate.after, 0), min(candidate.before, self._length))

    def _order(self, score: str) -> list[Candidate]:
        if score == "swdoa":
            return self._by_area()
        gap_ns = {c: self._at_ns(c.before) - self._at_ns(c.after) for c in self.candidates}
        # The script ignores the time of the copy-in (a line that continues after its end).
        doa = {c: gap_ns[c] - _out_ns(c.bytes) for c in self.candidates}
        if score == "doa":
            return sorted(self.candidates, key=lambda c: -doa[c])
        aoa = {c: doa[c] * c.bytes if doa[c] >= 0 else doa[c] / c.bytes for c in self.candidates}
        return sorted(self.candidates, key=lambda c: -aoa[c])

    def _by_area(self) -> list[Candidate]:
        """Select by SWDOA: areas wrap around the step's end, their removal does not."""
        load = self.load.astype(np.float64)
        left, order = list(self.candidates), []
        while left:
            up_to = np.concatenate([[0.0], np.cumsum(np.tile(load, 3))])
            n = self._length
            best = max(left, key=lambda c: up_to[n + c.before] - up_to[n + c.after])
            order.append(best)
            left.remove(best)
            load[self._inside(best)] -= best.bytes
        return order

    def _select(self, order: list[Candidate], limit_bytes: int) -> tuple[list[Candidate], int]:
        load = self.load.copy()
        chosen = []
        for candidate in order:
            if load.max() <= limit_bytes:
                break
            chosen.append(candidate)
            load[self._inside(candidate)] -= candidate.bytes
        return chosen, int(load.max())

    def _overhead_ns(self, chosen: list[Candidate], limit_bytes: int) -> float:
        load = self.load.copy()
        overhead_ns, link_free_ns = 0.0, float("-inf")
        for candidate in sorted(chosen, key=lambda c: c.after):
            begin_ns = max(float(self._at_ns(candidate.after)), link_free_ns)
            end_ns = begin_ns + _out_ns(candidate.bytes)
            end = candidate.after
            while self._at_ns(end) < end_ns:
                end += 1
            end = min(end, self.peak)
            load[max(end + 1, 0) : min(candidate.before, self._length)] -= candidate.bytes
            over = np.flatnonzero(load[: max(end + 1, 0)] > limit_bytes)
            if len(over):
                waits = int(over[0])
                overhead_ns += max(end_ns - self._at_ns(waits - 1), 0.0)
                load[max(waits - 1, 0) : end + 1] -= candidate.bytes
                end = waits - 1
            link_free_ns = self._at_ns(end)
        return overhead_ns


def _out_ns(size: int) -> float:
    return 47_200 + 0.0756 * size


def _load(step: Step, untouched_bytes: int) -> NDArray[np.int64]:
    events = step.events
    change = np.where(events.kind == Kind.MALLOC, events.bytes, 0)
    change = change - np.where(events.kind == Kind.FREE, events.bytes, 0)
    _, first = np.unique(events.block, return_index=True)
    before = first[events.kind[first] != Kind.MALLOC]
    load = int(events.bytes[before].sum()) + untouched_bytes + np.cumsum(change)
    return load[step.start : step.start + step.length].astype(np.int64)


def _candidates(step: Step, peak: int) -> list[Candidate]:
    events = step.events
    order = np.lexsort((np.arange(len(events)), events.block))
    order = order[events.kind[order] != Kind.LAYER]
    after, before = order[:-1], order[1:]
    kept = events.block[after] == events.block[before]
    kept &= events.bytes[after] >= MIB
    kept &= (after - step.start < peak) & (before - step.start > peak)
    # In the order of the events, so that equal scores keep it.
    return [
        Candidate(int(a) - step.start, int(b) - step.start, int(events.bytes[a]))
        for a, b in sorted(zip(after[kept], before[kept], strict=True))
    ]
