"""From a recording to a timeline: times without waits, buffers without swaps, and absences."""

from __future__ import annotations

import numpy as np
import pytest
from recordings import MIB, VARIABLE_GRAPH, Recording, variable_recording

from tfswap.machine.machine import Machine
from tfswap.plan.node_names import RESTORED_VARIABLE
from tfswap.planning.simulator import Swap, simulate
from tfswap.step.graph import StepGraph
from tfswap.step.profile import profile_step
from tfswap.step.timeline import OUTLIVES_STEP_NS, peak_load
from tfswap.step.trace import StepTrace

# a makes a tensor; b reads it through a reshape; c works for long; d reads it again.
GRAPH = "\n".join(
    [
        "a\tConv2D\t0\tgpr\t1\tx:0",
        "x\t_Arg\t0\t\t1",
        "r\tReshape\t0\tapr\t1\ta:0\tx:0",
        "b\tMatMul\t0\tgpr\t1\tr:0",
        "c\tMatMul\t0\tgpr\t1\tb:0",
        "d\tMatMul\t0\tgpr\t1\tr:0\tc:0",
        "#delay\tb\tc",
        "#keepup\tc\td",
    ]
)


def test_a_variables_value_is_one_buffer_and_absent_until_the_next_step():
    graph, trace = StepGraph.parse(VARIABLE_GRAPH), variable_recording().trace()
    timeline = profile_step(trace, graph, variables_leave=True).timeline
    timeline.validate()
    (absence,) = (a for a in timeline.absences if a.of_variable)
    assert absence.tensor == "v:0"
    assert timeline.op_names[absence.after_op] == "write"
    assert timeline.op_names[absence.before_op] == "use"  # reading does not use the value
    assert absence.producer_op == absence.after_op
    assert set(absence.consumers) == {"read", "write"}
    assert set(absence.users) == {"use", "gradient", "new", "write"}
    assert timeline.buffer_free_ns[absence.buffer] == OUTLIVES_STEP_NS
    # The old and the new value overlap from 61 to 71.
    assert peak_load(timeline) == 100 + 8 * MIB
    result = simulate(
        timeline, [Swap(timeline.absences.index(absence))], Machine("any", 1e12, 1e12)
    )
    assert result.bytes_out == result.bytes_in == 4 * MIB


def test_a_value_that_came_back_for_the_next_step_does_not_count_twice():
    recording = variable_recording()
    recording.buffer(4, 65, -1, op=RESTORED_VARIABLE)  # for the next step
    recording.buffer(4, 20, 25, op=RESTORED_VARIABLE)  # evicted again
    timeline = profile_step(
        recording.trace(), StepGraph.parse(VARIABLE_GRAPH), variables_leave=True
    ).timeline
    assert peak_load(timeline) == 100 + 8 * MIB
    recording.buffer(4, 65, -1)
    timeline = profile_step(
        recording.trace(), StepGraph.parse(VARIABLE_GRAPH), variables_leave=True
    ).timeline
    assert peak_load(timeline) == 100 + 12 * MIB  # not a variable's


def test_variables_have_no_absences_by_default():
    graph, trace = StepGraph.parse(VARIABLE_GRAPH), variable_recording().trace()
    timeline = profile_step(trace, graph).timeline
    assert not any(absence.of_variable for absence in timeline.absences)
    assert peak_load(timeline) == 100 + 8 * MIB


@pytest.mark.parametrize("variables_leave", [False, True])
def test_a_view_of_a_variables_value_is_not_swapped(variables_leave: bool) -> None:
    # A transpose that moves axes of extent 1 only.
    lines = VARIABLE_GRAPH.replace(
        "use\tMatMul\t0\tgpr\t1\tx:0\tread:0", "use\tMatMul\t0\tgpr\t1\tx:0\tview:0"
    )
    lines = lines.replace("gpb\t1\tuse:0\tread:0", "gpb\t1\tuse:0\tview:0")
    graph = StepGraph.parse(f"view\tTranspose\t0\tpro\t1\tread:0\n{lines}")
    recording = variable_recording()
    view = recording.op("view", 20, 21, op_type="Transpose")
    value = recording.accesses[0][2]
    recording.access(view, 0, value)
    recording.access(view, -1, value)
    timeline = profile_step(recording.trace(), graph, variables_leave=variables_leave).timeline
    timeline.validate()
    assert "view:0" not in {absence.tensor for absence in timeline.absences}


def recording(wait: int = 0) -> Recording:
    r = Recording()
    a = r.op("a", 0, 10)
    reshape = r.op("r", 10, 10, op_type="Reshape")
    b = r.op("b", 10, 20)
    c = r.op("c", 20, 100 + wait, wait=wait)
    d = r.op("d", 100 + wait, 110 + wait)
    tensor = r.buffer(8, 1, 110 + wait)
    weights = r.buffer(3, -1, -1)
    for op, port in ((a, -1), (reshape, 0), (reshape, -1), (b, 0), (d, 0)):
        r.access(op, port, tensor)
    r.access(c, 0, weights)
    return r


def test_an_absence_through_an_alias():
    trace = recording().trace()
    graph = StepGraph.parse(GRAPH)
    profile = profile_step(trace, graph)
    timeline = profile.timeline
    timeline.validate()
    gap = [a for a in timeline.absences if timeline.op_names[a.before_op] == "d"]
    assert len(gap) == 1
    assert gap[0].tensor == "a:0"
    assert gap[0].consumers == ("d",)
    assert timeline.op_names[gap[0].producer_op] == "a"
    assert timeline.op_names[gap[0].after_op] == "b"
    assert timeline.resident_bytes == 100 + 3 * MIB
    assert peak_load(timeline) == 100 + 11 * MIB
    assert timeline.step_ns == 110_000


def test_only_the_backward_part_reads_activations_again() -> None:
    for marks, expected in (("gprb", {"d"}), ("gpr", set())):
        text = GRAPH.replace("gpr\t1\tx:0", "gpr\t2\tx:0").replace(
            "d\tMatMul\t0\tgpr", f"d\tMatMul\t0\t{marks}"
        )
        profile = profile_step(recording().trace(), StepGraph.parse(text))
        found = [profile.timeline.absences[place] for place in profile.activations]
        assert {absence.tensor for absence in found} <= {"a:0"}
        assert {reader for absence in found for reader in absence.consumers} == expected
    assert not profile_step(recording().trace(), StepGraph.parse(GRAPH)).activations


def test_waits_take_no_time():
    plain = profile_step(recording().trace(), StepGraph.parse(GRAPH)).timeline
    waited = profile_step(recording(wait=500).trace(), StepGraph.parse(GRAPH)).timeline
    # Gaps of up to 20 us are the executor's and stay.
    assert plain.step_ns <= waited.step_ns <= plain.step_ns + 20_000


@pytest.mark.parametrize(
    ("name", "op_type"),
    [
        ("tfswap/out/a_0", "_CopyToHost"),
        ("tfswap/in/a_0/0", "_CopyFromHost"),
        ("tfswap/out/v/0", "_VariableToHost"),
        ("tfswap/in/v/0", "_VariableFromHost"),
    ],
)
def test_waits_for_copies_take_no_time(name: str, op_type: str) -> None:
    def step_ns(copy_us: int) -> int:
        r = Recording()
        r.op("a", 0, 10)
        r.op(name, 10, 10 + copy_us, op_type=op_type)
        for place, op in enumerate("bcd"):
            r.op(op, 10 + copy_us + 10 * place, 20 + copy_us + 10 * place)
        return profile_step(r.trace(), StepGraph.parse(GRAPH)).timeline.step_ns

    # Gaps of up to 20 us are the executor's and stay.
    assert step_ns(0) <= step_ns(5000) <= step_ns(0) + 20_000


def test_a_buffer_that_was_swapped_is_one_buffer():
    r = Recording()
    a = r.op("a", 0, 10)
    out = r.op("tfswap/out/a_0", 10, 10, op_type="_CopyToHost")
    b = r.op("b", 10, 20)
    r.op("c", 20, 100)
    back = r.op("tfswap/in/a_0/0", 60, 90, op_type="_CopyFromHost")
    d = r.op("d", 100, 110)
    first, second = r.buffer(8, 1, 30), r.buffer(8, 60, 110)
    for op, port in ((a, -1), (out, 0), (b, 0)):
        r.access(op, port, first)
    for op, port in ((back, -1), (d, 0)):
        r.access(op, port, second)
    timeline = profile_step(r.trace(), StepGraph.parse(GRAPH)).timeline
    timeline.validate()
    assert peak_load(timeline) == 100 + 8 * MIB
    assert sorted(timeline.buffer_bytes.tolist()) == [0, 8 * MIB]
    assert [timeline.op_names[x.before_op] for x in timeline.absences if x.tensor == "a:0"][
        -1
    ] == "d"


def test_another_user_of_the_buffer_prevents_an_absence():
    r = recording()
    c = next(i for i, op in enumerate(r.ops) if r.names[op[6]] == "c")
    r.access(c, 1, 0)  # for example, a slice
    absences = profile_step(r.trace(), StepGraph.parse(GRAPH)).timeline.absences
    assert not [x for x in absences if x.tensor == "a:0" and x.after_op < c < x.before_op]


def test_the_last_iteration_of_a_loop_is_used():
    r = Recording()
    for iteration in range(3):
        for place, name in enumerate("abcd"):
            start = 1000 * iteration + 10 * place
            r.op(name, start, start + 10, frame=2, iteration=iteration)
    r.buffer(1, 2001, 2009)
    timeline = profile_step(r.trace(), StepGraph.parse(GRAPH)).timeline
    assert timeline.op_names == ("a", "b", "c", "d")
    assert peak_load(timeline) == 100 + MIB


def test_a_recording_of_another_graph_is_rejected():
    r = Recording()
    r.op("elsewhere", 0, 1)
    with pytest.raises(ValueError, match="has no op of the training graph"):
        profile_step(r.trace(), StepGraph.parse(GRAPH))


def test_bytes_that_are_not_a_trace_are_rejected():
    with pytest.raises(ValueError, match="not a tfswap trace"):
        StepTrace.from_bytes(b"something else")
    head = b"TFSWTRC2" + np.array([0, 1, 2, 3, 0, 0, 0], "<i8").tobytes()
    with pytest.raises(ValueError, match="cut off"):
        StepTrace.from_bytes(head)


def test_an_op_that_reuses_a_swapped_in_copy_gets_a_separate_buffer():
    # a returns twice; c writes the first copy in place, which it could not without the swap.
    r = Recording()
    a = r.op("a", 0, 10)
    out = r.op("tfswap/out/a_0", 10, 10, op_type="_CopyToHost")
    first_back = r.op("tfswap/in/a_0/0", 20, 30, op_type="_CopyFromHost")
    c = r.op("c", 30, 50)
    second_back = r.op("tfswap/in/a_0/1", 60, 70, op_type="_CopyFromHost")
    d = r.op("d", 70, 90)
    left, first, second = r.buffer(8, 1, 15), r.buffer(8, 20, 90), r.buffer(8, 60, 90)
    for op, port, buffer in (
        (a, -1, left),
        (out, 0, left),
        (first_back, -1, first),
        (c, 0, first),
        (c, -1, first),
        (second_back, -1, second),
        (d, 0, second),
        (d, 1, first),
    ):
        r.access(op, port, buffer)
    timeline = profile_step(r.trace(), StepGraph.parse(GRAPH)).timeline
    timeline.validate()
    assert sorted(timeline.buffer_bytes.tolist()) == [0, 8 * MIB, 8 * MIB]
    assert peak_load(timeline) == 100 + 16 * MIB


def test_each_op_that_reuses_a_swapped_in_copy_makes_a_tensor_that_may_leave():
    # a returns; b and c write the copy in place, one after the other; c's output leaves for d.
    graph = StepGraph.parse(
        "\n".join(
            [
                "x\t_Arg\t0\t\t1",
                "a\tConv2D\t0\tgpr\t1\tx:0",
                "b\tExp\t0\tgpr\t1\ta:0",
                "c\tMul\t0\tgpr\t1\tb:0",
                "d\tMatMul\t0\tgpr\t1\tc:0",
            ]
        )
    )
    r = Recording()
    a = r.op("a", 0, 10)
    a_out = r.op("tfswap/out/a_0", 10, 10, op_type="_CopyToHost")
    a_back = r.op("tfswap/in/a_0/0", 20, 30, op_type="_CopyFromHost")
    b, c = r.op("b", 30, 40), r.op("c", 40, 50)
    c_out = r.op("tfswap/out/c_0", 50, 50, op_type="_CopyToHost")
    c_back = r.op("tfswap/in/c_0/0", 70, 80, op_type="_CopyFromHost")
    d = r.op("d", 80, 90)
    left, copy, back = r.buffer(8, 1, 15), r.buffer(8, 20, 60), r.buffer(8, 70, 90)
    for op, port, buffer in (
        (a, -1, left),
        (a_out, 0, left),
        (a_back, -1, copy),
        (b, 0, copy),
        (b, -1, copy),
        (c, 0, copy),
        (c, -1, copy),
        (c_out, 0, copy),
        (c_back, -1, back),
        (d, 0, back),
    ):
        r.access(op, port, buffer)
    timeline = profile_step(r.trace(), graph).timeline
    timeline.validate()
    gaps = [(each.tensor, each.after_op, each.before_op) for each in timeline.absences]
    places = {name: place for place, name in enumerate(timeline.op_names)}
    assert ("c:0", places["c"], places["d"]) in gaps


def test_an_op_that_reuses_the_memory_of_a_swapped_out_tensor_gets_a_separate_buffer():
    # Under a plan, a is released at once, so b may write in place; without the swap, d needs a.
    r = Recording()
    a = r.op("a", 0, 10)
    out = r.op("tfswap/out/a_0", 10, 14, op_type="_CopyToHost")
    b = r.op("b", 20, 30)
    c = r.op("c", 30, 50)
    back = r.op("tfswap/in/a_0/0", 60, 70, op_type="_CopyFromHost")
    d = r.op("d", 70, 90)
    memory, copy = r.buffer(8, 1, 50), r.buffer(8, 60, 90)
    for op, port, buffer in (
        (a, -1, memory),
        (out, 0, memory),
        (b, 0, memory),
        (b, -1, memory),
        (c, 0, memory),
        (back, -1, copy),
        (d, 0, copy),
    ):
        r.access(op, port, buffer)
    timeline = profile_step(r.trace(), StepGraph.parse(GRAPH)).timeline
    timeline.validate()
    assert sorted(timeline.buffer_bytes.tolist()) == [0, 8 * MIB, 8 * MIB]
    assert peak_load(timeline) == 100 + 16 * MIB
    gaps = [(each.tensor, each.after_op, each.before_op) for each in timeline.absences]
    places = {name: place for place, name in enumerate(timeline.op_names)}
    assert ("a:0", places["b"], places["d"]) in gaps


def test_in_the_worst_order_all_updates_run_at_the_end():
    graph = StepGraph.parse(GRAPH.replace("#keepup\tc\td", "#keepup\tb\td"))
    r = recording()
    gradient = r.buffer(5, 9, 20)
    r.access(2, 1, gradient)  # b reads it
    profile = profile_step(r.trace(), graph)
    assert profile.unswapped_peak_bytes == 100 + 16 * MIB
    late = r.buffer(2, 100, 110)
    r.access(4, -1, late)  # d writes it, when b may not have run yet
    profile = profile_step(r.trace(), graph)
    assert profile.unswapped_peak_bytes == 100 + 16 * MIB
    assert profile.worst_peak_bytes == 100 + 18 * MIB


def test_an_op_that_reuses_memory_without_a_swap_keeps_the_buffer():
    r = Recording()
    a = r.op("a", 0, 10)
    out = r.op("tfswap/out/a_0", 10, 10, op_type="_CopyToHost")
    back = r.op("tfswap/in/a_0/0", 20, 20, op_type="_CopyFromHost")
    d = r.op("d", 70, 90)
    buffer = r.buffer(8, 1, 90)
    for op, port in ((a, -1), (out, 0), (back, -1), (d, 0), (d, -1)):
        r.access(op, port, buffer)
    timeline = profile_step(r.trace(), StepGraph.parse(GRAPH)).timeline
    assert timeline.buffer_alloc_ns.tolist() == [1000]
