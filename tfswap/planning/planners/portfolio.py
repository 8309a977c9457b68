"""All planners by name; ``auto`` takes the best plan in the simulator and improves it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tfswap.machine.link import Link
from tfswap.planning.planners import greedy, joint, recompute
from tfswap.planning.planners.decision import BudgetTooSmall, Decision, cost
from tfswap.planning.planners.improve import (
    NEGLIGIBLE_WAIT,
    improve_plan,
    keeps_budget_on_slow_link,
)
from tfswap.planning.planners.papers import autoswap, capuchin, tensile, tvdnn, tvdnn_ilp, vdnn
from tfswap.step.timeline import Timeline

PLANNING_TIME_S = 1.0


class Planner(Protocol):
    """A planner: a pure function of the step, the machine and the budget."""

    def __call__(self, timeline: Timeline, machine: Link, budget_bytes: int) -> Decision: ...


POLICIES: dict[str, Planner] = {
    greedy.POLICY: greedy.plan_swaps,
    **{
        f"{autoswap.POLICY}:{score}": partial(autoswap.plan_swaps, score=score)
        for score in autoswap.SCORES
    },
    "vdnn_all": vdnn.plan_all,
    "vdnn_conv": vdnn.plan_conv,
    "vdnn_dyn": vdnn.plan_dyn,
    "tvdnn_heuristic": tvdnn.plan_heuristic,
    tvdnn_ilp.POLICY: tvdnn_ilp.plan_ilp,
    tensile.POLICY: tensile.plan_swaps,
    capuchin.POLICY: capuchin.plan_swaps,
    recompute.POLICY: recompute.plan_recomputes,
    joint.POLICY: joint.plan_jointly,
}

# These search for seconds; the others call the simulator only a few times.
_TOO_SLOW_FOR_AUTO = frozenset({f"{autoswap.POLICY}:bo", tvdnn_ilp.POLICY})
# Its four parts are compared anyway.
_COVERED = frozenset({f"{autoswap.POLICY}:best"})

NEED_DATAFLOW = frozenset({recompute.POLICY, joint.POLICY})
"""Policies that need the timeline's dataflow."""

_SMALLER_BUDGETS = (0.97, 0.94, 0.9, 0.85)
# Search time for recomputations, relative to that for swaps.
_RECOMPUTE_TIME_FACTOR = 2.0
# Number of plans that the first local search tries.
_FIRST_TRIES = 4000

AUTO = "auto"
"""The name of the best of all planners."""


def plan(
    policy: str,
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    planning_time_s: float = PLANNING_TIME_S,
    log: Callable[[str], None] | None = None,
    only_swaps: bool = False,
) -> Decision:
    """Plan one step with a named planner, or with the best one.

    Args:
        policy: a key of ``POLICIES``, or ``"auto"``: the least step time, then the least traffic.
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        planning_time_s: search time of ``"auto"``; more is never worse. Default 1 s.
        log: called with progress lines if planning takes over a second.
        only_swaps: ``"auto"`` recomputes nothing.

    Raises:
        ValueError: if the policy is unknown, or cannot plan this timeline.
        BudgetTooSmall: if the planner, for ``"auto"`` every planner, cannot meet the budget.
    """
    if policy != AUTO:
        if policy not in POLICIES:
            allowed = ", ".join(repr(name) for name in (AUTO, *POLICIES))
            raise ValueError(f"unknown policy {policy!r}: allowed are {allowed}")
        return POLICIES[policy](timeline, machine, budget_bytes)

    step, timeline = timeline, timeline.without_dataflow()
    deadline_s = time.monotonic() + planning_time_s
    enough_ns = NEGLIGIBLE_WAIT * timeline.step_ns

    def is_safe(decision: Decision) -> bool:
        return decision.result.peak_bytes <= budget_bytes and keeps_budget_on_slow_link(
            decision.swaps, timeline, machine, budget_bytes
        )

    decisions: list[Decision] = []
    failures: list[BudgetTooSmall] = []
    greedy_s = 0.0
    for name, planner in POLICIES.items():
        if name in _TOO_SLOW_FOR_AUTO | _COVERED | NEED_DATAFLOW:
            continue
        # The first planner, greedy, reaches the lowest budgets: it always runs.
        if decisions and time.monotonic() > deadline_s:
            break
        if name == capuchin.POLICY:  # simulates once for each swap
            if any(d.result.stall_ns <= enough_ns and is_safe(d) for d in decisions):
                continue
            planner = partial(capuchin.plan_swaps, deadline_s=deadline_s)
        begun_s = time.monotonic()
        try:
            decisions.append(planner(timeline, machine, budget_bytes))
        except BudgetTooSmall as failure:
            # A traceback would keep all frames, and so what `fit` uses, until the next collection.
            failures.append(failure.with_traceback(None))
        except ValueError:
            if not timeline.op_types:
                continue  # vDNN needs the types of ops
            raise
        if name == greedy.POLICY:
            greedy_s = time.monotonic() - begun_s
        if decisions and not decisions[0].swaps:
            break  # the step fits without swaps
    # Prefer plans that gates enforce: real copies take longer than predicted.
    safe = [d for d in decisions if is_safe(d)]
    within = safe or [d for d in decisions if d.result.peak_bytes <= budget_bytes]
    if not within:
        try:
            raise failures[0]  # of greedy, which reaches the lowest budgets
        finally:
            failures.clear()
    best = min(within, key=lambda decision: cost(decision.result, machine))
    # The order of the searches is fixed, so more time is never worse.
    best = improve_plan(
        best, timeline, machine, budget_bytes, deadline_s, log, tries=_FIRST_TRIES, seed=1
    )
    # A plan for a smaller budget also keeps this one, and sometimes waits less.
    for part in _SMALLER_BUDGETS:
        if best.result.stall_ns == 0 or time.monotonic() + greedy_s > deadline_s:
            break
        try:
            other = greedy.plan_swaps(timeline, machine, int(budget_bytes * part))
        except BudgetTooSmall:
            break
        holds = keeps_budget_on_slow_link(other.swaps, timeline, machine, budget_bytes) or not safe
        if holds and cost(other.result, machine) < cost(best.result, machine):
            best = other
    best = improve_plan(best, timeline, machine, budget_bytes, deadline_s, log, seed=2)
    return (
        best if only_swaps else with_recomputes(best, step, machine, budget_bytes, planning_time_s)
    )


def with_recomputes(
    decision: Decision,
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    planning_time_s: float = PLANNING_TIME_S,
    log: Callable[[str], None] | None = None,
) -> Decision:
    """Return the decision, or one that recomputes some tensors instead of waiting for their copies.

    Args:
        decision: of swaps; within the budget.
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        planning_time_s: search time for other swaps; the search for recomputations takes up to
            twice as long.
        log: called with progress lines if planning takes over a second.
    """
    deadline_s = time.monotonic() + _RECOMPUTE_TIME_FACTOR * planning_time_s
    found = joint.with_recomputes(decision, timeline, machine, budget_bytes, deadline_s)
    if found.timeline is None:
        return decision
    deadline_s = time.monotonic() + planning_time_s
    return improve_plan(found, found.timeline, machine, budget_bytes, deadline_s, log, seed=3)
