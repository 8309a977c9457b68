"""Validation, load curve and peak of a timeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from timelines import make_timeline

from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline, load_curve, peak_load

OPS = [(i * 10, i * 10 + 10) for i in range(6)]
ABSENCE = Absence(0, "a:0", producer_op=0, after_op=0, before_op=5)


def one_absence() -> Timeline:
    return make_timeline(OPS, [(10, 1, OUTLIVES_STEP_NS)], (ABSENCE,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op_names": ("a",)}, "op_start_ns has 6 entries, but there are 1 op_names"),
        ({"op_end_ns": np.array([10, 5, 30, 40, 50, 60])},
         "op 1 (op1) ends at 5 ns, before it starts at 10 ns"),
        ({"op_start_ns": np.array([0, 10, 5, 30, 40, 50])},
         "op 2 (op2) starts at 5 ns, before op 1: ops must be sorted by start"),
        ({"step_ns": 59}, "the last op ends at 60 ns, after the step (59 ns)"),
        ({"resident_bytes": -1}, "resident_bytes is -1: it must not be negative"),
        ({"buffer_free_ns": np.array([0])},
         "buffer 0 is freed at 0 ns, before it is allocated at 1 ns"),
        ({"buffer_free_ns": np.array([50])},
         "absence 0 (a:0): buffer 0 is freed at 50 ns, but before_op 5 starts at 50 ns"),
        ({"buffer_alloc_ns": np.array([10])},
         "absence 0 (a:0): buffer 0 is allocated at 10 ns, but after_op 0 ends at 10 ns"),
        ({"absences": (replace(ABSENCE, buffer=1),)},
         "absence 0 (a:0) names buffer 1, but there are 1"),
        ({"absences": (replace(ABSENCE, after_op=6),)},
         "absence 0 (a:0): after_op is 6, but there are 6 ops"),
        ({"absences": (replace(ABSENCE, before_op=0),)},
         "absence 0 (a:0): after_op 0 ends at 10 ns, which is not before before_op 0 starts at "
         "0 ns, and buffer 0 does not outlive the step"),
        ({"absences": (replace(ABSENCE, producer_op=1),)},
         "absence 0 (a:0): producer_op 1 ends at 20 ns, after after_op 0 at 10 ns"),
        ({"absences": (ABSENCE, replace(ABSENCE, tensor="b:0", after_op=2))},
         "absence 1 (b:0): after_op 2 ends before op 5, which ends absence 0 of the same buffer"),
        ({"absences": (replace(ABSENCE, before_op=2),
                       replace(ABSENCE, after_op=3, producer_op=2))},
         "absence 1 (a:0): producer_op is 2, but an earlier absence of this tensor, or one across "
         "the step's end, has 0"),
    ],
)  # fmt: skip
def test_malformed_timelines_are_refused(changes: dict[str, object], message: str) -> None:
    timeline = replace(one_absence(), **changes)
    with pytest.raises(ValueError) as error:
        timeline.validate()
    assert str(error.value) == message


def test_load_curve_and_peak_of_the_unswapped_step() -> None:
    timeline = make_timeline(OPS, [(7, -5, 20), (5, 20, OUTLIVES_STEP_NS)], resident_bytes=2)
    times, loads = load_curve(timeline)
    assert times.tolist() == [0, 20] and loads.tolist() == [9, 7]
    assert timeline.unswapped_load()[1].tolist() == [9, 7]
    assert peak_load(timeline) == 9
