"""Ops keep their recorded order where that keeps the load as simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timelines import INSTANT, make_timeline, timelines

from tfswap.plan.schema import FunctionPlan
from tfswap.planning.memory_order_edges import held_bytes, memory_order_edges
from tfswap.planning.simulator import Swap, simulate
from tfswap.step.graph import StepGraph
from tfswap.step.profile import Profile
from tfswap.step.timeline import Absence, Timeline

FINGERPRINT = "0123456789abcdef"


def graph(*lines: str) -> StepGraph:
    """Return a graph from its description, with spaces for tabs and "-" for no flags."""
    return StepGraph.parse("\n".join(line.replace(" ", "\t") for line in lines))


def profile_of(timeline: Timeline, large_ops: tuple[int, ...]) -> Profile:
    return Profile(timeline, FINGERPRINT, (), 0, 0, large_ops)


# Two branches, one after the other: a is read by b, c by d.
BRANCHES: dict[str, Any] = {
    "ops": [(0, 10), (10, 20), (20, 30), (30, 40)],
    "buffers": [(50, 0, 20), (50, 20, 40)],
}
NAMES = ("op0 Tile 0 o 1", "op1 Sum 0 o 1 op0:0", "op2 Tile 0 o 1", "op3 Sum 0 o 1 op2:0")
FUNCTION = FunctionPlan(FINGERPRINT)


def test_branches_that_do_not_fit_together_are_ordered() -> None:
    profile = profile_of(make_timeline(**BRANCHES), (0, 1, 2, 3))
    assert memory_order_edges(profile, graph(*NAMES), FUNCTION, (), 60) == (("op1", "op2"),)


def test_no_edges_where_there_is_room() -> None:
    profile = profile_of(make_timeline(**BRANCHES), (0, 1, 2, 3))
    assert memory_order_edges(profile, graph(*NAMES), FUNCTION, (), 200) == ()


def test_room_for_one_early_op_is_not_enough() -> None:
    # Two of four branches fit at once, three do not: the first two ops could run before op1.
    timeline = make_timeline(
        [(10 * i, 10 * i + 10) for i in range(8)], [(40, 20 * i, 20 * i + 20) for i in range(4)]
    )
    branches = [
        f"op{i} Tile 0 o 1" if i % 2 == 0 else f"op{i} Sum 0 o 1 op{i - 1}:0" for i in range(8)
    ]
    profile = profile_of(timeline, tuple(range(8)))
    edges = memory_order_edges(profile, graph(*branches), FUNCTION, (), 100)
    assert ("op1", "op2") in edges and ("op3", "op4") in edges
    assert memory_order_edges(profile, graph(*branches), FUNCTION, (), 130) == ()


def test_small_ops_are_not_ordered() -> None:
    profile = profile_of(make_timeline(**BRANCHES), (0, 1))
    assert memory_order_edges(profile, graph(*NAMES), FUNCTION, (), 60) == ()


def test_overlapping_ops_may_still_overlap() -> None:
    timeline = make_timeline([(0, 10), (5, 20), (12, 30)], [(50, 0, 30), (50, 5, 30), (9, 12, 30)])
    of = graph("op0 Tile 0 o 1", "op1 Tile 0 o 1", "op2 Tile 0 o 1")
    edges = memory_order_edges(profile_of(timeline, (0, 1, 2)), of, FUNCTION, (), 100)
    assert edges == (("op0", "op2"),)


def test_ops_wait_only_for_the_last_full_moment() -> None:
    # Full until 20; then op2 and op3 fit together.
    timeline = make_timeline(
        [(0, 10), (10, 20), (20, 30), (30, 40)], [(90, 0, 20), (9, 20, 30), (9, 30, 40)]
    )
    of = graph("op0 Tile 0 o 1", "op1 Sum 0 o 1 op0:0", "op2 Tile 0 o 1", "op3 Tile 0 o 1")
    edges = memory_order_edges(profile_of(timeline, (0, 1, 2, 3)), of, FUNCTION, (), 100)
    assert edges == (("op1", "op2"), ("op1", "op3"))


def test_triggers_keep_their_order() -> None:
    absence = Absence(buffer=0, tensor="op0:0", producer_op=0, after_op=0, before_op=4)
    timeline = make_timeline(
        [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50)],
        [(90, 0, 50), (90, 10, 30)],
        (absence,),
    )
    of = graph(
        "op0 Conv 0 op 1",
        "op1 Tile 0 og 1",
        "op2 Sum 0 og 1 op1:0",
        "op3 NoOp 0 og -",
        "op4 Sum 0 o 1 op0:0",
    )
    swaps = (Swap(0, gate_op=1, trigger_op=3),)
    edges = memory_order_edges(profile_of(timeline, (0, 1, 2, 4)), of, FUNCTION, swaps, 100)
    assert ("op2", "op3") in edges
    assert ("op0", "op1") in edges


def test_without_large_ops() -> None:
    assert (
        memory_order_edges(
            profile_of(make_timeline(**BRANCHES), ()), graph(*NAMES), FUNCTION, (), 1
        )
        == ()
    )


@given(timelines())
def test_held_bytes_bound_the_peak(timeline: Timeline) -> None:
    held = held_bytes(timeline, ())
    assert len(held) == len(timeline.op_names)
    assert held.max(initial=0) <= simulate(timeline, (), INSTANT).peak_bytes


@pytest.mark.parametrize("ops", [6, 40])
@given(st.data())
def test_edges_keep_the_recorded_order_around_full_moments(ops: int, data: st.DataObject) -> None:
    """Independent ops, recorded one at a time: only order edges keep them apart."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=ops, max_size=ops))
    buffers = [(size, 10 * i, 10 * i + 10) for i, size in enumerate(sizes)]
    timeline = make_timeline([(10 * i, 10 * i + 10) for i in range(ops)], buffers)
    of = graph(*(f"op{i} Tile 0 o 1" for i in range(ops)))
    edges = memory_order_edges(profile_of(timeline, tuple(range(ops))), of, FUNCTION, (), 10)
    later = [sum(sorted(sizes[i + 1 :])[-2:]) for i in range(ops)]
    full = np.array(sizes) > 10 - np.array(later)
    last = -1  # the last full op
    for i in range(ops):
        before = {b for b, after in edges if after == f"op{i}"}
        if full[i] and i > 0:
            assert before == {f"op{i - 1}"}
        elif last >= 0:
            assert before == {f"op{last}"}
        if full[i]:
            last = i
