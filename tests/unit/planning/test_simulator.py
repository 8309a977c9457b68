from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_simulator import reference_simulate
from timelines import (
    INSTANT,
    MIB,
    FakeMachine,
    crowded_timelines,
    machines,
    make_timeline,
    order_for,
    swaps_for,
    timelines,
    training_step,
)

from tfswap import _core
from tfswap.planning.simulator import SimResult, Swap, core_tiers, simulate, swap_rows
from tfswap.step.timeline import (
    OUTLIVES_STEP_NS,
    Absence,
    Timeline,
    crosses_step_end,
)

OPS = [(i * 10, i * 10 + 10) for i in range(6)]
# Bytes and ns are the same with FakeMachine(): a buffer of 10 bytes takes 10 ns each way.
ABSENCE = Absence(0, "a:0", producer_op=0, after_op=0, before_op=5)


def one_absence(size: int = 10, **changes: object) -> Timeline:
    return make_timeline(OPS, [(size, 1, OUTLIVES_STEP_NS)], (ABSENCE,), **changes)


def curve(result: SimResult) -> list[tuple[int, int]]:
    times, loads = result.load_curve()
    return list(zip(times.tolist(), loads.tolist(), strict=True))


def test_without_swaps_nothing_changes() -> None:
    timeline = make_timeline(OPS, [(7, 1, 25), (5, 20, 30), (3, 30, 40)], resident_bytes=2)
    result = simulate(timeline, [], FakeMachine())
    assert (result.step_ns, result.stall_ns, result.stalls) == (60, 0, [])
    assert (result.peak_bytes, result.peak_ns, result.peak_op) == (14, 20, 2)
    assert result.peak_holders == [(0, 7), (1, 5)]
    assert result.fits and not result.bytes_out and result.far_peak_bytes == [0]
    assert curve(result) == [(0, 2), (1, 9), (20, 14), (25, 7), (30, 2), (30, 5), (40, 2)]


def test_memory_is_away_between_the_copies() -> None:
    result = simulate(one_absence(), [Swap(0, gate_op=2, trigger_op=3)], FakeMachine())
    assert result.stall_ns == 0
    assert curve(result) == [(0, 0), (1, 10), (20, 0), (40, 10)]
    assert result.swap_times().tolist() == [[10, 20, 20, 40, 50]]
    assert (result.bytes_out, result.bytes_in, result.far_peak_bytes) == (10, 10, [10])


def test_a_gate_waits_for_its_copy_out() -> None:
    result = simulate(one_absence(), [Swap(0, gate_op=1, trigger_op=3)], FakeMachine())
    assert result.stalls == [(1, "gate", 0, 10)]
    assert result.step_ns == 70
    assert result.swap_times().tolist() == [[10, 20, 20, 50, 60]]


def test_an_op_waits_for_its_copy_in() -> None:
    result = simulate(one_absence(), [Swap(0, gate_op=2, trigger_op=4)], FakeMachine(1e9, 0.5e9))
    assert result.stalls == [(5, "swap-in", 0, 20)]
    assert result.step_ns == 80


def test_copy_in_does_not_wait_for_a_late_trigger() -> None:
    result = simulate(one_absence(), [Swap(0, gate_op=2, trigger_op=5)], FakeMachine())
    assert result.stalls == [(5, "swap-in", 0, 10)]
    assert result.swap_times()[0].tolist() == [10, 20, 20, 50, 60]


def test_without_a_trigger_the_copy_comes_back_at_once() -> None:
    result = simulate(one_absence(), [Swap(0)], FakeMachine())
    assert result.swap_times()[0].tolist() == [10, 20, 20, 20, 30]


def test_the_copy_in_waits_for_a_slow_copy_out() -> None:
    result = simulate(one_absence(), [Swap(0, -1, trigger_op=1)], FakeMachine(0.1e9, 1e9))
    assert result.swap_times()[0].tolist() == [10, 110, 110, 110, 120]
    assert result.stalls == [(5, "swap-in", 0, 70)]


def test_memory_is_released_only_when_the_last_reader_has_ended() -> None:
    absence = replace(ABSENCE, after_op=3)
    timeline = make_timeline(OPS, [(10, 1, OUTLIVES_STEP_NS)], (absence,))
    result = simulate(timeline, [Swap(0, 2, 4)], FakeMachine())
    assert result.swap_times()[0].tolist() == [10, 20, 40, 50, 60]


def test_gate_and_first_reader_can_be_the_same_op() -> None:
    result = simulate(one_absence(), [Swap(0, gate_op=5, trigger_op=4)], FakeMachine(0.2e9, 1e9))
    assert result.stalls == [(5, "gate", 0, 10), (5, "swap-in", 0, 10)]


def test_a_second_absence_of_a_tensor_needs_no_copy_out() -> None:
    absences = (Absence(0, "a:0", 0, 0, 2), Absence(0, "a:0", 0, 2, 5))
    timeline = make_timeline(OPS, [(5, 1, OUTLIVES_STEP_NS)], absences)
    result = simulate(timeline, [Swap(1, -1, 4), Swap(0, 2, 1)], FakeMachine())
    assert (result.bytes_out, result.bytes_in, result.far_peak_bytes) == (5, 10, [5])
    assert result.swap_times().tolist() == [[-1, -1, 35, 55, 60], [10, 15, 15, 20, 25]]
    assert result.stalls == [(2, "swap-in", 1, 5), (5, "swap-in", 0, 5)]


def test_another_tensor_in_the_same_buffer_needs_its_own_copy_out() -> None:
    absences = (Absence(0, "a:0", 0, 0, 2), Absence(0, "b:0", 2, 2, 5))
    timeline = make_timeline(OPS, [(5, 1, OUTLIVES_STEP_NS)], absences)
    result = simulate(timeline, [Swap(0, -1, 1), Swap(1, -1, 4)], FakeMachine())
    assert result.bytes_out == 10


def test_each_direction_is_first_come_first_served() -> None:
    absences = (Absence(0, "a:0", 0, 0, 5), Absence(1, "b:0", 0, 0, 4))
    timeline = make_timeline(OPS, [(10, 1, 70), (10, 1, 70)], absences)
    result = simulate(timeline, [Swap(0, -1, 2), Swap(1, -1, 2)], FakeMachine())
    assert result.swap_times().tolist() == [[10, 20, 20, 30, 40], [20, 30, 30, 40, 50]]
    assert result.stalls == [(4, "swap-in", 1, 10)]


def test_an_allocation_beyond_the_budget_waits_for_a_copy_out() -> None:
    timeline = make_timeline(OPS, [(10, 1, OUTLIVES_STEP_NS), (10, 15, 35)], (ABSENCE,))
    result = simulate(timeline, [Swap(0, -1, 4)], FakeMachine(), budget_bytes=10)
    assert result.stalls == [(1, "budget", 0, 5), (5, "swap-in", 0, 10)]
    assert result.fits and result.peak_bytes == 10


def test_hopeless_allocation_exceeds_the_budget() -> None:
    timeline = make_timeline(OPS, [(10, 1, 45), (10, 15, 35)])
    result = simulate(timeline, [], FakeMachine(), budget_bytes=19)
    assert not result.fits
    assert (result.stall_ns, result.peak_bytes) == (0, 20)


def test_a_copy_in_beyond_the_budget_waits_for_memory() -> None:
    timeline = make_timeline(OPS, [(10, 1, OUTLIVES_STEP_NS), (10, 25, 45)], (ABSENCE,))
    result = simulate(timeline, [Swap(0, -1, 2)], FakeMachine(), budget_bytes=10)
    assert result.swap_times()[0].tolist() == [10, 20, 20, 45, 55]
    assert result.stalls == [(5, "swap-in", 0, 5)]
    assert result.fits


def test_copy_in_that_an_op_waits_for_exceeds_the_budget() -> None:
    timeline = make_timeline(OPS, [(10, 1, 99), (10, 25, 99)], (ABSENCE,), step_ns=100)
    result = simulate(timeline, [Swap(0, -1, 2)], FakeMachine(), budget_bytes=10)
    assert result.swap_times()[0].tolist() == [10, 20, 20, 50, 60]
    assert not result.fits


def test_an_op_without_duration_ends_right_after_its_start() -> None:
    ops = [(0, 10), (10, 10), (10, 20), (20, 30)]
    timeline = make_timeline(ops, [(4, 2, 40)], (Absence(0, "a:0", 1, 1, 3),), step_ns=40)
    result = simulate(timeline, [Swap(0, gate_op=2, trigger_op=2)], FakeMachine())
    assert result.stalls == [(2, "gate", 0, 4), (3, "swap-in", 0, 4)]


@pytest.mark.parametrize(
    ("swap", "message"),
    [
        (Swap(1), "a swap names absence 1 of 1"),
        (Swap(-1), "a swap names absence -1 of 1"),
        (Swap(0, gate_op=6), "the swap of absence 0 names gate op 6 of 6"),
        (Swap(0, trigger_op=-2), "the swap of absence 0 names trigger op -2 of 6"),
        (
            Swap(0, gate_op=0),
            "the swap of absence 0 is gated by op 0, which starts before its producer 0 has ended",
        ),
    ],
)
def test_impossible_swaps_are_refused(swap: Swap, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        simulate(one_absence(), [swap], FakeMachine())


def test_an_absence_cannot_be_swapped_twice() -> None:
    with pytest.raises(ValueError, match="^absence 0 is swapped twice$"):
        simulate(one_absence(), [Swap(0, 2), Swap(0, 3)], FakeMachine())


def test_link_speed_must_be_positive() -> None:
    with pytest.raises(ValueError, match="^a link's speed must be positive$"):
        simulate(one_absence(), [], FakeMachine(0.0))


@st.composite
def cases(draw):  # type: ignore[no-untyped-def]
    timeline = draw(timelines() | crowded_timelines())
    budget = draw(st.none() | st.integers(1, 80))
    tiers = draw(st.lists(machines, min_size=1, max_size=2))
    order = draw(order_for(timeline))
    return timeline, draw(swaps_for(timeline, len(tiers))), tiers, budget, order


@settings(max_examples=400, deadline=None)
@given(cases())
def test_results_match_the_reference(case) -> None:  # type: ignore[no-untyped-def]
    check_against_reference(*case)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_long_steps_match_the_reference(data: st.DataObject) -> None:
    # Long enough for the simulator to skip events between those that swaps affect.
    timeline = training_step(blocks=4, layers=2, seed=data.draw(st.integers(0, 3)))
    absences = data.draw(st.sets(st.integers(0, len(timeline.absences) - 1), max_size=12))
    swaps = []
    for index in sorted(absences):
        absence = timeline.absences[index]
        gate = data.draw(st.sampled_from([-1, absence.before_op]))
        trigger = data.draw(st.integers(absence.after_op, absence.before_op - 1))
        swaps.append(Swap(index, gate, trigger))
    speed = data.draw(st.sampled_from([0.3e9, 2e9, 20e9]))
    check_against_reference(timeline, swaps, [FakeMachine(speed, speed, 3, 3)], None, [])


def check_against_reference(*case) -> None:  # type: ignore[no-untyped-def]
    got = simulate(*case)
    want = reference_simulate(*case)
    for name in (
        "step_ns stall_ns peak_bytes peak_ns peak_op peak_holders bytes_out bytes_in "
        "far_peak_bytes fits stalls"
    ).split():
        assert getattr(got, name) == getattr(want, name), name
    assert got.swap_times().tolist() == want.swap_times
    assert curve(got) == want.load_curve


@settings(max_examples=100, deadline=None)
@given(cases())
def test_totals_are_consistent(case) -> None:  # type: ignore[no-untyped-def]
    timeline, swaps, tiers, budget, order = case
    result = simulate(timeline, swaps, tiers, budget, order)
    assert result.stall_ns == sum(ns for *_, ns in result.stalls)
    assert result.step_ns == timeline.step_ns + result.stall_ns
    assert max(load for _, load in curve(result)) == result.peak_bytes
    unswapped = curve(simulate(timeline, [], tiers))
    crossing = [i for i, a in enumerate(timeline.absences) if crosses_step_end(timeline, a)]
    if not any(swap.absence in crossing for swap in swaps):
        assert curve(result)[-1][1] == unswapped[-1][1]


@settings(max_examples=100, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_swaps_does_not_matter(case, random) -> None:  # type: ignore[no-untyped-def]
    timeline, swaps, tiers, budget, order = case
    shuffled = list(swaps)
    random.shuffle(shuffled)
    one = simulate(timeline, swaps, tiers, budget, order)
    other = simulate(timeline, shuffled, tiers, budget, order)
    assert curve(one) == curve(other)
    assert sorted(one.swap_times().tolist()) == sorted(other.swap_times().tolist())


@settings(max_examples=100, deadline=None)
@given(timelines(), st.data())
def test_an_instant_link_stalls_nothing(timeline: Timeline, data: st.DataObject) -> None:
    swaps = data.draw(swaps_for(timeline))
    assert simulate(timeline, swaps, INSTANT).stall_ns == 0


def across_the_step_end(**changes: object) -> Timeline:
    """Return a step with a buffer that op 3 writes last and op 2 of the next step needs."""
    absence = Absence(0, "a:0", producer_op=3, after_op=3, before_op=2)
    return make_timeline(OPS, [(10, 0, OUTLIVES_STEP_NS)], (absence,), **changes)


def test_absence_across_the_step_end_starts_in_far_memory() -> None:
    result = simulate(across_the_step_end(), [Swap(0, trigger_op=0)], FakeMachine())
    assert curve(result) == [(0, 0), (0, -10), (0, 0), (10, 10), (50, 0)]
    assert result.swap_times().tolist() == [[40, 50, 50, 10, 20]]
    assert (result.stall_ns, result.far_peak_bytes) == (0, [10])


def test_copy_out_continues_in_the_next_step() -> None:
    slow_out = FakeMachine(0.25e9, 1e9)
    result = simulate(across_the_step_end(), [Swap(0, trigger_op=0)], slow_out)
    # It takes 40 ns and ends 20 ns after the step; the next step can copy in only then.
    assert result.swap_times().tolist() == [[50, 90, -1, 20, 30]]
    assert result.stalls == [(2, "swap-in", 0, 10)]


def test_sections_are_freed_and_filled_one_by_one() -> None:
    result = simulate(one_absence(), [Swap(0, 2, 3, sections=2)], FakeMachine())
    assert curve(result) == [(0, 0), (1, 10), (15, 5), (20, 0), (40, 5), (45, 10)]
    assert result.swap_times().tolist() == [[10, 20, 20, 40, 50]]


def test_link_in_sections_splits_large_buffers() -> None:
    link = FakeMachine(in_sections=True)
    absence = one_absence().absences[0]
    for size, count in [(31 * MIB, 1), (33 * MIB, 2), (64 * MIB, 4), (500 * MIB, 4)]:
        timeline = make_timeline(OPS, [(size, 1, OUTLIVES_STEP_NS)], [absence])
        swap = Swap(0, 2, 3)
        own = simulate(timeline, [swap], link)
        assert curve(own) == curve(simulate(timeline, [replace(swap, sections=count)], link))
        whole = simulate(timeline, [replace(swap, sections=1)], link)
        assert (curve(own) == curve(whole)) == (count == 1)


def test_a_codec_takes_time_and_saves_bytes() -> None:
    swap = Swap(0, 3, 4, far_bytes=4, encode_ns=3, decode_ns=5)
    result = simulate(one_absence(), [swap], FakeMachine())
    assert result.swap_times().tolist() == [[10, 17, 17, 50, 59]]
    assert (result.bytes_out, result.bytes_in, result.far_peak_bytes) == (4, 4, [4])
    assert result.stalls == [(5, "swap-in", 0, 9)]


def test_tiers_have_queues_and_limits_of_their_own() -> None:
    absences = (ABSENCE, Absence(1, "b:0", 0, 0, 5))
    timeline = make_timeline(OPS, [(10, 1, OUTLIVES_STEP_NS)] * 2, absences)
    tiers = [FakeMachine(), FakeMachine(0.5e9, 0.5e9, capacity_bytes=9)]
    result = simulate(timeline, [Swap(0, 3, 3), Swap(1, 3, 2, tier=1)], tiers)
    assert result.swap_times().tolist() == [[10, 20, 20, 40, 50], [10, 30, 30, 30, 50]]
    assert result.far_peak_bytes == [10, 10] and not result.fits


def test_an_order_edge_waits_for_an_op_that_still_runs() -> None:
    timeline = make_timeline([(0, 30), (10, 20), (25, 40)], [])
    result = simulate(timeline, [], FakeMachine(), order=[(0, 1), (0, 2)])
    # Op 1 waits until 30; op 2 then starts at 45 and does not wait.
    assert result.stalls == [(1, "order", -1, 20)]
    with pytest.raises(ValueError, match="op 0 cannot wait for op 1, which starts later"):
        simulate(timeline, [], FakeMachine(), order=[(1, 0)])


def test_simulation_of_ten_thousand_ops_is_fast() -> None:
    timeline = training_step(blocks=80, layers=4, ops_per_layer=14)
    assert len(timeline.op_names) > 10_000
    absences = [i for i, a in enumerate(timeline.absences) if a.before_op > a.after_op + 2][:1000]
    swaps = [
        Swap(i, timeline.absences[i].after_op + 1, timeline.absences[i].before_op - 1)
        for i in absences
    ]
    assert len(swaps) >= 900
    rows, tiers = swap_rows(swaps), core_tiers(FakeMachine(6e9, 6e9, 10_000, 10_000))
    core = timeline.core
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        result = _core.simulate(core, rows, tiers, None)
        seconds.append(time.perf_counter() - start)
    assert result.bytes_in >= 900 * MIB
    # It takes a fraction of this; the limit has a reserve for busy machines.
    assert min(seconds) < 0.010
