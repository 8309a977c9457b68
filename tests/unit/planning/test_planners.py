from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from timelines import (
    INSTANT,
    MIB,
    RECORDED_LINK,
    FakeMachine,
    crowded_timelines,
    machines,
    make_timeline,
    timelines,
    training_step,
)

from tfswap.planning.planners import POLICIES, BudgetTooSmall, Decision, plan
from tfswap.planning.planners.greedy import plan_swaps
from tfswap.planning.planners.portfolio import NEED_DATAFLOW
from tfswap.planning.simulator import Swap, simulate
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline, crosses_step_end, peak_load
from tfswap.traces.events import find_step, timeline_of
from tfswap.traces.singa import read_singa

OPS = [(i * 10, i * 10 + 10) for i in range(8)]
FAST = FakeMachine(20e9, 20e9, 10_000, 10_000)
SLOW = FakeMachine(2e9, 2e9, 10_000, 10_000)
# The recording of VGG16 by AutoSwap's authors, used if it lies inside or beside the project. Their
# logged load includes blocks that the recording never touches.
UNTOUCHED_BYTES = 13_757_242
RECORDINGS = [
    path
    for parent in Path(__file__).parents[3:5]
    if (path := parent / "shared" / "data" / "singa" / "vec_block_fresh_vgg.csv").exists()
]


def check(timeline: Timeline, decision: Decision, machine: FakeMachine, budget: int) -> None:
    """Check invariants of every decision."""
    repeated = simulate(timeline, decision.swaps, machine)
    assert repeated.peak_bytes == decision.result.peak_bytes <= budget
    assert repeated.step_ns == decision.result.step_ns
    starts, ends = timeline.core.op_positions()
    for swap in sorted(decision.swaps):
        absence = timeline.absences[swap.absence]
        anchors = [op for op in (swap.gate_op, swap.trigger_op) if op >= 0]
        assert all(timeline.op_gateable[op] for op in anchors)
        assert all(timeline.op_context[op] == absence.context for op in anchors)
        # Edges point forward in the recorded order, so they cannot form cycles.
        if swap.trigger_op >= 0:
            assert ends[swap.trigger_op] < starts[absence.before_op]
        if swap.gate_op >= 0:
            assert absence.producer_op < 0 or ends[absence.producer_op] < starts[swap.gate_op]


def check_gates(timeline: Timeline, decision: Decision) -> None:
    """With a gate and a trigger for each copy, the peak does not depend on the link."""
    starts, ends = timeline.core.op_positions()
    makers: set[tuple[int, str]] = set()
    for swap in sorted(decision.swaps):
        absence = timeline.absences[swap.absence]
        if any(crosses_step_end(timeline, a) for a in timeline.absences):
            return
        needs_gate = (absence.buffer, absence.tensor) not in makers
        makers.add((absence.buffer, absence.tensor))
        assert needs_gate == (swap.gate_op >= 0)
        assert ends[absence.after_op] < ends[swap.trigger_op]
        if needs_gate:
            assert starts[swap.gate_op] < ends[swap.trigger_op]


def test_step_within_budget_is_not_swapped() -> None:
    timeline = training_step(blocks=2)
    peak = peak_load(timeline)
    decision = plan_swaps(timeline, FAST, peak)
    assert decision.swaps == ()
    assert decision.result.peak_bytes == peak
    assert decision.policy == "greedy"


def test_the_absence_that_costs_nothing_is_taken() -> None:
    buffers = [(4, 1, 78), (4, 11, 78), (6, 31, 45)]
    absences = (Absence(0, "long:0", 0, 0, 7), Absence(1, "short:0", 1, 2, 5))
    timeline = make_timeline(OPS, buffers, absences)
    decision = plan_swaps(timeline, FakeMachine(1e9, 1e9), 10, min_bytes=1, margin=0.0)
    assert [swap.absence for swap in decision.swaps] == [0]
    assert decision.result.stall_ns == 0
    assert decision.result.peak_bytes == 10


def test_gates_and_triggers_have_the_context_of_the_tensor() -> None:
    buffers = [(4, 1, 78), (8, 31, 45)]
    timeline = make_timeline(
        OPS,
        buffers,
        (Absence(0, "a:0", 0, 0, 7, (), 3),),
        op_context=np.array([0, 0, 3, 0, 3, 3, 0, 0], dtype=np.int32),
        op_gateable=np.array([True, True, True, True, True, False, True, True]),
    )
    decision = plan_swaps(timeline, FakeMachine(), 8, min_bytes=1, margin=0.0)
    assert decision.swaps == (Swap(0, gate_op=2, trigger_op=4),)


def test_a_buffer_is_absent_several_times_with_one_copy_out() -> None:
    ops = [(i * 100, i * 100 + 100) for i in range(8)]
    absences = (Absence(0, "a:0", 0, 0, 3), Absence(0, "a:0", 0, 3, 7))
    timeline = make_timeline(ops, [(10, 1, 790), (10, 201, 255), (10, 501, 555)], absences)
    decision = plan_swaps(timeline, FakeMachine(), 10, min_bytes=1, margin=0.0)
    assert [swap.absence for swap in decision.swaps] == [0, 1]
    assert (decision.result.bytes_out, decision.result.bytes_in) == (10, 20)


def test_small_buffers_are_not_swapped() -> None:
    timeline = make_timeline(OPS, [(4, 1, 78), (8, 31, 45)], (Absence(0, "a:0", 0, 0, 7),))
    with pytest.raises(BudgetTooSmall):
        plan_swaps(timeline, FakeMachine(), 8)


def test_no_margin_at_the_floor() -> None:
    buffers = [(4 * MIB, 1, 78), (8 * MIB, 31, 45)]
    timeline = make_timeline(OPS, buffers, (Absence(0, "a:0", 0, 0, 7),))
    decision = plan_swaps(timeline, FAST, 8 * MIB)
    assert decision.result.peak_bytes == 8 * MIB


def test_error_if_budget_is_too_small() -> None:
    buffers = [(40 * MIB, 1, 78), (100 * MIB, 31, 45), (60 * MIB, 35, OUTLIVES_STEP_NS)]
    timeline = make_timeline(
        OPS, buffers, (Absence(0, "a:0", 0, 0, 7),), 20 * MIB, op_names=tuple("ABCDEFGH")
    )
    with pytest.raises(BudgetTooSmall) as error:
        plan_swaps(timeline, FAST, 120 * MIB)
    assert str(error.value) == (
        "A budget of 120.0 MiB is too small: the least that a plan can keep is 180.0 MiB. While op "
        "'D' runs, 160.0 MiB are in buffers that cannot be swapped out then (its inputs, outputs "
        "and workspaces, and buffers that are too small or needed again too soon), in addition to "
        "20.0 MiB that are resident for the whole step. Set the budget to 182 MiB or more, or use "
        "a smaller batch."
    )
    assert error.value.budget_bytes == 120 * MIB
    assert error.value.floor_bytes == 180 * MIB
    assert error.value.op_name == "D"
    assert error.value.op_bytes == 160 * MIB
    assert error.value.suggestion_bytes == 182 * MIB
    suggested = plan_swaps(timeline, FAST, error.value.suggestion_bytes)
    assert suggested.result.peak_bytes == 180 * MIB


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^unknown policy 'best': allowed are 'auto', 'greedy', "):
        plan("best", training_step(blocks=1), FAST, MIB)


@pytest.mark.parametrize("policy", ["auto", *(p for p in POLICIES if p not in NEED_DATAFLOW)])
def test_each_policy_meets_the_budget(policy: str) -> None:
    if policy == "autoswap:bo":
        pytest.importorskip("bayes_opt")
    timeline = training_step(blocks=4)
    budget = peak_load(timeline) * 6 // 10
    if policy.startswith("vdnn"):
        budget = peak_load(timeline) * 8 // 10
    decision = plan(policy, timeline, FAST, budget)
    check(timeline, decision, FAST, budget)
    assert decision.swaps


def test_vdnn_offloads_each_feature_map_once_after_its_layer() -> None:
    timeline = training_step(blocks=4)
    decision = plan("vdnn_conv", timeline, FAST, peak_load(timeline) * 9 // 10)
    absences = [timeline.absences[swap.absence] for swap in decision.swaps]
    assert len({absence.tensor for absence in absences}) == len(absences) > 0
    forward_ends = timeline.op_names.index("loss")
    for absence in absences:
        assert absence.after_op < forward_ends < absence.before_op


def test_auto_raises_the_error_of_its_planners() -> None:
    with pytest.raises(BudgetTooSmall):
        plan("auto", training_step(blocks=2), FAST, 10 * MIB)


@pytest.mark.parametrize("fraction", [0.9, 0.8, 0.65, 0.55, 0.4, 0.25])
@pytest.mark.parametrize("machine", [FAST, SLOW], ids=["fast", "slow"])
def test_deep_budgets_of_a_training_step(fraction: float, machine: FakeMachine) -> None:
    timeline = training_step()
    budget = int(peak_load(timeline) * fraction)
    decision = plan_swaps(timeline, machine, budget)
    check(timeline, decision, machine, budget)
    check_gates(timeline, decision)
    if machine is FAST:
        assert decision.result.stall_ns <= timeline.step_ns // 1000
    # The traffic is about the excess over the budget; some bytes move more than once.
    assert decision.result.bytes_out <= 1.5 * (peak_load(timeline) - budget) + 64 * MIB


def test_the_same_input_gives_the_same_plan() -> None:
    plans = []
    for _ in range(2):
        timeline = training_step(blocks=6)
        plans.append(plan_swaps(timeline, SLOW, peak_load(timeline) // 2).swaps)
    assert plans[0] == plans[1]


def test_a_large_step_is_planned_in_about_a_second() -> None:
    timeline = training_step(blocks=60, layers=3, ops_per_layer=14)
    assert len(timeline.op_names) >= 5_900 and len(timeline.buffer_bytes) >= 1_500
    start = time.process_time()
    plan_swaps(timeline, SLOW, peak_load(timeline) // 2)
    # The limit has a reserve for slow machines.
    assert time.process_time() - start < 4.0


def least_budget(timeline: Timeline, machine: FakeMachine) -> int:
    try:
        return plan_swaps(timeline, machine, 1, min_bytes=1).result.peak_bytes
    except BudgetTooSmall as failure:
        return failure.floor_bytes


@settings(max_examples=300, deadline=None)
@given(timelines() | crowded_timelines(), machines, st.data())
def test_the_peak_never_exceeds_the_budget(
    timeline: Timeline, machine: FakeMachine, data: st.DataObject
) -> None:
    floor, peak = least_budget(timeline, machine), peak_load(timeline)
    assert floor <= peak
    budget = data.draw(st.integers(floor, max(floor, peak)))
    decision = plan_swaps(timeline, machine, budget, min_bytes=1)
    check(timeline, decision, machine, budget)
    check_gates(timeline, decision)


@settings(max_examples=100, deadline=None)
@given(timelines() | crowded_timelines(), machines, st.data())
def test_only_budgets_below_the_floor_are_too_small(
    timeline: Timeline, machine: FakeMachine, data: st.DataObject
) -> None:
    floor = least_budget(timeline, machine)
    assume(floor > 1)
    budget = data.draw(st.integers(1, floor - 1))
    with pytest.raises(BudgetTooSmall) as error:
        plan_swaps(timeline, machine, budget, min_bytes=1)
    assert error.value.floor_bytes == floor
    assert error.value.op_bytes + timeline.resident_bytes == floor
    assert error.value.suggestion_bytes >= floor


@settings(max_examples=100, deadline=None)
@given(crowded_timelines(), st.data())
def test_an_instant_link_costs_no_time(timeline: Timeline, data: st.DataObject) -> None:
    floor = least_budget(timeline, INSTANT)
    budget = data.draw(st.integers(floor, max(floor, peak_load(timeline))))
    assert plan_swaps(timeline, INSTANT, budget, min_bytes=1).result.stall_ns == 0


@settings(max_examples=100, deadline=None)
@given(crowded_timelines(), machines, machines, st.data())
def test_a_plan_keeps_its_peak_on_any_other_link(
    timeline: Timeline, machine: FakeMachine, other: FakeMachine, data: st.DataObject
) -> None:
    floor = least_budget(timeline, machine)
    budget = data.draw(st.integers(floor, max(floor, peak_load(timeline))))
    swaps = plan_swaps(timeline, machine, budget, min_bytes=1).swaps
    assert simulate(timeline, swaps, other).peak_bytes <= budget


@pytest.mark.skipif(not RECORDINGS, reason="the recording is not part of the project")
@pytest.mark.parametrize(
    ("limit_mib", "most_overhead_ms"),
    [(450, 0.0), (390, 0.0), (360, 0.05), (320, 1.0), (280, 4.0)],
)
def test_recorded_vgg_step(limit_mib: int, most_overhead_ms: float) -> None:
    timeline = replace(
        timeline_of(find_step(read_singa(RECORDINGS[0]))), resident_bytes=UNTOUCHED_BYTES
    )
    decision = plan_swaps(timeline, RECORDED_LINK, limit_mib * MIB)
    check(timeline, decision, RECORDED_LINK, limit_mib * MIB)
    assert decision.result.stall_ns <= most_overhead_ms * 1e6
