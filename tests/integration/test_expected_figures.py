"""Check that peaks, predictions and bits of quick benchmarks match `benchmarks/expected.json`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.catalog import named
from benchmarks.expectations import judge, read
from benchmarks.measurements import measure

EXPECTED = read()
SLOW = ("budget_sweep",)
JUDGED = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name in sorted({entry["benchmark"] for entry in EXPECTED})
]
# The models of the budget sweep.
TABLED = ("ResNet50", "VGG16", "InceptionV3", "DenseNet121", "U-Net", "MobileNetV2", "Transformer")
VARYING = ("InceptionV3", "DenseNet121")  # stock TensorFlow does not repeat their losses
# Run times are not checked on any machine.
_LIMIT_S = 1800.0


@pytest.mark.parametrize("name", JUDGED)
def test_figures_of_quick_benchmarks_are_as_expected(name: str, tmp_path: Path) -> None:
    (benchmark,) = named([name])
    found = measure(replace(benchmark, quick_limit_s=_LIMIT_S), True, tmp_path)
    assert [run.problem for run in found.runs if run.problem] == []
    verdicts = judge(EXPECTED, {name: found.lines})
    assert verdicts and [verdict.text for verdict in verdicts if not verdict.holds] == []


@pytest.mark.slow
def test_a_resnet50_keeps_its_budget_and_its_peak_is_predicted(tmp_path: Path) -> None:
    """Run the ResNet50 case, which takes longer than the quick benchmarks."""
    (benchmark,) = named(["budget_sweep"])
    arguments = "--model ResNet50 --batch 8 --image 64 --budgets 0.8 --steps 4"
    found = measure(replace(benchmark, quick=(arguments,), quick_limit_s=_LIMIT_S), True, tmp_path)
    assert [run.problem for run in found.runs if run.problem] == []
    entry = {
        "benchmark": "budget_sweep",
        "where": {"model": "ResNet50", "policy": "auto"},
        "equal": {"unswapped_fits": False, "loss_bit_equal": True},
        "at_most": {"measured_peak_bytes": "budget_bytes"},
        "near": {"predicted_peak_bytes": ["settled_peak_load_bytes", 0.03]},
    }
    verdicts = judge([entry], {"budget_sweep": found.lines})
    assert verdicts and [verdict.text for verdict in verdicts if not verdict.holds] == []


@pytest.mark.slow
@pytest.mark.parametrize("model", TABLED)
def test_training_works_in_the_least_budgets_that_messages_name(model: str, tmp_path: Path) -> None:
    (benchmark,) = named(["least"])
    arguments = f"--models {model} --image 96 --parts 1.02 --runs 2 --steps 5"
    found = measure(replace(benchmark, quick=(arguments,), quick_limit_s=_LIMIT_S), True, tmp_path)
    assert [run.problem for run in found.runs if run.problem] == []
    assert {line["least"] for line in found.lines} == {"planned", "floor"}
    for line in found.lines:
        assert line["failed"] == {} and line["over_budget"] == 0, line
        assert line["loss_bit_equal"] or model in VARYING
