"""The report's printed summary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfswap.report.summary import (
    LossyUse,
    Report,
    TensorLoss,
    TierUse,
    readable_bytes,
    summary_lines,
)


@pytest.mark.parametrize("outcome", ["swapped", "fits", "bootstrap", "no effect"])
def test_every_outcome_has_a_short_summary(outcome):
    lines = summary_lines(Report(outcome=outcome, budget_bytes=900 << 20))
    assert 1 <= len(lines) <= 4
    assert all(line.startswith("tfswap: ") and len(line) <= 110 for line in lines)


def test_str_is_the_summary_and_repr_is_short():
    report = Report(addresses=(object(),) * 1000, notes=["none"])
    assert str(report) == report.summary()
    assert repr(report).startswith("Report(outcome='no effect'") and len(repr(report)) < 1000
    assert len(report["addresses"]) == 1000


def test_tier_use_handles_a_reset_of_the_statistics():
    names = ("bytes_out", "kept_bytes_out", "peak_bytes")
    before, after, reset = (
        {f"far_host_{name}": count for name, count in zip(names, counts, strict=True)}
        for counts in ((100, 90, 7), (300, 240, 9), (50, 40, 3))
    )
    assert TierUse.between("host", before, after) == TierUse("host", 9, 200, 150)
    assert TierUse.between("host", before, reset) == TierUse("host", 3, 50, 40)


def test_the_summary_has_predictions_beside_measurements():
    report = Report(
        outcome="swapped",
        budget_bytes=900 << 20,
        unswapped_peak_bytes=1571 << 20,
        predicted_peak_bytes=849 << 20,
        measured_peak_bytes=857 << 20,
        unswapped_step_s=2.73,
        predicted_step_s=2.9,
        predicted_wait_s=0.12,
        least_wait_s=0.1,
        step_s=2.95,
        bytes_out_per_step=711 << 20,
        bytes_in_per_step=711 << 20,
        swapped_buffers=57,
        host_peak_bytes=700 << 20,
    )
    assert summary_lines(report) == [
        "tfswap: peak   1.53 GiB -> 857 MiB measured (849 MiB predicted), budget 900 MiB",
        "tfswap: step   2.95 s measured (2.90 s predicted); without swaps about 2.73 s (estimated, "
        "within 15 %)",
        "tfswap: waits  120 ms a step for copies, predicted; no plan waits less than 100 ms",
        "tfswap: moved  711 MiB out and 711 MiB in per step, 57 buffers",
        "tfswap: far    700 MiB in use (host)",
    ]


@pytest.mark.parametrize("outcome", ["swapped", "fits", "bootstrap"])
def test_the_summary_has_the_sections(outcome):
    summary = "\n".join(summary_lines(Report(outcome=outcome, sections=8)))
    assert ", 8 sections of the batch" in summary
    assert "sections" not in "\n".join(summary_lines(Report(outcome=outcome)))


def test_readable_bytes():
    shown = [readable_bytes(size) for size in (None, 5, 2048, 3 << 20, 5 << 30)]
    assert shown == ["?", "5 bytes", "2 KiB", "3 MiB", "5.00 GiB"]


def test_the_summary_has_peak_use_and_compression_of_each_tier() -> None:
    tiers = (
        TierUse("host", 40 << 20, 1 << 30, 1 << 30),
        TierUse("compressed", 20 << 20, 100 << 20, 53 << 20),
        TierUse("file", 2 << 30, 4 << 30, 4 << 30),
    )
    report = Report(outcome="swapped", tiers=tiers, file_bytes_in_per_step=3 << 30, file_in_s=2.5)
    assert summary_lines(report)[-1] == (
        "tfswap: far    40 MiB in use (host), 20 MiB in use (compressed to 53%), "
        "2.00 GiB in use (file); 3.00 GiB read per step, in 2.50 s at least"
    )
    unused = Report(outcome="swapped", host_peak_bytes=0, tiers=(TierUse("file", 0, 0, 0),))
    assert summary_lines(unused)[-1] == "tfswap: far    0 bytes in use (host)"


def test_the_summary_of_a_lossy_training() -> None:
    losses = (TensorLoss("a:0", 0.002, 0.5), TensorLoss("b:0", 0.004, 0.1))
    use = LossyUse(12, 40, 80, 20, losses)
    assert (use.worst_relative_error, use.mean_relative_error) == (0.004, pytest.approx(0.003))
    report = Report(outcome="swapped", lossy=use)
    assert summary_lines(report)[-1] == (
        "tfswap: lossy  12 tensors keep 40% of their bits (relative error 4e-03): losses differ "
        "from exact training"
    )
    assert len(summary_lines(report)[-1]) <= 110
    nothing = LossyUse(0, 100, 100, 100)
    assert nothing.worst_relative_error is nothing.mean_relative_error is None
    assert "lossy" not in "".join(summary_lines(Report(outcome="swapped", lossy=nothing)))


def test_the_summary_of_a_model_that_fits() -> None:
    any_order = Report(
        outcome="fits",
        budget_bytes=9 << 20,
        unswapped_peak_bytes=8 << 20,
        predicted_peak_bytes=8 << 20,
    )
    assert summary_lines(any_order) == [
        "tfswap: the model fits: peak 8 MiB of a budget of 9 MiB. Nothing is swapped."
    ]
    loops = replace(any_order, elements_leave=True)
    assert summary_lines(loops) == [
        "tfswap: no swaps are planned: peak 8 MiB of a budget of 9 MiB. What loops keep leaves on "
        "demand."
    ]
    in_order = replace(any_order, budget_bytes=7 << 20, predicted_peak_bytes=6 << 20, sections=2)
    assert summary_lines(in_order) == [
        "tfswap: the model fits with its ops kept in order: peak 8 MiB -> 6 MiB predicted of a "
        "budget of 7 MiB. Nothing is swapped, 2 sections of the batch."
    ]
