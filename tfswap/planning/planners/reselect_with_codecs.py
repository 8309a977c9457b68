"""Swaps chosen again, now that it is known what codecs make of each tensor.

Planners choose under one link, on which a tensor takes as long as it is large. Half of what ReLUs
leave are zeros: it crosses the link in half the time, and what cannot be made smaller had better
stay where that is another choice. So behind the assignment of places the local search goes on, with
every swap as long as its tensor is *encoded*, and places are assigned anew to what it finds::

    planner ─▶ swaps ─▶ assignment ─▶ local search ─▶ other swaps ─▶ assignment ─▶ the better one
             (the link's bytes)      (bytes as encoded)

None of the papers does: CSWAP decides about each of the tensors that vDNN chose.
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
    assign,
    forms,
    without_places,
)
from tfswap.planning.planners.decision import Decision
from tfswap.planning.planners.improve import improved
from tfswap.step.timeline import Timeline


def reselect_with_codecs(
    timeline: Timeline,
    decision: Decision,
    assignment: Assignment,
    far: FarMemory,
    ratios: Ratios,
    budget_bytes: int,
    planning_time_s: float,
    say: Callable[[str], None] | None = None,
) -> tuple[Decision, Assignment]:
    """The decision and its assignment, or better ones.

    Args:
        timeline: one unswapped step.
        decision: what a planner chose, under the host's link.
        assignment: where that goes; where nothing is encoded, or the file is needed, it stays.
        far: the tiers.
        ratios: what codecs make of the tensors.
        budget_bytes: the load must never exceed it.
        planning_time_s: how long to search for swaps, and for places, in seconds.
        say: called with a line about every second.
    """
    tiers = {place.tier for place in assignment.places.values()}
    if COMPRESSED not in tiers or FILE in tiers:
        return decision, assignment
    encoded = replace(decision, swaps=assignment.swaps, result=assignment.result)
    better = improved(
        encoded,
        timeline,
        far.host,
        budget_bytes,
        time.monotonic() + planning_time_s,
        say,
        forms=forms(timeline, far, ratios),
    )
    if better is encoded:
        return decision, assignment
    swaps = without_places(better.swaps)
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
