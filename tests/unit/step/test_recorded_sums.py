"""The recorded order of a sum's additions, and what a graph's nodes may do with it."""

from __future__ import annotations

import pytest
from recorded_steps import recorded

from tfswap.step.graph import StepGraph
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
    graph = StepGraph.parse(DESCRIPTION, [*SUMS, ("add_c", "add_b"), ("a", "after")])
    assert graph.order == (*SUMS, ("c", "after"))
    node = graph.nodes["c"]
    assert not node.racing
    assert node.gateable and node.producer and node.orderable and node.repeatable
    assert StepGraph.parse(graph.to_text()) == graph


@pytest.mark.parametrize("order", [(), SUMS[:1], (*SUMS, ("add_b", "add_c"))])
def test_without_an_order_of_all_additions_what_races_stays(order):
    graph = StepGraph.parse(DESCRIPTION, order)
    assert graph.order == (("c", "after"),)
    node, after = graph.nodes["c"], graph.nodes["after"]
    assert node.racing and node.rewirable
    assert not (node.gateable or node.producer or node.orderable or node.repeatable)
    assert after.gateable and after.producer and after.orderable
