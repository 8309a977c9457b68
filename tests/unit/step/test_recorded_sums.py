"""The recorded order of a sum's additions, and what a graph's nodes may do with it."""

from __future__ import annotations

import pytest
from recorded_steps import KIB, Ran, recorded, step

from tfswap.step.graph import StepGraph
from tfswap.step.profile import profile_step
from tfswap.step.recorded_ops import recorded_sums

# Each node: name, op, context, flags, whether its outputs are plain, inputs.
DESCRIPTION = """\
sum TemporaryVariable 0 - 0
a Mul 0 rspo 1
b Mul 0 rspo 1
c MatMul 0 grspod 1
add_a AssignAdd 0 rso 0 sum:0 a:0
add_b AssignAdd 0 rso 0 sum:0 b:0
add_c AssignAdd 0 rso 0 sum:0 c:0
after MatMul 0 grpo 1 c:0
#chain c after""".replace(" ", "\t").replace("\t-\t", "\t\t")
RUNS = (("a", 0, 9), ("c", 10, 19), ("b", 20, 29), ("after", 60, 70))
SUMS = (("add_c", "add_a"), ("add_a", "add_b"))


def trace(*additions):
    return recorded(runs=(*RUNS, *additions))


def test_additions_keep_the_order_in_which_they_ended():
    graph = StepGraph.parse(DESCRIPTION)
    found = recorded_sums(trace(("add_a", 30, 50), ("add_b", 31, 55), ("add_c", 35, 40)), graph)
    assert found == SUMS


def test_a_step_that_lacks_an_addition_has_no_order():
    graph = StepGraph.parse(DESCRIPTION)
    assert recorded_sums(trace(("add_a", 30, 50), ("add_b", 31, 55)), graph) == ()


def test_nothing_races_in_the_recorded_order():
    graph = StepGraph.parse(DESCRIPTION).in_order([*SUMS, ("add_c", "add_b"), ("a", "after")])
    assert graph.order == (*SUMS, ("c", "after"))
    node = graph.nodes["c"]
    assert not node.racing
    assert node.gateable and node.producer and node.orderable and node.repeatable
    assert StepGraph.parse(graph.to_text()) == graph


@pytest.mark.parametrize("order", [(), SUMS[:1], (*SUMS, ("add_b", "add_c"))])
def test_without_an_order_of_all_additions_what_races_stays(order):
    graph = StepGraph.parse(DESCRIPTION).in_order(order)
    assert graph.order == (("c", "after"),)
    node, after = graph.nodes["c"], graph.nodes["after"]
    assert node.racing and node.rewirable
    assert not (node.gateable or node.producer or node.orderable or node.repeatable)
    assert after.gateable and after.producer and after.orderable


def test_what_races_counts_in_the_floor_and_moves_under_a_plan():
    # "a" and "b" both wait, while "large" runs, for additions that come later.
    graph = StepGraph.parse(
        "\n".join(
            [
                "sum\tTemporaryVariable\t0\t\t0",
                "a\tMul\t0\tgrspod\t1",
                "b\tMul\t0\tgrspod\t1",
                "large\tMatMul\t0\tgrpo\t1",
                "add_a\tAssignAdd\t0\trso\t0\tsum:0\ta:0",
                "add_b\tAssignAdd\t0\trso\t0\tsum:0\tb:0",
            ]
        )
    )
    step_trace = step(
        Ran("a", 0, 9, makes=30 * KIB),
        Ran("b", 10, 19, makes=40 * KIB),
        Ran("large", 20, 29, makes=500 * KIB),
        Ran("add_a", 30, 39, reads=("a",)),
        Ran("add_b", 40, 49, reads=("b",)),
    )
    sums = recorded_sums(step_trace, graph)
    assert sums == (("add_a", "add_b"),)
    profile = profile_step(step_trace, graph, min_bytes=KIB, sums=sums)
    assert {absence.tensor for absence in profile.timeline.absences} == {"a:0", "b:0"}
    assert profile.order == sums
    floor = profile.floor.streamed
    assert (floor.op, floor.bytes) == ("large", 570 * KIB)
    # Where nothing races, neither has to stay.
    ordered = profile_step(step_trace, graph.in_order(sums), min_bytes=KIB)
    assert ordered.floor.streamed.bytes == 500 * KIB


@pytest.mark.parametrize(
    ("trigger", "op", "kib"), [("#trigger\tt\tr", "late", 520), ("", "early", 530)]
)
def test_inputs_of_racing_ops_come_back_at_their_trigger(trigger, op, kib):
    lines = [
        "c\tMul\t0\tgrpod\t1",
        "early\tMatMul\t0\tgrpo\t1",
        "t\tMatMul\t0\tgrpo\t1",
        "late\tMatMul\t0\tgrpo\t1",
        "r\tMatMul\t0\tgrspod\t1\tc:0",
        trigger,
    ]
    graph = StepGraph.parse("\n".join(filter(None, lines)))
    step_trace = step(
        Ran("c", 0, 9, makes=30 * KIB),
        Ran("early", 10, 19, makes=500 * KIB),
        Ran("t", 20, 29, makes=KIB),
        Ran("late", 30, 39, makes=490 * KIB),
        Ran("r", 40, 49, reads=("c",), makes=KIB),
    )
    floor = profile_step(step_trace, graph, min_bytes=KIB).floor.streamed
    assert (floor.op, floor.bytes) == (op, kib * KIB)
