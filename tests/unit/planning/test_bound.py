"""No plan waits less than the lower bound."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import (
    MIB,
    FakeMachine,
    crowded_timelines,
    machines,
    make_timeline,
    swaps_for,
    timelines,
)

from tfswap.planning.planners.bound import least_wait_ns
from tfswap.planning.simulator import simulate
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline, peak_load

OPS = [(i * 10, i * 10 + 10) for i in range(6)]


def test_step_within_budget_has_bound_zero() -> None:
    timeline = make_timeline(OPS, [(10, 1, 25)])
    assert least_wait_ns(timeline, FakeMachine(), 10) == 0


def test_late_copy_out() -> None:
    # 30 bytes produced by op 0 must be copied out when op 1 allocates 30 more at 15 ns: at 1
    # byte/ns that takes until 40.
    absence = Absence(0, "a:0", 0, 0, 5)
    timeline = make_timeline(OPS, [(30, 1, OUTLIVES_STEP_NS), (30, 15, 20)], (absence,))
    assert least_wait_ns(timeline, FakeMachine(), 30) == 25
    # Half of the excess needs half of the copy.
    assert least_wait_ns(timeline, FakeMachine(), 45) == 10


def test_waits_before_and_after_add_up() -> None:
    absence = Absence(0, "a:0", 0, 0, 3)
    timeline = make_timeline(OPS, [(30, 1, OUTLIVES_STEP_NS), (30, 25, 28)], (absence,))
    # Copied out by 40 instead of 25, and copied in from 25 on within 5 ns instead of 30.
    assert least_wait_ns(timeline, FakeMachine(), 30) == 15 + 25


def test_infeasible_budget_gives_step_time() -> None:
    timeline = make_timeline(OPS, [(30, 1, 50)])
    assert least_wait_ns(timeline, FakeMachine(), 10) == timeline.step_ns


@settings(max_examples=400, deadline=None)
@given(timelines() | crowded_timelines(), machines, st.data())
def test_no_plan_waits_less(timeline: Timeline, machine: FakeMachine, data: st.DataObject) -> None:
    result = simulate(timeline, data.draw(swaps_for(timeline)), machine)
    budget = data.draw(st.integers(result.peak_bytes, max(result.peak_bytes, peak_load(timeline))))
    assert least_wait_ns(timeline, machine, budget) <= result.stall_ns


def test_the_bound_of_a_large_budget_is_zero() -> None:
    timeline = make_timeline(OPS, [(30, 1, 50)])
    assert least_wait_ns(timeline, FakeMachine(), MIB) == 0
