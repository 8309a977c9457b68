from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfswap.jobs.division import Claim, admit, by_weights, divide, least_slowdown
from tfswap.jobs.slowdown import SlowdownCurve

CURVE = SlowdownCurve((10, 20, 40), (3.0, 1.5, 1.0))


@st.composite
def curves(draw: st.DrawFn) -> SlowdownCurve:
    budgets = sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=5)))
    slowdowns = draw(
        st.lists(st.integers(4, 40), min_size=len(budgets), max_size=len(budgets), unique=True)
    )
    return SlowdownCurve(tuple(budgets), tuple(s / 4 for s in sorted(slowdowns, reverse=True)))


@st.composite
def claims(draw: st.DrawFn, max_jobs: int = 4) -> list[Claim]:
    made = []
    for number in range(draw(st.integers(1, max_jobs))):
        curve = draw(curves())
        floor = max(curve.least_bytes, draw(st.integers(0, 30)))
        wanted = floor + draw(st.integers(0, 80))
        weight = draw(st.sampled_from([0.5, 1.0, 2.0]))
        made.append(Claim(f"job {number}", curve, floor, wanted, weight))
    return made


def cost(claims: list[Claim], budgets: dict[str, int]) -> float:
    return sum(claim.weight * claim.curve.at(budgets[claim.job]) for claim in claims)


def least_cost(claims: list[Claim], capacity: int) -> float:
    """Return the least cost by brute force."""
    choices = [
        [b for b in {c.floor_bytes, *c.curve.budget_bytes} if c.floor_bytes <= b <= c.wanted_bytes]
        for c in claims
    ]
    return min(
        cost(claims, dict(zip((c.job for c in claims), combination, strict=True)))
        for combination in itertools.product(*choices)
        if sum(combination) <= capacity
    )


@given(claims(), st.integers(0, 100))
def test_the_sum_of_slowdowns_is_minimal(claims: list[Claim], more: int) -> None:
    capacity = sum(claim.floor_bytes for claim in claims) + more
    budgets = least_slowdown(claims, capacity)
    assert sum(budgets.values()) <= capacity
    for claim in claims:
        assert claim.floor_bytes <= budgets[claim.job] <= claim.wanted_bytes
    assert cost(claims, budgets) == pytest.approx(least_cost(claims, capacity))


@given(claims(), st.integers(0, 100), st.integers(0, 50))
def test_more_memory_is_never_worse(claims: list[Claim], more: int, still_more: int) -> None:
    capacity = sum(claim.floor_bytes for claim in claims) + more
    costs = [cost(claims, least_slowdown(claims, c)) for c in (capacity, capacity + still_more)]
    assert costs[1] <= costs[0] + 1e-9


@given(claims(), st.integers(0, 200))
def test_all_wanted_memory_is_given(claims: list[Claim], more: int) -> None:
    capacity = sum(claim.floor_bytes for claim in claims) + more
    wanted = sum(claim.wanted_bytes for claim in claims)
    for division in (least_slowdown, by_weights):
        given_bytes = sum(division(claims, capacity).values())
        assert min(wanted, capacity) - len(claims) <= given_bytes <= capacity


@given(claims(), st.integers(0, 200))
def test_by_weights_all_jobs_between_floor_and_wanted_have_one_level(
    claims: list[Claim], more: int
) -> None:
    capacity = sum(claim.floor_bytes for claim in claims) + more
    budgets = by_weights(claims, capacity)
    assert sum(budgets.values()) <= capacity
    free = [c for c in claims if c.floor_bytes < budgets[c.job] < c.wanted_bytes]
    for a, b in itertools.pairwise(free):
        assert abs(budgets[a.job] - budgets[b.job] * a.weight / b.weight) <= 1 + a.weight / b.weight


def test_memory_without_benefit_goes_to_the_smallest_budget() -> None:
    flat = SlowdownCurve((10, 20), (1.0, 1.0))
    small, large = Claim("small", flat, 10, 1000), Claim("large", CURVE, 10, 1000)
    assert least_slowdown([small, large], 100) == {"small": 50, "large": 50}
    assert least_slowdown([small, large], 60) == {"small": 20, "large": 40}


def test_budgets_are_proportional_to_weights() -> None:
    claims = [Claim("a", CURVE, 0, 1000, 3.0), Claim("b", CURVE, 0, 1000, 1.0)]
    assert by_weights(claims, 400) == {"a": 300, "b": 100}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.booleans()), max_size=6))
def test_running_jobs_are_always_admitted(jobs: list[tuple[int, int, bool]]) -> None:
    """Floors of running jobs may exceed what they hold; together they hold the capacity."""
    claims = [
        Claim(f"job {i}", CURVE, floor, floor, held_bytes=held if runs else 0)
        for i, (floor, held, runs) in enumerate(jobs)
    ]
    capacity = max(sum(claim.held_bytes for claim in claims), 1)
    admitted = {claim.job: claim for claim in admit(claims, capacity)}
    assert sum(claim.floor_bytes for claim in admitted.values()) <= capacity
    for claim in claims:
        if claim.held_bytes:
            assert admitted[claim.job].floor_bytes >= min(claim.held_bytes, claim.floor_bytes)
    for policy in ("slowdown", "weights"):
        budgets = divide(claims, capacity, policy)
        assert sum(budgets.values()) <= capacity
        assert set(budgets) == set(admitted)


def test_waiting_jobs_are_admitted_in_the_order_of_joining() -> None:
    claims = [
        Claim("runs", CURVE, 30, 100, held_bytes=100),
        Claim("first", CURVE, 50, 100),
        Claim("second", CURVE, 40, 100),
        Claim("third", CURVE, 20, 100),
    ]
    assert [claim.job for claim in admit(claims, 100)] == ["runs", "first", "third"]


def test_the_floor_of_an_unknown_job_is_raised() -> None:
    unknown = Claim("new", SlowdownCurve.assumed(1, 100), 1, 100, cautious_bytes=50)
    known = Claim("old", SlowdownCurve((70, 90), (9.0, 1.0)), 70, 100, held_bytes=100)
    assert [claim.floor_bytes for claim in admit([known, unknown], 100)] == [70, 30]


def test_errors() -> None:
    with pytest.raises(
        ValueError, match="unknown policy 'fair': allowed are 'slowdown', 'weights'"
    ):
        divide([], 100, "fair")
    with pytest.raises(ValueError, match="must ascend"):
        SlowdownCurve((10, 10), (2.0, 1.0))
    with pytest.raises(ValueError, match="must not ascend"):
        SlowdownCurve((10, 20), (1.0, 2.0))
    with pytest.raises(ValueError, match="got 0 budgets"):
        SlowdownCurve((), ())
