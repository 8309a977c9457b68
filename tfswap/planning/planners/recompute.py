"""Tensors are made again, none moves: the most memory at the peak for the least time.

Source: Peng et al., "Capuchin", ASPLOS 2020, section 4.3 (MSPS, memory saving per second): while
the load is above the budget, of the tensors that are there at the peak and not used then, the one
goes that frees the most bytes for each second that its making takes; what it is made from counts
against it, if that has to stay for it. What stays so may be made again in turn, so chains are as
long as they pay. Departure: ours ends when the budget is kept (theirs does this for what swapping
leaves).
"""

from __future__ import annotations

import math
import time

import numpy as np

from tfswap.machine.link import Link
from tfswap.planning.planners.decision import MIB, Decision, too_small
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.planning.recompute import Remaker, Remaking
from tfswap.planning.simulator import simulate
from tfswap.step.timeline import Timeline

POLICY = "recompute"


def plan_recomputes(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    min_bytes: int = MIB,
    deadline_s: float = math.inf,
) -> Decision:
    """Choose what is made again so that the step stays within the budget.

    Args:
        timeline: one unswapped step, with its dataflow.
        machine: speeds of the link; nothing uses it.
        budget_bytes: what the load may reach.
        min_bytes: smaller buffers stay. Default 1 MiB.
        deadline_s: of the monotonic clock; the search gives up then. Default: never.

    Raises:
        BudgetTooSmall: if the budget is not kept whatever is made again, or time is over.
        ValueError: the timeline has no dataflow.
    """
    load = OpLoad.of(timeline)
    while load.bytes[load.peak] > budget_bytes:
        found = best_at_the_peak(timeline, load, min_bytes)
        if found is None or time.monotonic() > deadline_s:
            raise too_small(timeline, budget_bytes, load.bytes, POLICY)
        remaker = Remaker(timeline)
        remaker.apply(found)
        timeline = remaker.timeline()
        load = OpLoad.of(timeline)
    return Decision(POLICY, (), simulate(timeline, (), machine), timeline=timeline)


def best_at_the_peak(
    timeline: Timeline, load: OpLoad, min_bytes: int, kept: frozenset[str] = frozenset()
) -> Remaking | None:
    """What frees the most memory at the peak for its time; None if nothing does.

    Args:
        timeline: the step.
        load: of it.
        min_bytes: smaller buffers stay.
        kept: tensors that are not to be made again.
    """
    gaps = Gaps.of(timeline, load, min_bytes)
    remaker = Remaker(timeline)
    best, best_rate = None, 0.0
    for i in np.flatnonzero(gaps.cover(load.peak)).tolist():
        place = int(gaps.absence[i])
        remaking = None if timeline.absences[place].tensor in kept else remaker.find(place)
        if remaking is None:
            continue
        rate = remaking.freed_bytes / max(remaking.cost_ns, 1)
        if rate > best_rate:
            best, best_rate = remaking, rate
    return best
