"""MeasuredPlan: whether a plan did as predicted, and which budget it needs."""

from __future__ import annotations

import pytest

from tfswap.plan.measured_plan import MeasuredPlan, MeasuredStep, best
from tfswap.plan.schema import FunctionPlan, TensorSwap

MOVES = FunctionPlan("f", swaps=(TensorSwap("a:0", 10, (), ()),), predicted_peak_bytes=100)
MOVES_NOTHING = FunctionPlan("f", predicted_peak_bytes=100)


@pytest.mark.parametrize(
    ("function", "peak_bytes", "bytes_out", "expected"),
    [
        (MOVES, 100, 10, True),
        (MOVES, 90, 10, False),
        (MOVES, 103, 13, True),  # a few on-demand swaps
        (MOVES, 100, 20, False),  # on-demand swaps moved 10: without them, the peak would be 110
        (MOVES_NOTHING, 90, 0, True),  # less than in the recorded order
        (MOVES_NOTHING, 100, 10, False),
    ],
)
def test_a_peak_that_is_off_or_on_demand_swaps_are_not_as_predicted(
    function: FunctionPlan, peak_bytes: int, bytes_out: int, expected: bool
) -> None:
    measured = MeasuredPlan(function, 1.0, 1.0, peak_bytes, 0, bytes_out, bytes_out)
    assert measured.is_as_predicted == expected


def test_the_fastest_plan_that_did_as_predicted_is_best() -> None:
    off, slow, fast = (
        MeasuredPlan(MOVES, step_s, step_s, peak_bytes, 0, 10, 10)
        for step_s, peak_bytes in ((1.0, 200), (3.0, 100), (2.0, 101))
    )
    assert best([off, slow, fast]) is fast
    assert best([off]) is off


def test_a_plan_is_slower_only_if_each_of_its_steps_was() -> None:
    measured = MeasuredPlan.of(MOVES, [MeasuredStep(s, 100, 0, 10, 10, 0) for s in (0.8, 0.9)])
    assert measured.is_slower_than([0.4, 0.5])
    assert not measured.is_slower_than([0.3, 0.6])  # noise
    assert not measured.is_slower_than([])


@pytest.mark.parametrize(
    ("peak_bytes", "needed_bytes", "bytes_out", "demand_bytes"),
    [
        (99, 0, 10, 99),
        (99, 104, 30, 104),  # a tensor of 20 bytes was swapped for lack of 4, budget 100
        (99, 140, 30, 119),  # no more than if all of it had stayed on the device
        (106, 104, 30, 106),
        (99, 104, 10, 99),  # a planned swap-out that was early
    ],
)
def test_a_plan_needs_the_lack_and_not_all_on_demand_swaps(
    peak_bytes: int, needed_bytes: int, bytes_out: int, demand_bytes: int
) -> None:
    measured = MeasuredPlan(MOVES, 1.0, 1.0, peak_bytes, needed_bytes, bytes_out, bytes_out)
    assert measured.demand_bytes == demand_bytes


def test_a_step_needs_the_budget_and_the_lack() -> None:
    before = {"bytes_out": 5, "bytes_in": 5, "waits": 0}
    after = {
        "window_peak_load_bytes": 99,
        "window_lack_bytes": 4,
        "budget_bytes": 100,
        "bytes_out": 35,
        "bytes_in": 15,
        "waits": 1,
    }
    assert MeasuredStep.between(before, after, 1.0, 1) == MeasuredStep(1.0, 99, 104, 30, 10, 1)
    after["window_lack_bytes"] = 0
    assert MeasuredStep.between(before, after, 2.0, 2) == MeasuredStep(1.0, 99, 0, 15, 5, 1)
