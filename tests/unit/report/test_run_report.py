"""RunReport: budgets and peaks of a training whose budget changes."""

import pytest

from tfswap.plan.measured_plan import MeasuredStep
from tfswap.plan.schema import FunctionPlan, SwapPlan, TensorSwap
from tfswap.report.run_report import RunReport
from tfswap.report.summary import Report

MIB = 1 << 20


def _step(filled: RunReport, peak_bytes: int) -> None:
    filled.step(
        MeasuredStep(0.1, peak_bytes, 0, 0, 0, 0),
        {"window_peak_bytes": peak_bytes, "host_peak_bytes": 0},
    )


def test_peaks_begin_anew_with_a_smaller_budget() -> None:
    filled = RunReport(Report("step"))
    filled.budget_changed(80 * MIB)
    _step(filled, 79 * MIB)
    filled.budget_changed(40 * MIB)
    _step(filled, 39 * MIB)
    assert (filled.report.budget_bytes, filled.report.measured_peak_bytes) == (40 * MIB, 39 * MIB)
    filled.budget_changed(60 * MIB)
    assert (filled.report.budget_bytes, filled.report.measured_peak_bytes) == (60 * MIB, 39 * MIB)


@pytest.mark.parametrize(
    "recorded_ms, predicted_ms, measured_ms, estimate_ms",
    [
        (800, 840, 756, 720),  # the recorded step was slower than later ones
        (800, 840, 900, 800),  # copies take longer than predicted
        (800, 0, 900, 800),  # a plan without a prediction
    ],
)
def test_the_step_without_swaps_is_estimated_from_measured_ones(
    recorded_ms: int, predicted_ms: int, measured_ms: int, estimate_ms: int
) -> None:
    filled = RunReport(Report("step"))
    function = FunctionPlan(
        "0" * 16,
        swaps=(TensorSwap("a:0", 1, (), ()),),
        unswapped_step_ns=recorded_ms * 10**6,
        predicted_step_ns=predicted_ms * 10**6,
    )
    filled.adopted(SwapPlan(), function, None)
    assert filled.report.unswapped_step_s == pytest.approx(recorded_ms / 1e3)
    filled.measured([MeasuredStep(measured_ms / 1e3, 0, 0, 0, 0, 0)], None)
    assert filled.report.unswapped_step_s == pytest.approx(estimate_ms / 1e3)
