"""Prefetches are delayed until there is room for them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import FakeMachine, machines, make_timeline, swaps_for, timelines, training_step

from tfswap.planning.planners import greedy
from tfswap.planning.planners.delay_prefetches import delay_prefetches
from tfswap.planning.planners.improve import improve_plan
from tfswap.planning.simulator import Swap, simulate
from tfswap.step.timeline import Absence, Timeline, peak_load

SLOW = FakeMachine(0.5e9, 0.5e9)


def late(
    timeline: Timeline, swaps: Sequence[Swap], machine: FakeMachine, budget: int
) -> tuple[Swap, ...]:
    return delay_prefetches(timeline, swaps, [machine], budget, time.monotonic() + 10)


def ahead(machine: FakeMachine, times: float) -> FakeMachine:
    """Return the link relative to ops that are slower by that factor."""
    return FakeMachine(machine.out_bytes_per_s * times, machine.in_bytes_per_s * times)


def test_fast_link_keeps_budget() -> None:
    timeline = training_step(blocks=8)
    budget = peak_load(timeline) // 2
    first = greedy.plan_swaps(timeline, SLOW, budget)
    # The local search prefers early triggers.
    swaps = improve_plan(first, timeline, SLOW, budget, time.monotonic() + 60, tries=4000).swaps
    before = simulate(timeline, swaps, SLOW)
    chosen = late(timeline, swaps, SLOW, budget)
    after = simulate(timeline, chosen, SLOW)
    assert after.stall_ns <= 1.001 * before.stall_ns and after.peak_bytes <= budget

    def worst_bytes(swaps: Sequence[Swap]) -> int:
        return max(
            simulate(timeline, swaps, ahead(SLOW, times)).peak_bytes for times in (1.5, 2, 4, 1000)
        )

    assert worst_bytes(swaps) > 1.05 * budget
    assert worst_bytes(chosen) <= budget


# W is op4's workspace. The link copies C in at once, then A, then B. If ops are twice as slow,
# A and B return while op4 runs.
#
#     ops     0   1   2   3   4   5   6   7
#     C       #                   #
#     A       #                       #
#     B           #                       #
#     W                       #
def three_swaps(**changes: object) -> tuple[Timeline, tuple[Swap, ...]]:
    timeline = make_timeline(
        ops=[(10 * i, 10 * i + 9) for i in range(8)],
        buffers=[(300, 0, 60), (100, 0, 70), (100, 10, 80), (100, 40, 49)],
        absences=(
            Absence(0, "c:0", 0, 0, 5),
            Absence(1, "a:0", 0, 0, 6),
            Absence(2, "b:0", 1, 1, 7),
        ),
        **changes,
    )
    return timeline, (Swap(0, trigger_op=1), Swap(1, trigger_op=1), Swap(2, trigger_op=2))


ONE_WAY = FakeMachine(float("inf"), 10e9)


def test_triggers_are_delayed_until_there_is_room() -> None:
    timeline, swaps = three_swaps()
    assert simulate(timeline, swaps, ONE_WAY).peak_bytes == 500
    assert simulate(timeline, swaps, ahead(ONE_WAY, 2)).peak_bytes == 600
    chosen = late(timeline, swaps, ONE_WAY, 400)
    # A starts at 49, where op4 ends; B at 59, where op5 ends.
    assert [swap.trigger_op for swap in chosen] == [1, 4, 5]
    assert simulate(timeline, chosen, ahead(ONE_WAY, 2)).peak_bytes == 500


def test_early_triggers_stay_where_there_is_room() -> None:
    timeline, swaps = three_swaps()
    assert late(timeline, swaps, ONE_WAY, 600) == swaps
    # It is enough to delay B, which is needed last.
    assert [swap.trigger_op for swap in late(timeline, swaps, ONE_WAY, 500)] == [1, 1, 4]


def test_only_gateable_ops_become_triggers() -> None:
    usable = np.array([i != 4 for i in range(8)])
    timeline, swaps = three_swaps(op_gateable=usable)
    # A would start later than in the simulation; B does not.
    assert [swap.trigger_op for swap in late(timeline, swaps, ONE_WAY, 400)] == [1, 1, 5]


# W is freed within op4, and only ends of ops can be triggers: C waits for the end of op4, and op5
# for C.
def test_copy_in_waits_for_room_within_an_op() -> None:
    timeline = make_timeline(
        ops=[(1000 * i, 1000 * i + 900) for i in range(8)],
        buffers=[(300, 0, 6000), (100, 1000, 8000), (200, 4000, 4100)],
        absences=(Absence(0, "c:0", 0, 0, 5), Absence(1, "b:0", 1, 1, 7)),
    )
    swaps = (Swap(0, trigger_op=3), Swap(1, trigger_op=3))
    link = FakeMachine(float("inf"), 1e9)
    before = simulate(timeline, swaps, link)
    assert before.stall_ns == 0 and before.peak_bytes == 500
    chosen = late(timeline, swaps, link, 400)
    assert [swap.trigger_op for swap in chosen] == [4, 4]
    after = simulate(timeline, chosen, link)
    assert after.peak_bytes == 400 and after.stall_ns == 200
    assert late(timeline, swaps, link, 600) == swaps


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_delays_cost_little_in_the_simulation(data: st.DataObject) -> None:
    timeline = data.draw(timelines())
    swaps = tuple(sorted(data.draw(swaps_for(timeline))))
    machine = data.draw(machines)
    before = simulate(timeline, swaps, machine)
    budget = data.draw(st.integers(0, before.peak_bytes))
    chosen = late(timeline, swaps, machine, budget)
    after = simulate(timeline, chosen, machine)
    assert after.stall_ns <= before.stall_ns + 0.05 * timeline.step_ns
    assert after.peak_bytes <= max(budget, before.peak_bytes)
    assert [(s.absence, s.gate_op) for s in chosen] == [(s.absence, s.gate_op) for s in swaps]
