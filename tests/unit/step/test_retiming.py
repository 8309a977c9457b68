"""A step whose ops take other times is the same step: only its axis is stretched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import make_timeline, timelines, training_step

from tfswap.step.retiming import retimed
from tfswap.step.timeline import OUTLIVES_STEP_NS, Timeline, load_curve, peak_load

RATIOS = st.floats(0.01, 100.0)


def all_times(timeline: Timeline) -> np.ndarray:
    """Of all events, in one order for all timelines of a step."""
    return np.concatenate(
        [
            timeline.op_start_ns,
            timeline.op_end_ns,
            timeline.buffer_alloc_ns,
            np.minimum(timeline.buffer_free_ns, OUTLIVES_STEP_NS),
            [0, timeline.step_ns],
        ]
    )


@settings(deadline=None)
@given(timelines(), st.data())
def test_the_order_of_events_is_kept(timeline: Timeline, data: st.DataObject) -> None:
    ratios = {name: data.draw(RATIOS) for name in timeline.op_names if data.draw(st.booleans())}
    after = retimed(timeline, ratios, data.draw(RATIOS))
    after.validate()
    before_ns, after_ns = all_times(timeline), all_times(after)
    assert np.array_equal(
        np.sign(before_ns[:, None] - before_ns), np.sign(after_ns[:, None] - after_ns)
    )


@settings(deadline=None)
@given(timelines(), st.data())
def test_the_load_goes_through_the_same_values(timeline: Timeline, data: st.DataObject) -> None:
    ratios = {name: data.draw(RATIOS) for name in timeline.op_names}
    after = retimed(timeline, ratios)
    assert load_curve(after)[1].tolist() == load_curve(timeline)[1].tolist()
    assert peak_load(after) == peak_load(timeline)


@given(timelines())
def test_nothing_changes_where_ops_take_what_they_took(timeline: Timeline) -> None:
    after = retimed(timeline, dict.fromkeys(timeline.op_names, 1.0))
    assert np.array_equal(all_times(after), all_times(timeline))


@given(st.integers(2, 9))
def test_a_step_without_gaps_scales_with_its_ops(ratio: int) -> None:
    timeline = make_timeline([(0, 10), (10, 30), (20, 50)], [(5, 0, 40), (3, 12, 50)])
    after = retimed(timeline, {}, float(ratio))
    assert np.array_equal(all_times(after), ratio * all_times(timeline))


def test_each_op_takes_its_own_ratio() -> None:
    timeline = make_timeline([(0, 10), (20, 40), (20, 40)], [(1, 5, 30)])
    after = retimed(timeline, {"op0": 3.0, "op1": 2.0, "op2": 0.5})
    assert after.op_start_ns.tolist() == [0, 40, 40]  # the gap is as long as it was
    assert after.op_end_ns.tolist() == [30, 65, 65]  # 1.25: the mean of the two
    assert (after.buffer_alloc_ns[0], after.buffer_free_ns[0]) == (15, 52)


def test_what_outlives_the_step_still_does() -> None:
    timeline = make_timeline([(0, 10)], [(1, 0, OUTLIVES_STEP_NS)])
    assert retimed(timeline, {"op0": 2.0}).buffer_free_ns[0] == OUTLIVES_STEP_NS


def test_clones_go_by_the_op_that_they_are_of() -> None:
    timeline = make_timeline([(0, 10), (10, 20)], [], op_names=("a", "a/again/0"))
    assert retimed(timeline, {"a": 2.0}).step_ns == 40


def test_absences_stay_those_of_the_same_ops() -> None:
    timeline = training_step(blocks=4)
    after = retimed(timeline, {name: 2.0 for name in timeline.op_names[::2]})
    assert after.absences == timeline.absences
    after.validate()


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_ratios_are_finite_and_above_zero(ratio: float) -> None:
    with pytest.raises(ValueError, match="finite numbers above 0"):
        retimed(make_timeline([(0, 10)], []), {"op0": ratio})
