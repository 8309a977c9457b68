"""All planners, by name; ``auto`` is the best of them in the simulator."""

from __future__ import annotations

from typing import Protocol

from tfswap.planners import greedy
from tfswap.planners.decision import BudgetTooSmall, Decision
from tfswap.simulator import Link
from tfswap.timeline import Timeline


class Planner(Protocol):
    """A planner: a pure function of the step, the machine and the budget."""

    def __call__(self, timeline: Timeline, machine: Link, budget_bytes: int) -> Decision: ...


POLICIES: dict[str, Planner] = {greedy.POLICY: greedy.plan_swaps}


def plan(policy: str, timeline: Timeline, machine: Link, budget_bytes: int) -> Decision:
    """Plan one step with a named planner, or with the best one.

    Args:
        policy: a key of ``POLICIES``, or ``"auto"``: the least step time, then the least traffic.
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.

    Raises:
        ValueError: if the policy is not known.
        BudgetTooSmall: if the planner, for ``"auto"`` every planner, cannot meet the budget.
    """
    if policy != "auto":
        if policy not in POLICIES:
            allowed = ", ".join(repr(name) for name in ("auto", *POLICIES))
            raise ValueError(f"unknown policy {policy!r}: allowed are {allowed}")
        return POLICIES[policy](timeline, machine, budget_bytes)

    decisions: list[Decision] = []
    failures: list[BudgetTooSmall] = []
    for planner in POLICIES.values():
        try:
            decisions.append(planner(timeline, machine, budget_bytes))
        except BudgetTooSmall as failure:
            failures.append(failure)
    if not decisions:
        raise min(failures, key=lambda failure: failure.floor_bytes)
    return min(decisions, key=_cost)


def _cost(decision: Decision) -> tuple[int, int]:
    return (decision.result.step_ns, decision.result.bytes_out + decision.result.bytes_in)
