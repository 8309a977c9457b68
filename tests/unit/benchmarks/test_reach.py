"""What the benchmark of movable bytes counts, and its lines."""

from __future__ import annotations

from typing import Any

import pytest
from timelines import make_timeline

from benchmarks.reach import RESIDENT, Case, immovable, reach
from benchmarks.trainings import Trainer
from tfswap.step.timeline import Absence

OPS = [(10 * i, 10 * i + 10) for i in range(6)]


def test_bytes_at_the_peak_without_an_absence_are_counted_by_their_maker() -> None:
    timeline = make_timeline(
        OPS,
        [(40, 1, 58), (30, 12, 39), (50, 31, 39), (60, 45, 50)],  # the peak is at 31
        (Absence(0, "op0:0", 0, 1, 5),),
        resident_bytes=7,
        op_types=("A", "B", "C", "D", "E", "F"),
    )
    assert immovable(timeline) == {"D": 50, "B": 30, RESIDENT: 7}


class Trainings(Trainer):
    """Answers as by the process that trains, which is not started."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.cases: list[Case] = []

    def train(self, case: Case) -> dict[str, Any]:
        self.cases.append(case)
        if self.fails and len(self.cases) == 3:
            return {"failed": "no memory"}
        return {
            "losses": ["0x1p0"],
            "step_s": 1.0 + len(self.cases),
            "peak_bytes": 100,
            "floor_bytes": 20,
            "immovable": {"A": 10} if case.is_profiled else {},
        }


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_trains_unswapped_with_a_profile_and_in_half(fails: bool) -> None:
    trainings = Trainings(fails)
    line = reach(trainings, Case("LSTM", 8, 96, 6), 0.5)
    budgets = [(case.budget_bytes, case.is_profiled) for case in trainings.cases]
    assert budgets == [(None, False), (125, True), (50, False)]
    assert line["immovable"] == {"A": 10} and line["immovable_share"] == 0.1
    assert line["trains_at_half"] is not fails and line.get("error") == (
        "no memory" if fails else None
    )
    assert line["step_ratio"] == (None if fails else 2.0)
