"""RunReport: budgets and peaks of a training whose budget changes."""

from tfswap.plan.measured_plan import MeasuredStep
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
