"""Division of a device's memory among jobs: pure functions from claims to budgets.

Each admitted job gets at least its floor, and a running job is never stopped in favour of a
waiting one. Memory above the floors minimises the weighted sum of slowdowns (`least_slowdown`), or
is divided in proportion to the weights (`by_weights`). Memory that shortens no step is divided by
weights too.

TENSILE (Zhang et al., arXiv 2105.13336) derives shares from one greedy search that swaps the
largest tensor at any job's peak; it has no budget and minimises memory. Here the budget is given
and the sum of slowdowns is minimised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tfswap.jobs.slowdown import SlowdownCurve

LEAST_SLOWDOWN, WEIGHTS = "slowdown", "weights"
POLICIES = (LEAST_SLOWDOWN, WEIGHTS)

# Maximum number of Pareto-optimal combinations of budgets to keep. Only many jobs with many budgets
# exceed it; then the sum of slowdowns is close to the minimum.
_MAX_COMBINATIONS = 4096


@dataclass(frozen=True)
class Claim:
    """One job's claim to memory.

    Attributes:
        job: Name of the job.
        curve: Slowdown of its steps by budget.
        floor_bytes: Least budget that it can run in.
        wanted_bytes: Largest useful budget.
        weight: Weight of its slowdown.
        held_bytes: Its current budget; 0 if it waits for the first share.
        cautious_bytes: The floor is raised to this if memory allows: a margin for a job with
            unknown needs.
    """

    job: str
    curve: SlowdownCurve
    floor_bytes: int
    wanted_bytes: int
    weight: float = 1.0
    held_bytes: int = 0
    cautious_bytes: int = 0


def divide(
    claims: Sequence[Claim], capacity_bytes: int, policy: str = LEAST_SLOWDOWN
) -> dict[str, int]:
    """Divide the capacity among jobs.

    Args:
        claims: Claims in the order of joining. The sum of `held_bytes` is within the capacity.
        capacity_bytes: Memory for all jobs.
        policy: "slowdown" or "weights".

    Returns:
        Budgets by job, with a sum of at most the capacity. Other jobs must wait.

    Raises:
        ValueError: The policy is unknown.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}: allowed are {', '.join(map(repr, POLICIES))}")
    admitted = admit(claims, capacity_bytes)
    division = by_weights if policy == WEIGHTS else least_slowdown
    return division(admitted, capacity_bytes)


def admit(claims: Sequence[Claim], capacity_bytes: int) -> list[Claim]:
    """Return the claims that can run at the same time, with floors that fit the capacity.

    Running jobs are always admitted, with at least the smaller of their floor and what they hold.
    Waiting jobs are admitted in the order of joining if their floor fits.
    """
    running = [claim for claim in claims if claim.held_bytes > 0]
    floors = {claim.job: min(claim.floor_bytes, claim.held_bytes) for claim in running}
    free_bytes = capacity_bytes - sum(floors.values())
    for claim in running:
        more = claim.floor_bytes - floors[claim.job]
        if 0 < more <= free_bytes:
            floors[claim.job] += more
            free_bytes -= more
    for claim in claims:
        if claim.held_bytes == 0 and claim.floor_bytes <= free_bytes:
            floors[claim.job] = claim.floor_bytes
            free_bytes -= claim.floor_bytes
    for claim in claims:
        if claim.job in floors:
            more = min(claim.cautious_bytes - floors[claim.job], free_bytes)
            floors[claim.job] += max(more, 0)
            free_bytes -= max(more, 0)
    return [
        replace(
            claim,
            floor_bytes=floors[claim.job],
            wanted_bytes=max(claim.wanted_bytes, floors[claim.job]),
        )
        for claim in claims
        if claim.job in floors
    ]


def least_slowdown(claims: Sequence[Claim], capacity_bytes: int) -> dict[str, int]:
    """Minimise the weighted sum of slowdowns; among equal sums, the sum of budgets.

    Dynamic programming over jobs on the Pareto front of (bytes, cost): exact on the budgets of the
    curves, unless the front exceeds `_MAX_COMBINATIONS`.

    Args:
        claims: Claims whose floors fit the capacity.
        capacity_bytes: Memory for all jobs.
    """
    # The front after each job: bytes (ascending), cost (descending), the last job's budget, and the
    # index of the combination of the jobs before it.
    tables: list[list[tuple[int, float, int, int]]] = [[(0, 0.0, 0, 0)]]
    floors_left = sum(claim.floor_bytes for claim in claims)
    for claim in claims:
        floors_left -= claim.floor_bytes
        room = capacity_bytes - floors_left
        combined = (
            (used + budget, cost + claim.weight * slowdown, budget, index)
            for index, (used, cost, _, _) in enumerate(tables[-1])
            for budget, slowdown in _choices(claim)
            if used + budget <= room
        )
        tables.append(_thin(_pareto_front(combined)))
    budgets: dict[str, int] = {}
    index = len(tables[-1]) - 1
    for claim, table in zip(reversed(claims), reversed(tables[1:]), strict=True):
        _, _, budgets[claim.job], index = table[index]
    return _fill(claims, budgets, capacity_bytes)


def _choices(claim: Claim) -> list[tuple[int, float]]:
    """Return the candidate budgets of a job, with their slowdowns."""
    curve = claim.curve
    budgets = {claim.floor_bytes}
    budgets.update(
        budget for budget in curve.budget_bytes if claim.floor_bytes < budget <= claim.wanted_bytes
    )
    # A running job may hold less than the curve's least budget, where the slowdown is infinite.
    worst = 2 * curve.slowdowns[0]
    return [(budget, min(curve.at(budget), worst)) for budget in sorted(budgets)]


def _pareto_front(
    combined: Iterable[tuple[int, float, int, int]],
) -> list[tuple[int, float, int, int]]:
    """Drop combinations that cost no less than another one with as many or fewer bytes."""
    kept: list[tuple[int, float, int, int]] = []
    for each in sorted(combined):
        if not kept or each[1] < kept[-1][1]:
            kept.append(each)
    return kept


def _thin(
    table: list[tuple[int, float, int, int]],
) -> list[tuple[int, float, int, int]]:
    if len(table) <= _MAX_COMBINATIONS:
        return table
    step = (len(table) - 1) / (_MAX_COMBINATIONS - 1)
    return [table[round(i * step)] for i in range(_MAX_COMBINATIONS)]


def by_weights(claims: Sequence[Claim], capacity_bytes: int) -> dict[str, int]:
    """Divide in proportion to the weights, within `floor_bytes` and `wanted_bytes` of each job.

    Args:
        claims: Claims whose floors fit the capacity.
        capacity_bytes: Memory for all jobs.
    """
    return _fill(claims, {claim.job: claim.floor_bytes for claim in claims}, capacity_bytes)


def _fill(
    claims: Sequence[Claim], floors: Mapping[str, int], capacity_bytes: int
) -> dict[str, int]:
    """Water-filling: find the level (bytes per weight) that uses up the capacity."""

    def budgets_at(level: float) -> dict[str, int]:
        return {
            c.job: min(
                max(int(c.weight * level), floors[c.job]), max(c.wanted_bytes, floors[c.job])
            )
            for c in claims
        }

    if not claims:
        return {}
    low, high = 0.0, capacity_bytes / min(claim.weight for claim in claims) + 1
    if sum(budgets_at(high).values()) <= capacity_bytes:
        return budgets_at(high)
    for _ in range(100):
        middle = (low + high) / 2
        if sum(budgets_at(middle).values()) <= capacity_bytes:
            low = middle
        else:
            high = middle
    return budgets_at(low)
