"""How the budget sweep turns the results of its cases into a line."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from benchmarks import budget_sweep


@pytest.fixture
def options() -> argparse.Namespace:
    return budget_sweep.parse(["--model", "M", "--batch", "2", "--image", "32", "--steps", "2"])


def trained(
    seconds: list[float], losses: list[str] | None = None, phases: list[str] | None = None
) -> dict[str, Any]:
    losses = losses or [float(i).hex() for i in range(len(seconds))]
    phases = phases or ["steady"] * len(seconds)
    steps = [
        {"loss": loss, "seconds": time_s, "phase": phase, "peak_load_bytes": 500 + i}
        for i, (loss, time_s, phase) in enumerate(zip(losses, seconds, phases, strict=True))
    ]
    return {"steps": steps, "peak_bytes": 1000, "warnings": []}


def swapped(outcome: str = "swapped", **arguments: Any) -> dict[str, Any]:
    result = trained([9.0, 1.5, 2.5], **arguments)
    report = {"predicted_peak_bytes": 540, "predicted_step_s": 1.9, "recomputed_buffers": 3}
    report |= {"bytes_out_per_step": 7, "bytes_in_per_step": 8}
    return {**result, "peak_bytes": 550, "report": {**report, "outcome": outcome}}


BASELINES = (trained([9.0, 1.0, 1.0]), trained([9.0, 3.0, 1.0]))
DOES_NOT_FIT = {"fits": False, "reason": "too large", "warnings": []}


def test_a_line_has_all_keys_in_their_order(options: argparse.Namespace) -> None:
    line = budget_sweep.line(options, 560, "auto", BASELINES, DOES_NOT_FIT, swapped())
    assert line == {
        "model": "M",
        "batch": 2,
        "image": 32,
        "budget_bytes": 560,
        "unswapped_peak_bytes": 1000,
        "predicted_peak_bytes": 540,
        "measured_peak_bytes": 550,
        "unswapped_step_s": 1.0,
        "step_s": 2.0,
        "step_ratio": 2.0,
        "loss_bit_equal": True,
        "unswapped_fits": False,
        "bytes_out": 7,
        "bytes_in": 8,
        "policy": "auto",
        "predicted_step_s": 1.9,
        "recomputed_buffers": 3,
        "link_bandwidth": None,
        "budget_share": 0.56,
        "settled_peak_load_bytes": 502,
    }
    assert " ".join(line) == (
        "model batch image budget_bytes unswapped_peak_bytes predicted_peak_bytes "
        "measured_peak_bytes unswapped_step_s step_s step_ratio loss_bit_equal unswapped_fits "
        "bytes_out bytes_in policy predicted_step_s recomputed_buffers link_bandwidth "
        "budget_share settled_peak_load_bytes"
    )


def test_one_bit_of_one_loss_counts(options: argparse.Namespace) -> None:
    losses = [(0.0).hex(), (1.0).hex(), (2.0000000000000004).hex()]
    result = swapped(losses=losses)
    assert (
        budget_sweep.line(options, 5, "auto", BASELINES, DOES_NOT_FIT, result)["loss_bit_equal"]
        is False
    )


def test_a_missing_loss_counts(options: argparse.Namespace) -> None:
    result = swapped()
    result["steps"].pop()
    assert (
        budget_sweep.line(options, 5, "auto", BASELINES, DOES_NOT_FIT, result)["loss_bit_equal"]
        is False
    )


def test_losses_are_not_compared_when_the_unswapped_ones_differ(
    options: argparse.Namespace,
) -> None:
    other = trained([9.0, 1.0, 1.0], ["0x0p0", "0x0p0", "0x0p0"])
    line = budget_sweep.line(options, 5, "auto", (BASELINES[0], other), DOES_NOT_FIT, swapped())
    assert line["loss_bit_equal"] is None


def test_a_failed_case_keeps_its_keys_and_has_a_reason(options: argparse.Namespace) -> None:
    line = budget_sweep.line(
        options, 5, "auto", BASELINES, DOES_NOT_FIT, {"error": "op X needs 9 MiB"}
    )
    good = budget_sweep.line(options, 5, "auto", BASELINES, DOES_NOT_FIT, swapped())
    assert list(line) == [*good, "error"]
    assert line["error"] == "op X needs 9 MiB"
    unknown = ("predicted_peak_bytes", "measured_peak_bytes", "step_s", "step_ratio")
    assert {line[key] for key in unknown} == {None}
    assert line["loss_bit_equal"] is None


def test_a_training_without_a_plan_has_a_reason(options: argparse.Namespace) -> None:
    result = {**swapped("bootstrap"), "warnings": ["tfswap: budget too small for op X"]}
    line = budget_sweep.line(options, 5, "auto", BASELINES, DOES_NOT_FIT, result)
    assert line["error"] == "tfswap: budget too small for op X"
    assert line["measured_peak_bytes"] == 550


def test_only_steps_after_the_last_change_of_plan_are_timed(options: argparse.Namespace) -> None:
    phases = ["first", "measure", "settle", "measure", "steady", "steady"]
    steps = trained([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], phases=phases)["steps"]
    assert budget_sweep.settled(steps, 9) == [6.0, 5.0, 4.0]
    assert budget_sweep.settled(steps, 2) == [6.0, 5.0]
    assert budget_sweep.settled(steps[:3], 2) == []
    assert budget_sweep.settled(steps, 2, "peak_load_bytes") == [505, 504]


def test_a_plan_that_never_settled_has_no_time(options: argparse.Namespace) -> None:
    line = budget_sweep.line(
        options, 5, "auto", BASELINES, DOES_NOT_FIT, swapped(phases=["first", "warm", "settle"])
    )
    assert line["step_s"] is None
    assert line["error"] == "the plan was not settled after all steps: run more --steps"
