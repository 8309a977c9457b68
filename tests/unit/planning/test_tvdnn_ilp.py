"""tvDNN's optimal schedule: known optima, and a lower bound for every plan."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import (
    FakeMachine,
    crowded_timelines,
    machines,
    make_timeline,
    swaps_for,
    timelines,
    training_step,
)

from tfswap.planning.planners import POLICIES, portfolio
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.planning.planners.papers.tvdnn import plan_heuristic
from tfswap.planning.planners.papers.tvdnn_ilp import optimum, plan_ilp
from tfswap.planning.simulator import Swap, simulate
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline, peak_load

pytest.importorskip("scipy")

OPS = [(i * 10, i * 10 + 10) for i in range(8)]


def test_auto_does_not_try_tvdnn_ilp() -> None:
    assert POLICIES["tvdnn_ilp"] is plan_ilp
    timeline = training_step(blocks=2)
    auto = portfolio.plan("auto", timeline, FakeMachine(), peak_load(timeline) * 3 // 4)
    assert not auto.policy.startswith("tvdnn_ilp")


def test_step_within_budget_is_not_swapped() -> None:
    timeline = make_timeline(OPS, [(10, 1, 25)])
    decision = plan_ilp(timeline, FakeMachine(), 10, min_bytes=1)
    assert decision.swaps == () and decision.notes == ()


def test_the_least_wait_is_found_and_proven() -> None:
    # 30 bytes produced by op 0 must be copied out when op 1 allocates 30 more: 30 ns at 1 byte/ns.
    # The copy-in for op 4 starts at the end of op 2 and takes 30 ns, 10 of them hidden.
    absence = Absence(0, "a:0", 0, 0, 4)
    timeline = make_timeline(OPS, [(30, 1, OUTLIVES_STEP_NS), (30, 10, 30)], (absence,))
    decision = plan_ilp(timeline, FakeMachine(), 30, min_bytes=1)
    assert decision.result.stall_ns == 30 + 20
    assert decision.result.peak_bytes == 30
    assert decision.notes[0].startswith("tvdnn_ilp: optimal in ")


def test_small_hidden_copies_beat_a_large_exposed_one() -> None:
    buffers = [(20, 1, 79), (6, 1, 79), (6, 11, 79), (12, 30, 45)]
    absences = (Absence(0, "a:0", 0, 1, 7), Absence(1, "b:0", 0, 1, 6), Absence(2, "c:0", 1, 1, 7))
    timeline = make_timeline(OPS, buffers, absences)
    decision = plan_ilp(timeline, FakeMachine(), 32, min_bytes=1)
    assert decision.result.stall_ns == 0
    assert decision.result.bytes_out <= 20
    assert decision.notes[0].startswith("tvdnn_ilp: optimal in ")


def test_gap_is_reported() -> None:
    # The bound must allow the copy-out to end inside op 1, but a gate delays the whole op.
    absence = Absence(0, "a:0", 0, 0, 7)
    timeline = make_timeline(OPS, [(30, 1, OUTLIVES_STEP_NS), (30, 15, 20)], (absence,))
    decision, least_ns = optimum(timeline, FakeMachine(), 30, min_bytes=1)
    assert (decision.result.stall_ns, least_ns) == (30, 25)
    assert ", gap 17 %: no schedule of swaps waits less than 2.5e-05 ms" in decision.notes[0]


def test_policy_of_the_plan_is_reported_without_time() -> None:
    timeline = training_step(blocks=3)
    machine = FakeMachine(3e9, 3e9)
    decision = plan_ilp(timeline, machine, peak_load(timeline) * 6 // 10, time_limit_s=0.0)
    assert decision.policy == "tvdnn_ilp"
    assert "stopped after" in decision.notes[0]
    assert decision.notes[1].startswith("tvdnn_ilp: the plan is that of ")


def test_a_budget_that_cannot_be_met() -> None:
    timeline = make_timeline(OPS, [(30, 1, 50)])
    with pytest.raises(BudgetTooSmall, match=r"too small for tvdnn_ilp.*Set the budget to 1 MiB"):
        plan_ilp(timeline, FakeMachine(), 10, min_bytes=1)


def test_a_training_step_waits_no_longer_than_the_heuristic() -> None:
    timeline = training_step(blocks=4)
    machine = FakeMachine(6e9, 6e9, 10_000, 10_000)
    budget = peak_load(timeline) * 6 // 10
    decision, least_ns = optimum(timeline, machine, budget, time_limit_s=4.0)
    repeated = simulate(timeline, decision.swaps, machine)
    assert repeated.stall_ns == decision.result.stall_ns and repeated.peak_bytes <= budget
    assert least_ns <= repeated.stall_ns
    assert repeated.stall_ns <= plan_heuristic(timeline, machine, budget).result.stall_ns


@pytest.mark.parametrize("tenths", [6, 7, 8])
def test_auto_is_near_the_optimum(tenths: int) -> None:
    timeline = training_step(blocks=4)
    machine = FakeMachine(4e9, 4e9, 10_000, 10_000)
    budget = peak_load(timeline) * tenths // 10
    auto = portfolio.plan("auto", timeline, machine, budget)
    optimal = plan_ilp(timeline, machine, budget, time_limit_s=3.0)
    assert auto.result.step_ns <= 1.05 * optimal.result.step_ns


@settings(max_examples=100, deadline=None)
@given(timelines() | crowded_timelines(), machines, st.data())
def test_no_plan_waits_less_than_the_bound(
    timeline: Timeline, machine: FakeMachine, data: st.DataObject
) -> None:
    any_plan = simulate(timeline, data.draw(swaps_for(timeline)), machine)
    lowest = any_plan.peak_bytes
    budget = data.draw(st.integers(lowest, max(lowest, peak_load(timeline))))
    try:
        decision, least_ns = optimum(timeline, machine, budget, min_bytes=1, time_limit_s=0.25)
    except BudgetTooSmall:
        return
    assert least_ns <= any_plan.stall_ns
    assert least_ns <= decision.result.stall_ns
    assert decision.result.peak_bytes <= budget
    repeated = simulate(timeline, decision.swaps, machine)
    assert repeated.step_ns == decision.result.step_ns


@settings(max_examples=40, deadline=None)
@given(timelines(max_ops=6), machines, st.integers(5, 9))
def test_no_subset_with_any_gates_and_triggers_waits_less_than_the_bound(
    timeline: Timeline, machine: FakeMachine, tenths: int
) -> None:
    budget = peak_load(timeline) * tenths // 10
    try:
        _, least_ns = optimum(timeline, machine, budget, min_bytes=1, time_limit_s=0.25)
    except BudgetTooSmall as error:
        assert error.floor_bytes > budget
        return
    best_ns = min(_waits_of_all(timeline, machine, budget), default=timeline.step_ns)
    assert least_ns <= best_ns


def _waits_of_all(timeline: Timeline, machine: FakeMachine, budget: int) -> list[int]:
    starts, ends = timeline.core.op_positions()
    ops = range(len(timeline.op_names))
    waits = []
    for count in range(min(len(timeline.absences), 2) + 1):
        for chosen in combinations(range(len(timeline.absences)), count):
            anchors = []
            for index in chosen:
                producer = timeline.absences[index].producer_op
                ready = -1 if producer < 0 else int(ends[producer])
                gates = [-1, *np.flatnonzero(starts > ready).tolist()]
                anchors.append([Swap(index, g, t) for g, t in product(gates, [-1, *ops])])
            for swaps in product(*anchors):
                result = simulate(timeline, swaps, machine)
                if result.peak_bytes <= budget:
                    waits.append(result.stall_ns)
    return waits
