"""Local search: more time is never worse, and the budget holds."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import FakeMachine, machines, timelines, training_step

from tfswap.planning.planners import portfolio
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.planning.planners.improve import improve_plan
from tfswap.planning.planners.papers import autoswap
from tfswap.planning.simulator import simulate
from tfswap.step.timeline import Timeline, peak_load

SLOW = FakeMachine(3e9, 3e9, 10_000, 10_000)


def test_a_bad_plan_becomes_better() -> None:
    timeline = training_step(blocks=4)
    budget = peak_load(timeline) * 6 // 10
    bad = autoswap.plan_swaps(timeline, SLOW, budget, score="aoa")
    assert bad.result.stall_ns > 0
    better = improve_plan(bad, timeline, SLOW, budget, time.monotonic() + 1.0)
    assert better.result.stall_ns < bad.result.stall_ns
    repeated = simulate(timeline, better.swaps, SLOW)
    assert repeated.step_ns == better.result.step_ns and repeated.peak_bytes <= budget


def test_progress_is_logged() -> None:
    timeline = training_step(blocks=4)
    budget = peak_load(timeline) // 2
    machine = FakeMachine(0.3e9, 0.3e9)
    lines: list[str] = []
    bad = autoswap.plan_swaps(timeline, machine, budget, score="doa")
    improve_plan(bad, timeline, machine, budget, time.monotonic() + 1.5, lines.append)
    assert lines and lines[0].startswith("planning: waits of ")


@settings(max_examples=40, deadline=None)
@given(timelines(), machines, st.data())
def test_search_keeps_the_budget(
    timeline: Timeline, machine: FakeMachine, data: st.DataObject
) -> None:
    budget = data.draw(st.integers(1, max(peak_load(timeline), 1)))
    try:
        first = portfolio.POLICIES["greedy"](timeline, machine, budget)
    except BudgetTooSmall:
        return
    deadline_s = time.monotonic() + 0.02
    better = improve_plan(first, timeline, machine, budget, deadline_s, min_bytes=1)
    assert better.result.peak_bytes <= budget
    assert better.result.step_ns <= first.result.step_ns


@pytest.mark.parametrize("planning_time_s", [0.0, 0.2])
def test_auto_is_never_worse_than_any(planning_time_s: float) -> None:
    timeline = training_step(blocks=3)
    budget = peak_load(timeline) * 7 // 10
    best = portfolio.plan("auto", timeline, SLOW, budget, planning_time_s=planning_time_s)
    for name in ("greedy", "autoswap:swdoa", "tensile", "capuchin"):
        try:
            other = portfolio.plan(name, timeline, SLOW, budget)
        except BudgetTooSmall:
            continue
        if planning_time_s:
            assert best.result.step_ns <= other.result.step_ns, name
