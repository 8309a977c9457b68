"""tvDNN's heuristic schedule: what is needed last leaves first, and comes back as early as it can.

Source: Park, Cho, Jung, Lee, "tvDNN: GPU memory virtualization for deep learning with memory object
sectioning", PPoPP 2018, a poster: its text says that there is a heuristic, not which. This is a
reconstruction by Belady's rule: where the load passes the budget, the buffer leaves that is needed
last; it comes back as early as memory permits, those needed first before others.
"""

from __future__ import annotations

import numpy as np

from tfswap.machine.link import Link
from tfswap.planning.planners.anchors import Wish, swaps_for
from tfswap.planning.planners.decision import MIB, Decision, over_budget, too_small
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.planning.simulator import simulate
from tfswap.step.timeline import Timeline, peak_load


def plan_heuristic(
    timeline: Timeline, machine: Link, budget_bytes: int, *, min_bytes: int = MIB
) -> Decision:
    """``tvdnn_heuristic``.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: what the load may reach.
        min_bytes: smaller buffers stay. Default 1 MiB.

    Raises:
        BudgetTooSmall: if the load is above the budget where nothing more can leave.
    """
    policy = "tvdnn_heuristic"
    if peak_load(timeline) <= budget_bytes:
        return Decision(policy, (), simulate(timeline, (), machine))
    load = OpLoad.of(timeline)
    gaps = Gaps.of(timeline, load, min_bytes)
    current = load.bytes.copy()
    gone_by: dict[int, int] = {}
    needed_ns = gaps.before_start_ns + np.where(gaps.crosses, timeline.step_ns, 0)
    while (over := np.flatnonzero(current > budget_bytes)).size:
        part = int(over[0])
        here = [i for i in np.flatnonzero(gaps.cover(part)).tolist() if i not in gone_by]
        if not here:
            raise too_small(timeline, budget_bytes, current, policy)
        i = max(here, key=lambda i: (int(needed_ns[i]), int(gaps.bytes[i])))
        begins_here = not gaps.crosses[i] or gaps.gone[i] <= part
        gone_by[i] = max(part if begins_here else int(gaps.gone[i]), 1)
        # A gap across the step's end that is needed at its other end leaves as soon as it can.
        gaps.subtract(i, current, gone=gone_by[i])

    wishes = []
    for i in sorted(gone_by, key=lambda i: int(gaps.before_start_ns[i])):
        first = 0 if gaps.crosses[i] else gone_by[i]
        back = int(gaps.back[i])
        over = np.flatnonzero(current[first:back] + gaps.bytes[i] > budget_bytes)
        begin = first + (int(over[-1]) + 1 if len(over) else 0)
        current[begin:back] += gaps.bytes[i]
        gate = gone_by[i] - 1 if gone_by[i] < len(current) else None
        wishes.append(Wish(int(gaps.absence[i]), gate, begin if begin < back else None))
    swaps = swaps_for(timeline, wishes)
    result = simulate(timeline, swaps, machine)
    if result.peak_bytes > budget_bytes:
        raise over_budget(timeline, budget_bytes, result, policy)
    return Decision(policy, swaps, result)
