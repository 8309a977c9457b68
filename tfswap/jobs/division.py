"""Division of a device's memory among jobs: pure functions from what they claim to budgets.

Floors come first: nobody has less than he needs to run, and who runs is never turned out for
somebody who waits. What is above the floors goes where it shortens steps most (`least_slowdown`:
the sum over jobs of weight times slowdown is the least that there is), or by weights
(`by_weights`). What nobody can use is given by weights too, so that nothing lies idle.

Shares of TENSILE's jobs (Zhang et al., arXiv 2105.13336) follow from one greedy search that swaps
the largest tensor of all jobs' peaks; it has no budget, and ends at the least memory. Here the
budget is given, and the sum of times is what is least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tfswap.jobs.slowdown import SlowdownCurve

LEAST_SLOWDOWN, WEIGHTS = "slowdown", "weights"
POLICIES = (LEAST_SLOWDOWN, WEIGHTS)

# Of the combinations of budgets that may still be the best so many are kept. More are met by many
# jobs with many budgets only; then the sum of slowdowns may be off the least by a little.
_MOST_COMBINATIONS = 4096


@dataclass(frozen=True)
class Claim:
    """What one job may be given.

    Attributes:
        job: its name.
        curve: what budgets do to its steps.
        floor_bytes: it must not have less.
        wanted_bytes: it has no use for more.
        weight: how much it counts.
        held_bytes: what it has now; 0: it waits for its first share.
        cautious_bytes: its floor is raised to that as far as there is room: of a job of which
            nobody knows yet what it needs.
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
    """Gives each job a budget.

    Args:
        claims: by the time of joining; what the jobs hold together is within the capacity.
        capacity_bytes: what there is for them.
        policy: "slowdown" or "weights".

    Returns:
        A budget for each job that has one; a job that is not in it must wait. The sum is at most
        the capacity.

    Raises:
        ValueError: there is no such policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}: allowed are {', '.join(map(repr, POLICIES))}")
    admitted = admit(claims, capacity_bytes)
    division = by_weights if policy == WEIGHTS else least_slowdown
    return division(admitted, capacity_bytes)


def admit(claims: Sequence[Claim], capacity_bytes: int) -> list[Claim]:
    """Those that can run at once, with floors that have room together.

    A job that runs is always among them, if with no more than it holds; so is, in the order of
    joining, each that waits and whose floor has room.
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
    """Budgets with the least sum of weight times slowdown; of equal ones, those that need least.

    Exact on the curves' budgets for a few jobs: combinations of budgets that need more than another
    one and are no better are left out, the rest are all looked at.

    Args:
        claims: whose floors have room together.
        capacity_bytes: what there is.
    """
    # Pairs of bytes and cost, ascending and descending, each with the last job's budget and the
    # place of the combination of those before it.
    tables: list[list[tuple[int, float, int, int]]] = [[(0, 0.0, 0, 0)]]
    floors_left = sum(claim.floor_bytes for claim in claims)
    for claim in claims:
        floors_left -= claim.floor_bytes
        room = capacity_bytes - floors_left
        combined = (
            (used + budget, cost + claim.weight * slowdown, budget, place)
            for place, (used, cost, _, _) in enumerate(tables[-1])
            for budget, slowdown in _choices(claim)
            if used + budget <= room
        )
        tables.append(_thinned(_undominated(combined)))
    budgets: dict[str, int] = {}
    place = len(tables[-1]) - 1
    for claim, table in zip(reversed(claims), reversed(tables[1:]), strict=True):
        _, _, budgets[claim.job], place = table[place]
    return _with_rest(claims, budgets, capacity_bytes)


def _choices(claim: Claim) -> list[tuple[int, float]]:
    """The budgets worth a thought, with their slowdowns."""
    curve = claim.curve
    budgets = {claim.floor_bytes}
    budgets.update(
        budget for budget in curve.budget_bytes if claim.floor_bytes < budget <= claim.wanted_bytes
    )
    # Below what it can run in, which a job that runs may have to stay at, time says nothing.
    worst = 2 * curve.slowdowns[0]
    return [(budget, min(curve.at(budget), worst)) for budget in sorted(budgets)]


def _undominated(
    combined: Iterable[tuple[int, float, int, int]],
) -> list[tuple[int, float, int, int]]:
    """Without those that need as much as another, or more, and are no better."""
    kept: list[tuple[int, float, int, int]] = []
    for each in sorted(combined):
        if not kept or each[1] < kept[-1][1]:
            kept.append(each)
    return kept


def _thinned(
    table: list[tuple[int, float, int, int]],
) -> list[tuple[int, float, int, int]]:
    if len(table) <= _MOST_COMBINATIONS:
        return table
    step = (len(table) - 1) / (_MOST_COMBINATIONS - 1)
    return [table[round(i * step)] for i in range(_MOST_COMBINATIONS)]


def by_weights(claims: Sequence[Claim], capacity_bytes: int) -> dict[str, int]:
    """Budgets as the weights are to one another, but none below its floor or above its wish.

    Args:
        claims: whose floors have room together.
        capacity_bytes: what there is.
    """
    return _poured(claims, {claim.job: claim.floor_bytes for claim in claims}, capacity_bytes)


def _with_rest(
    claims: Sequence[Claim], budgets: Mapping[str, int], capacity_bytes: int
) -> dict[str, int]:
    """Gives what is left to those that want it, by weights: who has least for its weight first."""
    return _poured(claims, budgets, capacity_bytes)


def _poured(
    claims: Sequence[Claim], floors: Mapping[str, int], capacity_bytes: int
) -> dict[str, int]:
    """Water-filling: the level per weight at which all is given; floors and wishes bound it."""

    def at(level: float) -> dict[str, int]:
        return {
            c.job: min(
                max(int(c.weight * level), floors[c.job]), max(c.wanted_bytes, floors[c.job])
            )
            for c in claims
        }

    if not claims:
        return {}
    low, high = 0.0, capacity_bytes / min(claim.weight for claim in claims) + 1
    if sum(at(high).values()) <= capacity_bytes:
        return at(high)
    for _ in range(100):
        middle = (low + high) / 2
        if sum(at(middle).values()) <= capacity_bytes:
            low = middle
        else:
            high = middle
    return at(low)
