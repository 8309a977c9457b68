"""TENSILE for one job: the largest tensors at the peak are copied out early and in late.

Source: Zhang, Wang et al., "TENSILE: A Tensor granularity dynamic GPU memory scheduling method
towards multiple dynamic workloads system", arXiv 2105.13336, and the first author's released code.

::

    repeat
        find the peak and the tensors that are in memory there
        for each of these tensors, largest first:
            the copy-out takes the earliest free gap of the link between the tensor's production and
            the peak; the copy-in the latest free gap before the next use; if one does not fit, the
            next absence is tried
    until no tensor can be swapped any more
    while that is not enough: recompute the unswapped tensor at the peak that is largest relative to
        its recompute time; then repeat all of the above

One link serves both directions, as in the paper. Departures: it stops when the peak is within the
budget (the paper has no budget and always minimises the peak); a copy-out does not block the next
op (in the paper it does); weights and optimizer state across iterations only where the timeline has
such absences; after a recomputation, swaps are chosen again (the paper keeps them); a recomputation
may take several ops (the paper: only the producer); without a dataflow in the timeline, nothing is
recomputed.
"""

from __future__ import annotations

import bisect

import numpy as np

from tfswap.machine.link import Link
from tfswap.planning.planners.anchors import PlacementRequest, swaps_for
from tfswap.planning.planners.decision import MIB, Decision, plan_over_budget
from tfswap.planning.planners.load import Gaps, Ints, OpLoad
from tfswap.planning.recomputer import Recomputer
from tfswap.planning.simulator import core_tiers, simulate
from tfswap.step.timeline import Timeline, peak_load

POLICY = "tensile"


def plan_swaps(
    timeline: Timeline, machine: Link, budget_bytes: int, *, min_bytes: int = MIB
) -> Decision:
    """Choose swaps and recomputations as TENSILE does for one job.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: the search ends when the load is within it.
        min_bytes: smaller buffers are not swapped. Default 1 MiB (the paper has no such limit).

    Raises:
        BudgetTooSmall: if nothing more can be swapped and the load is still above the budget.
    """
    if peak_load(timeline) <= budget_bytes:
        return Decision(POLICY, (), simulate(timeline, (), machine))
    step = timeline
    while True:
        used, gaps, current = _swapped(step, machine, budget_bytes, min_bytes)
        if current.max() <= budget_bytes:
            break
        extended = _recompute_one(step, gaps, set(used), current, budget_bytes)
        if extended is step:
            break
        step = extended
    swaps = swaps_for(step, used.values())
    result = simulate(step, swaps, machine)
    if result.peak_bytes > budget_bytes:
        raise plan_over_budget(step, budget_bytes, result, POLICY)
    return Decision(POLICY, swaps, result, timeline=None if step is timeline else step)


def _recompute_one(
    timeline: Timeline, gaps: Gaps, moving: set[int], current: Ints, budget_bytes: int
) -> Timeline:
    """Return the step with one more recomputation at the peak; the same step if there is none."""
    if timeline.dataflow is None:
        return timeline
    recomputer = Recomputer(timeline)
    at_peak = np.flatnonzero(gaps.cover(int(np.argmax(current)))).tolist()
    found = [recomputer.find(int(gaps.absence[i])) for i in at_peak if i not in moving]
    options = [r for r in found if r is not None and r.freed_bytes > 0]
    if not options:
        return timeline
    recomputer.apply(max(options, key=lambda r: r.freed_bytes / max(r.cost_ns, 1)))
    return recomputer.timeline()


def _swapped(
    timeline: Timeline, machine: Link, budget_bytes: int, min_bytes: int
) -> tuple[dict[int, PlacementRequest], Gaps, Ints]:
    """Return the swaps by index of their gap, the gaps, and the load under the swaps."""
    link = core_tiers(machine)[0]
    load = OpLoad.of(timeline)
    gaps = Gaps.of(timeline, load, min_bytes)
    ready = gaps.made_ns
    current = load.bytes.copy()
    busy = _Link()
    used: dict[int, PlacementRequest] = {}
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
            busy.release(out_start)
            continue
        busy.take(in_start, in_ns)
        gone = int(np.searchsorted(load.start_ns, gone_ns, side="left"))
        begin_ns = in_start - timeline.step_ns if in_start >= timeline.step_ns else in_start
        back = max(int(np.searchsorted(load.start_ns, begin_ns, side="right")) - 1, 0)
        if gaps.crosses[i] and in_start < timeline.step_ns:
            back = 0
        gaps.subtract(i, current, gone=gone, back=back)
        used[i] = PlacementRequest(
            int(gaps.absence[i]),
            gone - 1 if 1 <= gone < len(load.start_ns) else None,
            back if back < gaps.back[i] else None,
        )
    return used, gaps, current


class _Link:
    """Busy intervals of the one link: disjoint, sorted by start."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int]] = []

    def take(self, start_ns: int, duration_ns: int) -> None:
        bisect.insort(self._taken, (start_ns, start_ns + duration_ns))

    def release(self, start_ns: int) -> None:
        self._taken = [stretch for stretch in self._taken if stretch[0] != start_ns]

    def earliest(self, from_ns: int, to_ns: int, duration_ns: int) -> int | None:
        """Return the start of the earliest free interval of this length inside [from, to]."""
        at = from_ns
        for start, end in self._taken:
            if end <= at:
                continue
            if start - at >= duration_ns:
                break
            at = end
        return at if at + duration_ns <= to_ns else None

    def latest(self, from_ns: int, to_ns: int, duration_ns: int) -> int | None:
        """Return the start of the latest free interval of this length inside [from, to]."""
        end_at = to_ns
        for start, end in reversed(self._taken):
            if start >= end_at:
                continue
            if end_at - end >= duration_ns:
                break
            end_at = start
        return end_at - duration_ns if end_at - duration_ns >= from_ns else None
