"""Capuchin: swap what is idle longest, recompute what is cheap, adjust prefetches by feedback.

Source: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS 2020,
section 4. For a tensor of s bytes evicted after one access and needed by the next:

* swap time = s / bandwidth
* FT, free time = (needed - swap time in) - (evicted + swap time out)
* candidates: more than one access, and alive in the peak period (the load is above the budget);
  the largest FT first: hidden swaps while there are any, then the least overhead (-FT)
* in-trigger: the access at needed - swap time, but not inside the peak period; if the access still
  waits, the trigger moves earlier by 5 % of the swap time, from iteration to iteration
* without hidden swaps left: the swap with the least wait or the recomputation with the least time,
  whichever costs less per byte (MSPS, memory saving per second); recomputations start from the
  nearest live sources, and candidates are evaluated again, since these sources must be kept

Departures: the feedback runs in the simulator, up to 40 iterations; a copy-out ends before the op
at which the load would exceed the budget (the paper stops an allocation); costs are compared per
byte (the paper: per tensor); without a dataflow in the timeline, nothing is recomputed.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from tfswap.machine.link import Link
from tfswap.planning.planners.anchors import PlacementRequest, swaps_for
from tfswap.planning.planners.decision import MIB, Decision, budget_too_small, plan_over_budget
from tfswap.planning.planners.load import Gaps, Ints, OpLoad
from tfswap.planning.recomputation import Recomputation
from tfswap.planning.recomputer import Recomputer
from tfswap.planning.simulator import core_tiers, simulate
from tfswap.step.timeline import Timeline, peak_load

POLICY = "capuchin"

_EARLIER = 0.05
_FEEDBACK_ROUNDS = 40


def plan_swaps(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    min_bytes: int = MIB,
    deadline_s: float = math.inf,
) -> Decision:
    """Choose swaps and recomputations as Capuchin does.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: upper limit of the load.
        min_bytes: smaller buffers are not swapped. Default 1 MiB.
        deadline_s: when to stop adding recomputations and feedback rounds, in
            ``time.monotonic()``'s time. Default: never.

    Raises:
        BudgetTooSmall: if all candidates together do not bring the load below the budget.
    """
    if peak_load(timeline) <= budget_bytes:
        return Decision(POLICY, (), simulate(timeline, (), machine))
    step = timeline
    while True:
        choice = _Choice(step, machine, budget_bytes, min_bytes)
        recomputation = choice.next_recomputation() if time.monotonic() < deadline_s else None
        if recomputation is None:
            break
        recomputer = Recomputer(step)
        recomputer.apply(recomputation)
        step = recomputer.timeline()
    load, gaps, in_ns = choice.swaps()
    decision = _with_feedback(step, machine, budget_bytes, load, gaps, in_ns, deadline_s)
    return decision if step is timeline else replace(decision, timeline=step)


class _Choice:
    """Swaps in the order in which they are chosen, and the next recomputation."""

    def __init__(
        self, timeline: Timeline, machine: Link, budget_bytes: int, min_bytes: int
    ) -> None:
        link = core_tiers(machine)[0]
        self._timeline = timeline
        self._budget_bytes = budget_bytes
        self._load = load = OpLoad.of(timeline)
        gaps = Gaps.of(timeline, load, min_bytes)
        self._gaps = gaps.take(np.flatnonzero(gaps.areas(load.bytes > budget_bytes)))
        out_ns = [link.out_duration_ns(int(b)) for b in self._gaps.bytes]
        in_ns = [link.in_duration_ns(int(b)) for b in self._gaps.bytes]
        self._in_ns = np.array(in_ns, dtype=np.int64)
        self._free_ns = self._gaps.duration_ns - np.array(out_ns, dtype=np.int64) - self._in_ns
        self._current = load.bytes.copy()
        self._over_budget_parts = int(np.count_nonzero(self._current > budget_bytes))
        self._chosen: list[int] = []
        self._order = np.argsort(-self._free_ns, kind="stable").tolist()

    def next_recomputation(self) -> Recomputation | None:
        """Take hidden swaps; then return a recomputation if it costs less than the next swap."""
        self._take(hidden=True)
        if not self._over_budget_parts or self._timeline.dataflow is None:
            return None
        best, best_ns = None, math.inf
        recomputer = Recomputer(self._timeline)
        chosen = set(self._chosen)
        for i in self._order:
            if i in chosen or not self._parts_over_budget(i):
                continue
            found = recomputer.find(int(self._gaps.absence[i]))
            if found is None or found.freed_bytes <= 0:
                continue
            ns_per_byte = found.cost_ns / found.freed_bytes
            if ns_per_byte < best_ns:
                best, best_ns = found, ns_per_byte
        waits = [i for i in self._order if i not in chosen and self._parts_over_budget(i)]
        if not waits:
            return best
        return best if best_ns < -self._free_ns[waits[0]] / self._gaps.bytes[waits[0]] else None

    def swaps(self) -> tuple[OpLoad, Gaps, Ints]:
        """Return the load, the gaps of all swaps, and the duration of each copy-in.

        Raises:
            BudgetTooSmall: if all candidates together are not enough.
        """
        self._take(hidden=False)
        if self._over_budget_parts:
            raise budget_too_small(self._timeline, self._budget_bytes, self._current, POLICY)
        chosen = np.array(sorted(self._chosen), dtype=np.int64)
        return self._load, self._gaps.take(chosen), self._in_ns[chosen]

    def _parts_over_budget(self, i: int) -> int:
        parts = self._gaps.parts(i, self._current)
        return sum(int(np.count_nonzero(part > self._budget_bytes)) for part in parts)

    def _take(self, hidden: bool) -> None:
        while self._order and self._over_budget_parts:
            i = self._order[0]
            if hidden and self._free_ns[i] < 0:
                return
            self._order.pop(0)
            covered = self._parts_over_budget(i)
            if not covered:
                continue  # not absent in the remaining peak period
            self._gaps.subtract(i, self._current)
            self._over_budget_parts += self._parts_over_budget(i) - covered
            self._chosen.append(i)


def _with_feedback(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    load: OpLoad,
    gaps: Gaps,
    in_ns: Ints,
    deadline_s: float,
) -> Decision:
    start_ns = load.start_ns
    gone_by = _gates(load, gaps, budget_bytes)
    lead_ns = in_ns.astype(np.float64)
    place_of = {int(absence): i for i, absence in enumerate(gaps.absence)}
    best: Decision | None = None
    for _ in range(_FEEDBACK_ROUNDS):
        begin_ns = gaps.before_start_ns - lead_ns
        begin = np.searchsorted(start_ns, begin_ns, side="right") - 1
        begin = _outside_peak(load, gaps, begin, gone_by, budget_bytes)
        requests = [
            PlacementRequest(
                int(gaps.absence[i]),
                int(gone_by[i]) - 1,
                int(begin[i]) if begin[i] < gaps.back[i] else None,
            )
            for i in range(len(gaps))
        ]
        swaps = swaps_for(timeline, requests)
        result = simulate(timeline, swaps, machine)
        within = result.peak_bytes <= budget_bytes
        if best is None or (within, -result.stall_ns) > (
            best.result.peak_bytes <= budget_bytes,
            -best.result.stall_ns,
        ):
            best = Decision(POLICY, swaps, result)
        late = {swap for _, cause, swap, _ in result.stalls if cause == "swap-in"}
        if not late or time.monotonic() > deadline_s:
            break
        for swap in late:
            i = place_of[swaps[swap].absence]
            lead_ns[i] += _EARLIER * float(in_ns[i])
    assert best is not None
    if best.result.peak_bytes > budget_bytes:
        raise plan_over_budget(timeline, budget_bytes, best.result, POLICY)
    return best


def _gates(load: OpLoad, gaps: Gaps, budget_bytes: int) -> Ints:
    """Return the part where the load would exceed the budget unless a buffer is absent."""
    current = load.bytes.copy()
    gone_by = np.minimum(gaps.gone, len(load.bytes) - 1)
    for i in np.argsort(gaps.gone, kind="stable").tolist():
        begin = int(gaps.gone[i])
        end = len(current) if gaps.crosses[i] else int(gaps.back[i])
        over = np.flatnonzero(current[begin:end] > budget_bytes)
        stop = begin + int(over[0]) if len(over) else end - 1
        gone_by[i] = max(min(stop, len(current) - 1), 1)
        gaps.subtract(i, current, gone=int(gone_by[i]))
    return gone_by


def _outside_peak(
    load: OpLoad,
    gaps: Gaps,
    begin: Ints,
    gone_by: Ints,
    budget_bytes: int,
) -> Ints:
    """Move copies-in to where there is room from then on; those needed first choose first."""
    current = gaps.subtracted(load.bytes, gone_by)
    begin = begin.copy()
    for i in np.argsort(gaps.before_start_ns, kind="stable").tolist():
        first = 0 if gaps.crosses[i] else int(gone_by[i])
        back = int(gaps.back[i])
        begin[i] = min(max(int(begin[i]), first), back)
        over = np.flatnonzero(current[begin[i] : back] + gaps.bytes[i] > budget_bytes)
        if len(over):
            begin[i] += int(over[-1]) + 1
        current[begin[i] : back] += gaps.bytes[i]
    return begin
