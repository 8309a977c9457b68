"""Select swaps again with the known compression ratio of each tensor.

Planners choose swaps for one link and assume that each tensor is copied with its full size. About
half of the values after a ReLU are zero, so such tensors need half the link time, while tensors
that do not compress should rather stay if there is an alternative. Therefore the local search
continues after the assignment of places, with the *encoded* size of every tensor, and its swaps get
new places::

    planner ─▶ swaps ─▶ assignment ─▶ local search ─▶ other swaps ─▶ assignment ─▶ the better one
             (full size)             (encoded size)

This is not part of a paper: CSWAP decides separately for each tensor that vDNN has chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tfswap.machine.far_tier import COMPRESSED, FILE
from tfswap.planning.planners.assignment import (
    AUTO,
    Assignment,
    FarMemory,
    FarMemoryTooSmall,
    Ratios,
)
from tfswap.planning.planners.decision import Decision
from tfswap.planning.planners.improve import improve_plan
from tfswap.planning.planners.place_search import assign, fastest_forms, strip_places
from tfswap.step.timeline import Timeline


def reselect_with_codecs(
    timeline: Timeline,
    decision: Decision,
    assignment: Assignment,
    far: FarMemory,
    ratios: Ratios,
    budget_bytes: int,
    planning_time_s: float,
    log: Callable[[str], None] | None = None,
) -> tuple[Decision, Assignment]:
    """Return the decision and its assignment, or better ones.

    Args:
        timeline: one unswapped step.
        decision: a planner's choice for the host's link.
        assignment: its places. Without encoded places, or with places in the file, it is returned.
        far: the tiers.
        ratios: compression ratios of the tensors.
        budget_bytes: the load must never exceed it.
        planning_time_s: search time for swaps, and again for places, in seconds.
        log: called with a progress line about every second.
    """
    tiers = {place.tier for place in assignment.places.values()}
    if COMPRESSED not in tiers or FILE in tiers:
        return decision, assignment
    encoded = replace(decision, swaps=assignment.swaps, result=assignment.result)
    better = improve_plan(
        encoded,
        timeline,
        far.host,
        budget_bytes,
        time.monotonic() + planning_time_s,
        log,
        forms=fastest_forms(timeline, far, ratios),
    )
    if better is encoded:
        return decision, assignment
    swaps = strip_places(better.swaps)
    deadline_s = time.monotonic() + planning_time_s
    try:
        placed = assign(
            timeline,
            swaps,
            far,
            ratios,
            codec=AUTO,
            budget_bytes=budget_bytes,
            deadline_s=deadline_s,
        )
    except FarMemoryTooSmall:
        return decision, assignment
    most_bytes = max(budget_bytes, assignment.result.peak_bytes)
    if placed.result.peak_bytes > most_bytes or placed.cost_ns >= assignment.cost_ns:
        return decision, assignment
    return replace(better, swaps=swaps, result=placed.result), placed
