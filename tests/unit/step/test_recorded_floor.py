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


def test_an_op_that_writes_into_a_swapped_in_copy_needs_its_memory_once():
    graph = StepGraph.parse(
        "a\tMatMul\t0\tgpr\t1\nb\tMatMul\t0\tgpr\t1\nd\tMul\t0\tgpr\t1\ta:0\ne\tMatMul\t0\tgpr\t1\td:0"
    )
    r = Recording()
    a = r.op("a", 0, 10)
    out = r.op("tfswap/out/a_0", 10, 10, op_type="_CopyToHost")
    b = r.op("b", 10, 40)
    back = r.op("tfswap/in/a_0/0", 60, 70, op_type="_CopyFromHost")
    d, e = r.op("d", 70, 90, op_type="Mul"), r.op("e", 90, 100)
    memory, other, copy = r.buffer(8, 1, 30), r.buffer(10, 11, 40), r.buffer(8, 60, 100)
    for op, port, buffer in ((a, -1, memory), (out, 0, memory), (b, -1, other)):
        r.access(op, port, buffer)
    for op, port in ((back, -1), (d, 0), (d, -1), (e, 0)):
        r.access(op, port, copy)
    floor = profile_step(r.trace(), graph, min_bytes=MIB).floor
    assert floor.streamed == OpFloor("b", "MatMul", 0, 0, 10 * MIB, 0, 100)


def test_a_variable_that_gets_a_value_made_in_a_swapped_in_copy_is_counted_once():
    graph = "v\t_Arg\t0\tr\t0\na\tMatMul\t0\tgpr\t1\nb\tMatMul\t0\tgpr\t1"
    graph += "\nd\tMul\t0\tgpr\t1\ta:0\nupdate\tAssignVariableOp\t0\tru\t\tv:0\td:0"
    r = Recording()
    a = r.op("a", 0, 10)
    out = r.op("tfswap/out/a_0", 10, 10, op_type="_CopyToHost")
    b = r.op("b", 10, 40)
    back = r.op("tfswap/in/a_0/0", 60, 70, op_type="_CopyFromHost")
    d = r.op("d", 70, 90, op_type="Mul")
    update = r.op("update", 90, 100, op_type="AssignVariableOp")
    memory, other, copy = r.buffer(8, 1, 30), r.buffer(2, 11, 40), r.buffer(8, 60, -1)
    old = r.buffer(8, -1, 99)
    for op, port, buffer in ((a, -1, memory), (out, 0, memory), (b, -1, other)):
        r.access(op, port, buffer)
    for op, port in ((back, -1), (d, 0), (d, -1), (update, 1)):
        r.access(op, port, copy)
    r.value(update, 0, old)
    r.value(update, -1, copy)
    floor = profile_step(r.trace(), StepGraph.parse(graph), min_bytes=MIB).floor
    assert floor.streamed == OpFloor("update", "AssignVariableOp", 8 * MIB, 8 * MIB, 0, 0, 100)
