"""The floor of a recorded step."""

from __future__ import annotations

import pytest
from recordings import MIB, VARIABLE_GRAPH, Recording, variable_recording

from tfswap.step.graph import StepGraph
from tfswap.step.op_floor import OpFloor
from tfswap.step.profile import profile_step


@pytest.mark.parametrize("variables_leave", [False, True])
def test_the_floor_of_a_step_that_assigns_a_variable(variables_leave):
    graph, trace = StepGraph.parse(VARIABLE_GRAPH), variable_recording().trace()
    floor = profile_step(trace, graph, variables_leave=variables_leave).floor
    assert floor.streamed == OpFloor("new", "Mul", 4 * MIB, 0, 4 * MIB, 0, 100)
    assert floor.staying == floor.streamed  # there is no other variable


def test_the_floor_without_weights_that_no_op_uses_meanwhile():
    graph = "a\tMatMul\t0\tgpr\t1\nv\t_Arg\t0\tr\t0\nr\tReadVariableOp\t0\tro\t1\tv:0"
    graph += "\nu\tAdd\t0\tgpr\t1\tr:0\ta:0"
    r = Recording()
    a, read, use = r.op("a", 0, 10), r.op("r", 12, 13, op_type="ReadVariableOp"), r.op("u", 20, 30)
    value, made, scratch = r.buffer(4, -1, -1), r.buffer(9, 1, 30), r.buffer(2, 3, 4, "a")
    r.buffers[scratch] = (*r.buffers[scratch][:-1], 1)  # temporary memory
    r.access(a, -1, made)
    r.access(read, -1, value)
    r.access(use, 0, value)
    r.access(use, 1, made)
    r.value(read, 0, value)
    floor = profile_step(r.trace(), StepGraph.parse(graph)).floor
    assert floor.staying == OpFloor("a", "MatMul", 0, 0, 9 * MIB, 2 * MIB, 100 + 4 * MIB)
    assert floor.streamed == OpFloor("u", "MatMul", 4 * MIB, 9 * MIB, 0, 0, 100)
