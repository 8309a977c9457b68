"""Moving averages of what ops take, from made recordings."""

from __future__ import annotations

import numpy as np
import pytest
from timelines import make_timeline

from tfswap.step.graph import StepGraph
from tfswap.step.op_durations import op_durations, planned_durations
from tfswap.step.trace import ACCESS_DTYPE, BUFFER_DTYPE, OP_DTYPE, StepTrace
from tfswap.training.op_times import OpTimes

PLANNED = {"a": 100, "b": 300}


def times(**factors: float) -> dict[str, int]:
    return {op: round(ns * factors.get(op, 1.0)) for op, ns in PLANNED.items()}


def test_a_disturbed_step_is_no_drift_and_a_second_one_is() -> None:
    ops = OpTimes(PLANNED)
    assert ops.add(times(a=2.0, b=2.0)) == pytest.approx(1.0)
    assert ops.drift == pytest.approx(0.25) and not ops.has_drifted
    ops.add(times(a=2.0, b=2.0))
    assert ops.has_drifted


def test_a_disturbed_step_is_forgotten() -> None:
    ops = OpTimes(PLANNED)
    ops.add(times(a=2.0, b=2.0))
    for _ in range(12):
        ops.add(times())
    assert ops.drift == pytest.approx(0.0, abs=0.01)


def test_ratios_are_those_of_each_op() -> None:
    ops = OpTimes(PLANNED)
    for _ in range(40):
        ops.add(times(a=3.0, b=0.5))
    assert ops.ratios() == pytest.approx({"a": 3.0, "b": 0.5}, rel=0.01)
    assert ops.average_ns == pytest.approx(450, rel=0.01)


def test_drift_begins_anew_from_what_is_planned_with() -> None:
    ops = OpTimes(PLANNED)
    for _ in range(40):
        ops.add(times(a=2.0, b=2.0))
    ops.plan_with_averages()
    assert ops.planned_ns == pytest.approx(800, rel=0.01) and ops.drift == 0
    ops.add(times(a=2.0, b=2.0))
    assert not ops.has_drifted


def test_swaps_and_clones_do_not_count() -> None:
    ops = OpTimes(PLANNED)
    ops.add({**times(), "tfswap/out/a_0": 10_000, "a/again/0": 10_000})
    assert ops.drift == 0


def test_a_recording_of_a_part_is_not_taken() -> None:
    ops = OpTimes(PLANNED)
    assert ops.add({"a": 10_000}) is None
    assert ops.drift == 0


def test_ops_without_duration_have_ratios() -> None:
    ops = OpTimes({"a": 0, "b": 100})
    ops.add({"a": 0, "b": 100})
    assert ops.ratios() == {"a": 1.0, "b": 1.0}


def test_durations_leave_out_waits_for_memory_and_for_data() -> None:
    names = ("a", "b", "next", "Conv2D", "IteratorGetNext", "graph")
    ops = np.zeros(3, OP_DTYPE)
    ops["name"], ops["type"], ops["graph"] = (0, 1, 2), (3, 3, 4), 5
    ops["start_ns"], ops["end_ns"], ops["wait_ns"] = (0, 10, 0), (10, 50, 90), (0, 15, 0)
    empty = np.zeros(0, BUFFER_DTYPE), np.zeros(0, ACCESS_DTYPE)
    graph = StepGraph.parse("a\tConv2D\t0\to\t1\nb\tConv2D\t0\to\t1\ta:0\n")
    assert op_durations(StepTrace(0, 100, 0, ops, *empty, names), graph) == {"a": 10, "b": 25}
    other = StepGraph.parse("c\tConv2D\t0\to\t1\n")
    with pytest.raises(ValueError, match="no op of the training graph"):
        op_durations(StepTrace(0, 100, 0, ops, *empty, names), other)


def test_planned_durations_are_those_of_the_timeline() -> None:
    timeline = make_timeline(
        [(0, 10), (5, 30), (30, 90)], [], op_types=("Conv2D", "Conv2D", "IteratorGetNext")
    )
    assert planned_durations(timeline) == {"op0": 10, "op1": 25}
