"""Questions about a step that need no hardware: the least budget, its time, a faster link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfswap.machine import Machine
from tfswap.planners import portfolio
from tfswap.planners.bound import least_wait_ns
from tfswap.planners.decision import BudgetTooSmall
from tfswap.timeline import Timeline, peak_load


@dataclass(frozen=True)
class Answer:
    """A step under a budget.

    Attributes:
        budget_bytes: what the load may reach.
        link: name of the link.
        policy: what made the plan; "" if the step fits as it is or there is no plan.
        peak_bytes: the plan's peak; None if no plan meets the budget.
        step_ns: duration of the step; None likewise.
        least_step_ns: no plan of swaps is faster.
        bytes_out, bytes_in: traffic of a step.
        swaps: how many tensors' absences are used.
        problem: why there is no plan; "" if there is one.
    """

    budget_bytes: int
    link: str
    policy: str = ""
    peak_bytes: int | None = None
    step_ns: int | None = None
    least_step_ns: int | None = None
    bytes_out: int = 0
    bytes_in: int = 0
    swaps: int = 0
    problem: str = ""


def least_budget_bytes(timeline: Timeline, machine: Machine) -> int:
    """The lowest peak that swaps can reach, however long they take."""
    try:
        return int(portfolio.POLICIES["greedy"](timeline, machine, 1).result.peak_bytes)
    except BudgetTooSmall as error:
        return error.floor_bytes


def at_budget(
    timeline: Timeline,
    machine: Machine,
    budget_bytes: int,
    policy: str = portfolio.AUTO,
    planning_time_s: float = portfolio.PLANNING_TIME_S,
) -> Answer:
    """The step under a budget.

    Raises:
        ValueError: there is no such policy, or it cannot plan this timeline.
    """
    waits_ns = least_wait_ns(timeline, machine, budget_bytes)
    answer = Answer(budget_bytes, machine.name, least_step_ns=timeline.step_ns + waits_ns)
    try:
        decision = portfolio.plan(
            policy, timeline, machine, budget_bytes, planning_time_s=planning_time_s
        )
    except BudgetTooSmall as error:
        return replace(answer, least_step_ns=None, problem=str(error))
    result = decision.result
    copied_ns = machine.copy_ns(result.bytes_out, result.bytes_in)
    return replace(
        answer,
        policy=decision.policy if decision.swaps else "",
        peak_bytes=result.peak_bytes,
        step_ns=result.step_ns + copied_ns,
        bytes_out=result.bytes_out,
        bytes_in=result.bytes_in,
        swaps=len(decision.swaps),
    )


def with_faster_links(
    timeline: Timeline,
    machine: Machine,
    budget_bytes: int,
    factors: Sequence[float] = (2.0, 4.0),
    policy: str = portfolio.AUTO,
    planning_time_s: float = portfolio.PLANNING_TIME_S,
) -> list[Answer]:
    """The step under the same budget, with a link so many times as fast."""
    answers = []
    for factor in factors:
        faster = replace(
            machine,
            name=f"{machine.name} x {factor:g}",
            out_bytes_per_s=machine.out_bytes_per_s * factor,
            in_bytes_per_s=machine.in_bytes_per_s * factor,
        )
        answers.append(at_budget(timeline, faster, budget_bytes, policy, planning_time_s))
    return answers


def budgets_between(timeline: Timeline, machine: Machine, count: int = 6) -> list[int]:
    """Budgets from just below the peak down to the least that works."""
    peak, least = peak_load(timeline), least_budget_bytes(timeline, machine)
    if least >= peak:
        return []
    # The least is rounded up to a MiB: to the byte, plans have no room at all.
    least = min(-(-least // (1 << 20)) << 20, peak)
    return [int(peak - (peak - least) * (i + 1) / count) for i in range(count)]
