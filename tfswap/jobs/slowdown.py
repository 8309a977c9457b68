"""SlowdownCurve: how much longer a job's steps take in less memory.

::

    slowdown
      ^
     2|  o___                   foretold by a plan for each of some budgets; between two of them
      |      |                  it is taken to be what the smaller one has
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

# Budgets that are planned for between the least one and the peak.
_POINTS = 8
# What a plan needs beside what it foretells: chunks that are not filled, ops in another order.
_SPARE = 0.03
# In the least of all there is no room for what a plan does not foretell: a step counts as so much
# longer there, so that a job is only left with it where another one would lose more.
_LEAST_COSTS = 0.25
# Of a job that nobody knows anything of: what half of the memory that it wants costs it.
_HALF_COSTS = 0.5


@dataclass(frozen=True)
class SlowdownCurve:
    """Slowdowns of one job's steps by its budget.

    Attributes:
        budget_bytes: int[n], n at least 1; ascending. The first is the least that it runs in.
        slowdowns: float[n]; the step's time over that of a step without swaps, not ascending. At
            the least budget it counts as longer than it is foretold to be.
        is_known: Whether it comes from a recorded step.
    """

    budget_bytes: tuple[int, ...]
    slowdowns: tuple[float, ...]
    is_known: bool = True

    def __post_init__(self) -> None:
        budgets, slowdowns = self.budget_bytes, self.slowdowns
        if not budgets or len(budgets) != len(slowdowns):
            raise ValueError(f"{len(budgets)} budgets and {len(slowdowns)} slowdowns are no curve")
        if any(b <= a for a, b in zip(budgets, budgets[1:], strict=False)) or budgets[0] < 0:
            raise ValueError("the budgets of a curve must ascend from 0 or more")
        if any(b > a for a, b in zip(slowdowns, slowdowns[1:], strict=False)):
            raise ValueError("a curve's slowdowns must not ascend with the budget")

    @property
    def least_bytes(self) -> int:
        """The least budget that the job runs in."""
        return self.budget_bytes[0]

    @property
    def enough_bytes(self) -> int:
        """The least budget beyond which more is of no use."""
        return self.budget_bytes[self.slowdowns.index(self.slowdowns[-1])]

    def at(self, budget_bytes: int) -> float:
        """The slowdown within a budget; infinite below the least one."""
        place = bisect_right(self.budget_bytes, budget_bytes) - 1
        return float("inf") if place < 0 else self.slowdowns[place]

    @staticmethod
    def assumed(least_bytes: int, wanted_bytes: int, points: int = 4 * _POINTS) -> SlowdownCurve:
        """Of a job that nothing is known of but what it wants.

        Args:
            least_bytes: It does not begin with less.
            wanted_bytes: With that it has all that it wants.
            points: How many budgets the curve has.
        """
        wanted_bytes = max(wanted_bytes, 1)
        least_bytes = min(least_bytes, wanted_bytes)
        budgets = _between(max(least_bytes, wanted_bytes // 100, 1), wanted_bytes, points)
        if budgets[0] > least_bytes > 0:
            budgets = [least_bytes, *budgets]
        slowdowns = [1 + _HALF_COSTS * (wanted_bytes / budget - 1) for budget in budgets]
        return SlowdownCurve(tuple(budgets), tuple(slowdowns), is_known=False)


def decision_at(timeline: Timeline, link: Link, budget_bytes: int) -> Decision | None:
    """A plan for a budget as a job would make it, by the quickest planner; None: there is none.

    The step fits where its peak does; a plan leaves a part of the budget to what is not foretold.
    """
    if peak_load(timeline) <= budget_bytes:
        return Decision(greedy.POLICY, (), simulate(timeline, (), link))
    try:
        return greedy.plan_swaps(timeline, link, int(budget_bytes / (1 + _SPARE)))
    except BudgetTooSmall:
        return None


def least_budget(timeline: Timeline, link: Link) -> int:
    """The least bytes that a step runs in by swaps, with room for what is not foretold."""
    return min(math.ceil(with_swaps(timeline, link).bytes * (1 + _SPARE)), peak_load(timeline))


def planned_curve(
    timeline: Timeline, link: Link, points: int = _POINTS, deadline_s: float | None = None
) -> SlowdownCurve:
    """The curve of a recorded step.

    Args:
        timeline: The step.
        link: What its copies have of the link.
        points: How many budgets below the peak are planned for.
        deadline_s: On the monotonic clock: budgets that are not planned for by then are left out.
    """
    peak_bytes = peak_load(timeline)
    least_bytes = least_budget(timeline, link)
    known = {peak_bytes: 1.0}
    below = _between(least_bytes, peak_bytes, points)[:-1]
    # The least one first: without it nobody knows what the job can do with.
    for budget in below[:1] + below[:0:-1]:
        if deadline_s is not None and len(known) > 1 and time.monotonic() > deadline_s:
            break
        decision = decision_at(timeline, link, budget)
        if decision is not None:
            known[budget] = max(cost(decision.result, link)[0] / max(timeline.step_ns, 1), 1.0)
    budgets = sorted(known)
    if len(budgets) > 1:
        known[budgets[0]] += _LEAST_COSTS
    # What is possible in less memory is possible in more.
    slowdowns = accumulate((known[budget] for budget in budgets), min)
    return SlowdownCurve(tuple(budgets), tuple(slowdowns))


def _between(least: int, most: int, points: int) -> list[int]:
    """So many budgets from the least to the most, both among them."""
    least = min(least, most)
    steps = max(points - 1, 1)
    return sorted({least + (most - least) * i // steps for i in range(points)} | {most})
