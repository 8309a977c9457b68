"""Peaks, predictions and bits of quick benchmarks are not worse than `benchmarks/expected.json`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.expectations import judge, read
from benchmarks.measurements import measure
from benchmarks.rulers import named

EXPECTED = read()
JUDGED = sorted({entry["ruler"] for entry in EXPECTED})


@pytest.mark.parametrize("name", JUDGED)
def test_figures_of_quick_benchmarks_are_not_worse_than_they_were(
    name: str, tmp_path: Path
) -> None:
    (ruler,) = named([name])
    found = measure(ruler, True, tmp_path)
    assert [run.problem for run in found.runs if run.problem] == []
    verdicts = judge(EXPECTED, {name: found.lines})
    assert verdicts and [verdict.text for verdict in verdicts if not verdict.holds] == []
