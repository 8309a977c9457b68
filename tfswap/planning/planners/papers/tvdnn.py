"""tvDNN's heuristic schedule: swap out what is needed last, copy in as early as possible.

Source: Park, Cho, Jung, Lee, "tvDNN: GPU memory virtualization for deep learning with memory object
sectioning", PPoPP 2018, a poster that mentions a heuristic without describing it. This is a
reconstruction by Belady's rule: where the load exceeds the budget, the buffer that is needed last
is swapped out; it is copied in as early as memory permits, those needed first before others.
"""

from __future__ import annotations

import numpy as np

from tfswap.machine.link import Link
from tfswap.planning.planners.anchors import PlacementRequest, swaps_for
from tfswap.planning.planners.decision import MIB, Decision, budget_too_small, plan_over_budget
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.planning.simulator import simulate
from tfswap.step.timeline import Timeline, peak_load


def plan_heuristic(
    timeline: Timeline, machine: Link, budget_bytes: int, *, min_bytes: int = MIB
) -> Decision:
    """Plan with ``tvdnn_heuristic``.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: upper limit of the load.
        min_bytes: smaller buffers are not swapped. Default 1 MiB.

    Raises:
        BudgetTooSmall: if the load is above the budget where nothing more can be swapped out.
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
            raise budget_too_small(timeline, budget_bytes, current, policy)
        i = max(here, key=lambda i: (int(needed_ns[i]), int(gaps.bytes[i])))
        begins_here = not gaps.crosses[i] or gaps.gone[i] <= part
        gone_by[i] = max(part if begins_here else int(gaps.gone[i]), 1)
        # A gap across the step's end that covers this part at its other end is copied out at once.
        gaps.subtract(i, current, gone=gone_by[i])

    requests = []
    for i in sorted(gone_by, key=lambda i: int(gaps.before_start_ns[i])):
        first = 0 if gaps.crosses[i] else gone_by[i]
        back = int(gaps.back[i])
        over = np.flatnonzero(current[first:back] + gaps.bytes[i] > budget_bytes)
        begin = first + (int(over[-1]) + 1 if len(over) else 0)
        current[begin:back] += gaps.bytes[i]
        gate = gone_by[i] - 1 if gone_by[i] < len(current) else None
        requests.append(
            PlacementRequest(int(gaps.absence[i]), gate, begin if begin < back else None)
        )
    swaps = swaps_for(timeline, requests)
    result = simulate(timeline, swaps, machine)
    if result.peak_bytes > budget_bytes:
        raise plan_over_budget(timeline, budget_bytes, result, policy)
    return Decision(policy, swaps, result)
