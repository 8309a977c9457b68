"""SlowdownCurve: the slowdown of a job's steps as a function of its budget.

::

    slowdown
      ^
     2|  o___                   predicted by a plan for each of a few budgets; between two budgets
      |      |                  the slowdown of the smaller one applies
     1|      o________o____
      +--+------------+-----> budget
       least         peak
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from tfswap.machine.link import Link
from tfswap.planning.least_budget import with_swaps
from tfswap.planning.planners import greedy
from tfswap.planning.planners.decision import BudgetTooSmall, Decision, cost
from tfswap.planning.simulator import simulate
from tfswap.step.timeline import Timeline, peak_load

# Number of budgets to plan for, from the least one to the peak.
_POINTS = 8
# Margin for memory that plans do not predict: fragmentation, ops in a different order.
_MARGIN = 0.03
# Penalty on the slowdown at the least budget, which leaves no room for errors of the prediction.
_MIN_PENALTY = 0.25
# Assumed extra slowdown of an unknown job in half of its wanted memory.
_HALF_PENALTY = 0.5


@dataclass(frozen=True)
class SlowdownCurve:
    """Slowdown of a job's steps by budget.

    Attributes:
        budget_bytes: int[n], n at least 1; ascending. The first is the least possible budget.
        slowdowns: float[n], not ascending: step time divided by that without swaps, plus a penalty
            at the least budget.
        is_known: Whether the curve comes from a profiled step.
    """

    budget_bytes: tuple[int, ...]
    slowdowns: tuple[float, ...]
    is_known: bool = True

    def __post_init__(self) -> None:
        budgets, slowdowns = self.budget_bytes, self.slowdowns
        if not budgets or len(budgets) != len(slowdowns):
            raise ValueError(
                f"a curve needs as many slowdowns as budgets; got {len(budgets)} budgets and "
                f"{len(slowdowns)} slowdowns"
            )
        if any(b <= a for a, b in zip(budgets, budgets[1:], strict=False)) or budgets[0] < 0:
            raise ValueError("the budgets of a curve must ascend from 0 or more")
        if any(b > a for a, b in zip(slowdowns, slowdowns[1:], strict=False)):
            raise ValueError("a curve's slowdowns must not ascend with the budget")

    @property
    def least_bytes(self) -> int:
        """The least budget in which the job runs."""
        return self.budget_bytes[0]

    def at(self, budget_bytes: int) -> float:
        """Return the slowdown within a budget; infinite below the least one."""
        index = bisect_right(self.budget_bytes, budget_bytes) - 1
        return float("inf") if index < 0 else self.slowdowns[index]

    @staticmethod
    def assumed(least_bytes: int, wanted_bytes: int, points: int = 4 * _POINTS) -> SlowdownCurve:
        """Return an assumed curve for a job whose step is unknown.

        Args:
            least_bytes: The job's least budget.
            wanted_bytes: The budget without slowdown.
            points: Number of budgets.
        """
        wanted_bytes = max(wanted_bytes, 1)
        least_bytes = min(least_bytes, wanted_bytes)
        budgets = _between(max(least_bytes, wanted_bytes // 100, 1), wanted_bytes, points)
        if budgets[0] > least_bytes > 0:
            budgets = [least_bytes, *budgets]
        slowdowns = [1 + _HALF_PENALTY * (wanted_bytes / budget - 1) for budget in budgets]
        return SlowdownCurve(tuple(budgets), tuple(slowdowns), is_known=False)


def decision_at(timeline: Timeline, link: Link, budget_bytes: int) -> Decision | None:
    """Plan a step for a budget by the fastest planner; return None if no plan fits.

    A step whose peak is within the budget is not swapped. Plans leave a margin in the budget.
    """
    if peak_load(timeline) <= budget_bytes:
        return Decision(greedy.POLICY, (), simulate(timeline, (), link))
    try:
        return greedy.plan_swaps(timeline, link, int(budget_bytes / (1 + _MARGIN)))
    except BudgetTooSmall:
        return None


def least_budget(timeline: Timeline, link: Link) -> int:
    """Return the least budget in which a step runs with swaps, including a margin."""
    return min(math.ceil(with_swaps(timeline, link).bytes * (1 + _MARGIN)), peak_load(timeline))


def planned_curve(
    timeline: Timeline, link: Link, points: int = _POINTS, deadline_s: float | None = None
) -> SlowdownCurve:
    """Compute the curve of a step by planning it for several budgets.

    Args:
        timeline: The step.
        link: The job's share of the link.
        points: Number of budgets, including the peak.
        deadline_s: Time on the monotonic clock after which no more budgets are planned.
    """
    peak_bytes = peak_load(timeline)
    least_bytes = least_budget(timeline, link)
    known = {peak_bytes: 1.0}
    below = _between(least_bytes, peak_bytes, points)[:-1]
    # The least one first: every curve needs it.
    for budget in below[:1] + below[:0:-1]:
        if deadline_s is not None and len(known) > 1 and time.monotonic() > deadline_s:
            break
        decision = decision_at(timeline, link, budget)
        if decision is not None:
            known[budget] = max(cost(decision.result, link)[0] / max(timeline.step_ns, 1), 1.0)
    budgets = sorted(known)
    if len(budgets) > 1:
        known[budgets[0]] += _MIN_PENALTY
    # More memory is never slower: a plan for a smaller budget is valid for a larger one.
    slowdowns = accumulate((known[budget] for budget in budgets), min)
    return SlowdownCurve(tuple(budgets), tuple(slowdowns))


def _between(least: int, largest: int, points: int) -> list[int]:
    """Return evenly spaced budgets from the least to the largest, inclusive."""
    least = min(least, largest)
    steps = max(points - 1, 1)
    return sorted({least + (largest - least) * i // steps for i in range(points)} | {largest})
