"""Questions about a step that need no hardware: smallest budget, step time, a faster link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tfswap.machine.machine import Machine
from tfswap.planning.least_budget import with_swaps
from tfswap.planning.planners import portfolio
from tfswap.planning.planners.bound import least_wait_ns
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.step.timeline import Timeline, peak_load


@dataclass(frozen=True)
class Answer:
    """A step under a budget.

    Attributes:
        budget_bytes: upper limit of the load.
        link: name of the link.
        policy: name of the policy that made the plan; "" if the step fits without swaps or there is
            no plan.
        peak_bytes: the plan's peak; None if no plan meets the budget.
        step_ns: duration of the step; None if no plan meets the budget.
        least_step_ns: lower bound on the step time of any plan of swaps; None if no plan meets the
            budget.
        bytes_out, bytes_in: traffic per step.
        swaps: number of absences used.
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
    """Return the lowest peak that swaps can reach, whatever time they take."""
    return with_swaps(timeline, machine).bytes


def at_budget(
    timeline: Timeline,
    machine: Machine,
    budget_bytes: int,
    policy: str = portfolio.AUTO,
    planning_time_s: float = portfolio.PLANNING_TIME_S,
) -> Answer:
    """Plan and simulate the step under a budget.

    Raises:
        ValueError: the policy is unknown, or cannot plan this timeline.
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
    """Plan and simulate the step under the same budget with faster links, one answer per factor."""
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
    """Return budgets from just below the peak down to the smallest that works."""
    peak, least = peak_load(timeline), least_budget_bytes(timeline, machine)
    if least >= peak:
        return []
    # Round up to a MiB: a budget exact to the byte leaves plans no freedom.
    least = min(-(-least // (1 << 20)) << 20, peak)
    return [int(peak - (peak - least) * (i + 1) / count) for i in range(count)]


def largest_batch(peak_bytes: Callable[[int], int], memory_bytes: int, first: int = 1) -> int:
    """Return the largest batch whose peak fits the memory; 0 if a batch of one does not fit.

    The peak grows almost linearly with the batch. Guesses alternate between linear interpolation
    through the two closest known batches and bisection. The peaks of the result and of its
    successor are known.

    Args:
        peak_bytes: The peak at a batch.
        memory_bytes: Upper limit of the peak.
        first: The first guess.
    """
    known: dict[int, int] = {}

    def fits(batch: int) -> bool:
        if batch not in known:
            known[batch] = peak_bytes(batch)
        return known[batch] <= memory_bytes

    below, above = 0, 0
    guess = max(first, 1)
    bisect = False
    while not above or above - below > 1:
        if fits(guess):
            below = guess
        else:
            above = guess
        if not above:
            guess = 2 * below
            continue
        closest = sorted(known, key=lambda batch: abs(known[batch] - memory_bytes))[:2]
        if bisect or len(closest) < 2 or known[closest[0]] == known[closest[1]]:
            guess = (below + above) // 2
        else:
            slope = (known[closest[1]] - known[closest[0]]) / (closest[1] - closest[0])
            guess = closest[0] + int((memory_bytes - known[closest[0]]) // slope)
            guess = min(max(guess, below + 1), above - 1)
        bisect = not bisect
    return below
