"""TENSILE for one job: the largest tensors at the peak leave early and come back late.

Source: Zhang, Wang et al., "TENSILE: A Tensor granularity dynamic GPU memory scheduling method
towards multiple dynamic workloads system", arXiv 2105.13336, and the first author's released code.

::

    repeat
        find the peak and what is in memory there
        for each tensor there, largest first:
            the copy-out takes the earliest free gap of the link between the tensor's making and
            the peak; the copy-in the latest free gap before the next use; if one does not fit, the
            next absence is tried
    until nothing moves any more
    while that is not enough: of the tensors at the peak that do not move, the one that is largest
        for the time of its making is made again; then all of the above again

The link is one for both directions, as in their plan. Departures: it stops when the peak is within
the budget (they always minimise it, and have none); a copy-out does not hold the next op up (theirs
waits); weights and optimiser state across iterations only where the timeline has such absences;
after something is made again, swaps are chosen anew (theirs stay); what is made again may take
several ops (theirs: the one that made it), and nothing is where the timeline has no dataflow.
"""

from __future__ import annotations

import bisect

import numpy as np

from tfswap.machine.link import Link
from tfswap.planning.planners.anchors import Wish, swaps_for
from tfswap.planning.planners.decision import MIB, Decision, over_budget
from tfswap.planning.planners.load import Gaps, Ints, OpLoad
from tfswap.planning.recompute import Remaker
from tfswap.planning.simulator import core_tiers, simulate
from tfswap.step.timeline import Timeline, peak_load

POLICY = "tensile"


def plan_swaps(
    timeline: Timeline, machine: Link, budget_bytes: int, *, min_bytes: int = MIB
) -> Decision:
    """Choose swaps, and what is made again, as TENSILE does for one job.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: the search ends when the load is within it.
        min_bytes: smaller buffers stay. Default 1 MiB (theirs has no such limit).

    Raises:
        BudgetTooSmall: if nothing more can move and the load is still above the budget.
    """
    if peak_load(timeline) <= budget_bytes:
        return Decision(POLICY, (), simulate(timeline, (), machine))
    step = timeline
    while True:
        used, gaps, current = _swapped(step, machine, budget_bytes, min_bytes)
        if current.max() <= budget_bytes:
            break
        further = _made_again(step, gaps, set(used), current, budget_bytes)
        if further is step:
            break
        step = further
    swaps = swaps_for(step, used.values())
    result = simulate(step, swaps, machine)
    if result.peak_bytes > budget_bytes:
        raise over_budget(step, budget_bytes, result, POLICY)
    return Decision(POLICY, swaps, result, timeline=None if step is timeline else step)


def _made_again(
    timeline: Timeline, gaps: Gaps, moving: set[int], current: Ints, budget_bytes: int
) -> Timeline:
    """The step with as much made again as is too much at the peak; itself if nothing can be."""
    if timeline.dataflow is None:
        return timeline
    remaker = Remaker(timeline)
    at_peak = np.flatnonzero(gaps.cover(int(np.argmax(current)))).tolist()
    found = [remaker.find(int(gaps.absence[i])) for i in at_peak if i not in moving]
    offers = [r for r in found if r is not None and r.freed_bytes > 0]
    if not offers:
        return timeline
    remaker.apply(max(offers, key=lambda r: r.freed_bytes / max(r.cost_ns, 1)))
    return remaker.timeline()


def _swapped(
    timeline: Timeline, machine: Link, budget_bytes: int, min_bytes: int
) -> tuple[dict[int, Wish], Gaps, Ints]:
    """What moves, by the place of its gap; the gaps, and the load with that."""
    link = core_tiers(machine)[0]
    load = OpLoad.of(timeline)
    gaps = Gaps.of(timeline, load, min_bytes)
    ready = gaps.made_ns
    current = load.bytes.copy()
    busy = _Link()
    used: dict[int, Wish] = {}
    tried: set[int] = set()
    while current.max() > budget_bytes:
        peak = int(np.argmax(current))
        peak_ns = int(load.start_ns[peak])
        here = [i for i in np.flatnonzero(gaps.cover(peak)).tolist() if i not in tried]
        if not here:
            break
        i = max(here, key=lambda i: (int(gaps.bytes[i]), -i))
        tried.add(i)
        size = int(gaps.bytes[i])
        need_ns = int(gaps.before_start_ns[i])
        if gaps.crosses[i] and need_ns <= int(gaps.after_end_ns[i]):
            need_ns += timeline.step_ns
        out_ns, in_ns = link.out_duration_ns(size), link.in_duration_ns(size)
        left_by = max(peak_ns, int(gaps.after_end_ns[i])) if gaps.gone[i] <= peak else need_ns
        out_start = busy.earliest(int(ready[i]), left_by, out_ns)
        if out_start is None:
            continue
        gone_ns = max(out_start + out_ns, int(gaps.after_end_ns[i]))
        busy.take(out_start, out_ns)
        in_start = busy.latest(gone_ns, need_ns, in_ns)
        if in_start is None:
            busy.give_back(out_start)
            continue
        busy.take(in_start, in_ns)
        gone = int(np.searchsorted(load.start_ns, gone_ns, side="left"))
        begin_ns = in_start - timeline.step_ns if in_start >= timeline.step_ns else in_start
        back = max(int(np.searchsorted(load.start_ns, begin_ns, side="right")) - 1, 0)
        if gaps.crosses[i] and in_start < timeline.step_ns:
            back = 0
        gaps.subtract(i, current, gone=gone, back=back)
        used[i] = Wish(
            int(gaps.absence[i]),
            gone - 1 if 1 <= gone < len(load.start_ns) else None,
            back if back < gaps.back[i] else None,
        )
    return used, gaps, current


class _Link:
    """When the one link is taken: stretches that do not overlap, by start."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int]] = []

    def take(self, start_ns: int, duration_ns: int) -> None:
        bisect.insort(self._taken, (start_ns, start_ns + duration_ns))

    def give_back(self, start_ns: int) -> None:
        self._taken = [stretch for stretch in self._taken if stretch[0] != start_ns]

    def earliest(self, from_ns: int, to_ns: int, duration_ns: int) -> int | None:
        """Start of the earliest free stretch of this length inside [from, to]."""
        at = from_ns
        for start, end in self._taken:
            if end <= at:
                continue
            if start - at >= duration_ns:
                break
            at = end
        return at if at + duration_ns <= to_ns else None

    def latest(self, from_ns: int, to_ns: int, duration_ns: int) -> int | None:
        """Start of the latest free stretch of this length inside [from, to]."""
        end_at = to_ns
        for start, end in reversed(self._taken):
            if start >= end_at:
                continue
            if end_at - end >= duration_ns:
                break
            end_at = start
        return end_at - duration_ns if end_at - duration_ns >= from_ns else None
