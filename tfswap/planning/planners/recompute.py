"""Recompute only, no swaps: free the most memory at the peak for the least time.

Source: Peng et al., "Capuchin", ASPLOS 2020, section 4.3 (MSPS, memory saving per second): while
the load is above the budget, recompute the tensor that frees the most bytes per second of its
recomputation, among the tensors that are in memory at the peak and not used there. Sources that
must be kept for it count against it. Kept sources may be recomputed in turn, so lineages grow as
long as that pays. Departure: the loop ends when the budget is kept (the paper applies it to what
remains after swapping).
"""

from __future__ import annotations

import math
import time

import numpy as np

from tfswap.machine.link import Link
from tfswap.planning.planners.decision import MIB, Decision, budget_too_small
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.planning.recomputation import Recomputation
from tfswap.planning.recomputer import Recomputer
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
    """Choose what is recomputed so that the step stays within the budget.

    Args:
        timeline: one unswapped step, with its dataflow.
        machine: speeds of the link; unused.
        budget_bytes: upper limit of the load.
        min_bytes: smaller buffers are not recomputed. Default 1 MiB.
        deadline_s: when the search gives up, in ``time.monotonic()``'s time. Default: never.

    Raises:
        BudgetTooSmall: if no recomputation keeps the budget, or the deadline has passed.
        ValueError: the timeline has no dataflow.
    """
    load = OpLoad.of(timeline)
    while load.bytes[load.peak] > budget_bytes:
        found = best_at_peak(timeline, load, min_bytes)
        if found is None or time.monotonic() > deadline_s:
            raise budget_too_small(timeline, budget_bytes, load.bytes, POLICY)
        recomputer = Recomputer(timeline)
        recomputer.apply(found)
        timeline = recomputer.timeline()
        load = OpLoad.of(timeline)
    return Decision(POLICY, (), simulate(timeline, (), machine), timeline=timeline)


def best_at_peak(
    timeline: Timeline, load: OpLoad, min_bytes: int, kept: frozenset[str] = frozenset()
) -> Recomputation | None:
    """Return the recomputation that frees the most memory per time at the peak, if any.

    Args:
        timeline: the step.
        load: of the step.
        min_bytes: smaller buffers are not recomputed.
        kept: tensors that must not be recomputed.
    """
    gaps = Gaps.of(timeline, load, min_bytes)
    recomputer = Recomputer(timeline)
    best, best_rate = None, 0.0
    for i in np.flatnonzero(gaps.cover(load.peak)).tolist():
        place = int(gaps.absence[i])
        found = None if timeline.absences[place].tensor in kept else recomputer.find(place)
        if found is None:
            continue
        rate = found.freed_bytes / max(found.cost_ns, 1)
        if rate > best_rate:
            best, best_rate = found, rate
    return best
