"""When steps are recorded in passing, and when plans may be made anew for what drifts."""

from __future__ import annotations

from tfswap.training.drift_watch import FIRST_PAUSE, DriftWatch


def run(watch: DriftWatch, seconds: float, steps: int) -> int:
    """Steps of that length; says how many of them were recorded."""
    recorded = 0
    for _ in range(steps):
        wants = watch.wants
        recorded += wants
        watch.step_ended(seconds, wants)
    return recorded


def test_steps_are_recorded_ever_more_rarely() -> None:
    watch = DriftWatch()
    assert run(watch, 1.0, FIRST_PAUSE) == 0
    assert run(watch, 1.0, 1) == 1
    assert run(watch, 1.0, 2 * FIRST_PAUSE) == 0
    assert run(watch, 1.0, 1) == 1
    assert run(watch, 1.0, 100_000) <= 100_000 // 1024 + 3


def test_steps_of_another_length_are_looked_at_soon() -> None:
    watch = DriftWatch()
    run(watch, 1.0, 20)
    assert run(watch, 1.2, 40) == 0
    assert run(watch, 2.0, 20) == 8
    assert run(watch, 2.0, 30) <= 1  # that is usual from now on


def test_a_single_long_step_is_nothing() -> None:
    watch = DriftWatch()
    run(watch, 1.0, 20)
    assert run(watch, 3.0, 1) + run(watch, 1.0, 20) == 0


def test_plans_for_drift_become_rare() -> None:
    watch, planned = DriftWatch(), 0
    for step in range(100_000):
        watch.step_ended(1.0 + step % 2, watch.wants)
        if watch.may_plan:
            watch.planned()
            planned += 1
    assert planned <= 10


def test_after_a_plan_steps_may_take_other_times() -> None:
    watch = DriftWatch()
    run(watch, 1.0, 20)
    watch.planned()
    assert run(watch, 2.0, FIRST_PAUSE) == 0
