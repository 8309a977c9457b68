"""All planners, by name; ``auto`` is the best of them in the simulator, improved."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tfswap.machine.link import Link
from tfswap.planning.planners import greedy, joint, recompute
from tfswap.planning.planners.decision import BudgetTooSmall, Decision, cost
from tfswap.planning.planners.improve import holds_on_a_slow_link, improved
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

# The simulator calls of the others are few; these search for seconds.
_TOO_SLOW_FOR_AUTO = frozenset({f"{autoswap.POLICY}:bo", tvdnn_ilp.POLICY})
# What the best of four is made of is compared anyway.
_COVERED = frozenset({f"{autoswap.POLICY}:best"})

NEED_DATAFLOW = frozenset({recompute.POLICY, joint.POLICY})
"""Those that plan only steps of which it is known what ops read."""

_SMALLER_BUDGETS = (0.97, 0.94, 0.9, 0.85)
# How much longer than for swaps it is searched for what had better be made again.
_RELIEF = 2.0
# Plans that the local search tries before.
_FIRST_TRIES = 4000

AUTO = "auto"
"""The name of the best of all."""


def plan(
    policy: str,
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    planning_time_s: float = PLANNING_TIME_S,
    say: Callable[[str], None] | None = None,
    only_swaps: bool = False,
) -> Decision:
    """Plan one step with a named planner, or with the best one.

    Args:
        policy: a key of ``POLICIES``, or ``"auto"``: the least step time, then the least traffic.
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        planning_time_s: how long ``"auto"`` may search; more is never worse. Defaults to 1 s.
        say: called with a line of progress where planning takes over a second.
        only_swaps: of ``"auto"``: nothing is made again.

    Raises:
        ValueError: if the policy is not known, or cannot plan this timeline.
        BudgetTooSmall: if the planner, for ``"auto"`` every planner, cannot meet the budget.
    """
    if policy != AUTO:
        if policy not in POLICIES:
            allowed = ", ".join(repr(name) for name in (AUTO, *POLICIES))
            raise ValueError(f"unknown policy {policy!r}: allowed are {allowed}")
        return POLICIES[policy](timeline, machine, budget_bytes)

    step, timeline = timeline, timeline.only_swaps()
    deadline_s = time.monotonic() + planning_time_s
    decisions: list[Decision] = []
    failures: list[BudgetTooSmall] = []
    greedy_s = 0.0
    for name, planner in POLICIES.items():
        if name in _TOO_SLOW_FOR_AUTO | _COVERED | NEED_DATAFLOW:
            continue
        # The first is ours, and the one that reaches the lowest budgets: it always runs.
        if decisions and time.monotonic() > deadline_s:
            break
        if name == capuchin.POLICY:  # takes what time there is
            planner = partial(capuchin.plan_swaps, deadline_s=deadline_s)
        begun_s = time.monotonic()
        try:
            decisions.append(planner(timeline, machine, budget_bytes))
        except BudgetTooSmall as failure:
            failures.append(failure)
        except ValueError:
            if not timeline.op_types:
                continue  # vDNN needs the types of ops
            raise
        if name == greedy.POLICY:
            greedy_s = time.monotonic() - begun_s
        if decisions and not decisions[0].swaps:
            break  # it fits as it is
    within = [d for d in decisions if d.result.peak_bytes <= budget_bytes]
    # A plan whose gates hold is preferred: copies in real life take longer than foretold.
    safe = [d for d in within if holds_on_a_slow_link(d.swaps, timeline, machine, budget_bytes)]
    within = safe or within
    if not within:
        raise failures[0]  # ours: it reaches the lowest budgets
    best = min(within, key=lambda decision: cost(decision.result, machine))
    # The same steps in the same order, whenever time is over: more of it is never worse.
    best = improved(
        best, timeline, machine, budget_bytes, deadline_s, say, tries=_FIRST_TRIES, seed=1
    )
    # A plan for a smaller budget is one for this budget too, and sometimes waits less.
    for part in _SMALLER_BUDGETS:
        if best.result.stall_ns == 0 or time.monotonic() + greedy_s > deadline_s:
            break
        try:
            other = greedy.plan_swaps(timeline, machine, int(budget_bytes * part))
        except BudgetTooSmall:
            break
        holds = holds_on_a_slow_link(other.swaps, timeline, machine, budget_bytes) or not safe
        if holds and cost(other.result, machine) < cost(best.result, machine):
            best = other
    best = improved(best, timeline, machine, budget_bytes, deadline_s, say, seed=2)
    return best if only_swaps else relieved(best, step, machine, budget_bytes, planning_time_s)


def relieved(
    decision: Decision,
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    planning_time_s: float = PLANNING_TIME_S,
    say: Callable[[str], None] | None = None,
) -> Decision:
    """The decision, or one that makes some tensors again instead of waiting for them.

    Args:
        decision: of swaps; within the budget.
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        planning_time_s: how long to search for other swaps then; twice that for what is made again.
        say: called with a line of progress where planning takes over a second.
    """
    deadline_s = time.monotonic() + _RELIEF * planning_time_s
    found = joint.relieved(decision, timeline, machine, budget_bytes, deadline_s)
    if found.timeline is None:
        return decision
    deadline_s = time.monotonic() + planning_time_s
    return improved(found, found.timeline, machine, budget_bytes, deadline_s, say, seed=3)
