"""Peaks, predictions and bits of quick benchmarks are not worse than `benchmarks/expected.json`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.expectations import judge, read
from benchmarks.measurements import measure
from benchmarks.rulers import Ruler, named

EXPECTED = read()
JUDGED = sorted({entry["ruler"] for entry in EXPECTED})


def worse(ruler: Ruler, folder: Path) -> list[str]:
    """What is not as expected, or did not run."""
    found = measure(ruler, True, folder)
    problems = [run.problem for run in found.runs if run.problem]
    verdicts = judge(EXPECTED, {ruler.name: found.lines})
    of_runs = [v for v in verdicts if found.lines and "there is no such line" not in v.text]
    assert of_runs
    return [*problems, *(verdict.text for verdict in of_runs if not verdict.holds)]


@pytest.mark.parametrize(
    "name", ["planners", "packing", pytest.param("budget_sweep", marks=pytest.mark.slow)]
)
def test_figures_of_a_small_model_are_not_worse_than_they_were(name: str, tmp_path: Path) -> None:
    (ruler,) = named([name])
    first = dataclasses.replace(ruler, quick=ruler.quick[:1])
    assert worse(first, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_figures_of_quick_benchmarks_are_not_worse_than_they_were(
    name: str, tmp_path: Path
) -> None:
    (ruler,) = named([name])
    found = measure(ruler, True, tmp_path)
    assert [run.problem for run in found.runs if run.problem] == []
    verdicts = judge(EXPECTED, {name: found.lines})
    assert verdicts and [verdict.text for verdict in verdicts if not verdict.holds] == []
