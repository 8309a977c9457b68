"""Capuchin's swapping: what is idle longest leaves first; prefetches learn from the waits.

Source: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS 2020,
section 4. For a tensor of s bytes evicted after one access and needed by the next:

* swap time = s / bandwidth
* FT, free time = (needed - swap time in) - (evicted + swap time out)
* candidates: more than one access, and alive in the peak period (the load is above the budget);
  the largest FT first: hidden swaps while there are any, then the least overhead (-FT)
* in-trigger: the access at needed - swap time, but not inside the peak period; if the access still
  waits, the trigger moves earlier by 5 % of the swap time, from iteration to iteration

Its recomputation is not here. Departures: the feedback runs in the simulator, up to 40 iterations;
a swap-out ends before the op at which the load would exceed the budget (theirs stops an
allocation).
"""

from __future__ import annotations

import math
import time

import numpy as np

from tfswap.planners.anchors import Wish, swaps_for
from tfswap.planners.decision import MIB, Decision, over_budget, too_small
from tfswap.planners.load import Gaps, OpLoad
from tfswap.simulator import Link, core_tiers, simulate
from tfswap.timeline import Timeline, peak_load

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
    """Choose swaps as Capuchin does, without recomputation.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: what the load may reach.
        min_bytes: smaller buffers stay. Default 1 MiB.
        deadline_s: of the monotonic clock; the feedback ends then. Default: never.

    Raises:
        BudgetTooSmall: if all candidates together do not bring the load below the budget.
    """
    if peak_load(timeline) <= budget_bytes:
        return Decision(POLICY, (), simulate(timeline, (), machine))
    link = core_tiers(machine)[0]
    load = OpLoad.of(timeline)
    gaps = Gaps.of(timeline, load, min_bytes)
    gaps = gaps.take(np.flatnonzero(gaps.areas(load.bytes > budget_bytes)))
    out_ns = np.array([link.out_duration_ns(int(b)) for b in gaps.bytes], dtype=np.int64)
    in_ns = np.array([link.in_duration_ns(int(b)) for b in gaps.bytes], dtype=np.int64)
    free_ns = gaps.duration_ns - out_ns - in_ns

    current = load.bytes.copy()
    crowded = int(np.count_nonzero(current > budget_bytes))
    chosen: list[int] = []
    for i in np.argsort(-free_ns, kind="stable").tolist():
        if crowded == 0:
            break
        inside = sum(int(np.count_nonzero(part > budget_bytes)) for part in gaps.parts(i, current))
        if not inside:
            continue  # the peak period is over where it is absent
        gaps.subtract(i, current)
        still = sum(int(np.count_nonzero(part > budget_bytes)) for part in gaps.parts(i, current))
        crowded += still - inside
        chosen.append(i)
    if crowded:
        raise too_small(timeline, budget_bytes, current, POLICY)
    gaps = gaps.take(np.array(sorted(chosen), dtype=np.int64))
    in_ns = in_ns[sorted(chosen)]
    return _with_feedback(timeline, machine, budget_bytes, load, gaps, in_ns, deadline_s)


def _with_feedback(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    load: OpLoad,
    gaps: Gaps,
    in_ns: np.ndarray[tuple[int], np.dtype[np.int64]],
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
        begin = _outside_the_peak(load, gaps, begin, gone_by, budget_bytes)
        wishes = [
            Wish(
                int(gaps.absence[i]),
                int(gone_by[i]) - 1,
                int(begin[i]) if begin[i] < gaps.back[i] else None,
            )
            for i in range(len(gaps))
        ]
        swaps = swaps_for(timeline, wishes)
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
        raise over_budget(timeline, budget_bytes, best.result, POLICY)
    return best


def _gates(
    load: OpLoad, gaps: Gaps, budget_bytes: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The part before which each buffer must have left: where the load would pass the budget."""
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


def _outside_the_peak(
    load: OpLoad,
    gaps: Gaps,
    begin: np.ndarray[tuple[int], np.dtype[np.int64]],
    gone_by: np.ndarray[tuple[int], np.dtype[np.int64]],
    budget_bytes: int,
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Copies-in begin where there is room from then on; those needed first choose first."""
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
