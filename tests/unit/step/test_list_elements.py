"""Elements of loops' lists in a recorded step."""

from __future__ import annotations

from recordings import MIB, Recording

from tfswap.step.graph import StepGraph
from tfswap.step.profile import profile_step
from tfswap.step.timeline import peak_load

GRAPH = StepGraph.parse(
    "\n".join(
        [
            "made\tMatMul\t0\tgpr\t1",
            "used\tMatMul\t0\tgpr\t1\tmade:0",
            "other\tMatMul\t0\tgpr\t1",
            "late\tMatMul\t0\tgpb\t1\tother:0",
            "last\tMatMul\t0\tgpb\t1",
        ]
    )
)


def popped(pops: int = 1) -> Recording:
    """An element is made and used, pushed on a list, and popped for the op `late`."""
    r = Recording()
    made = r.op("made", 0, 10)
    push = r.op("tfswap/list/out/made_0", 10, 11, op_type="_ElementToHost")
    used = r.op("used", 11, 20)
    other = r.op("other", 20, 60)
    element, largest = r.buffer(8, 1, 90), r.buffer(16, 21, 60)
    for op, port in ((made, -1), (push, 0), (used, 0)):
        r.access(op, port, element)
    r.access(other, -1, largest)
    for i in range(pops):
        begin = 60 + 10 * i
        pop = r.op("tfswap/list/in/pop", begin, begin, op_type="_CopyFromHost", iteration=i)
        late = r.op("late", begin + 1, begin + 5, iteration=i)
        r.access(pop, -1, element)
        r.access(late, 1, element)
    r.op("last", 90, 100)
    return r


def test_planners_see_an_element_only_while_ops_use_it():
    profile = profile_step(popped().trace(), GRAPH, min_bytes=MIB)
    assert profile.unswapped_peak_bytes == 100 + 24 * MIB
    profile.timeline.validate()
    assert peak_load(profile.timeline) == 100 + 16 * MIB
    assert sorted(profile.timeline.buffer_bytes.tolist()) == [8 * MIB, 8 * MIB, 16 * MIB]
    (absence,) = (a for a in profile.timeline.absences if a.tensor == "made:0")
    assert profile.timeline.op_names[absence.before_op] == "used"


def test_an_element_that_is_popped_twice_leaves_between():
    timeline = profile_step(popped(2).trace(), GRAPH, min_bytes=MIB).timeline
    timeline.validate()
    pieces = sorted(
        zip(timeline.buffer_alloc_ns.tolist(), timeline.buffer_free_ns.tolist(), strict=True)
    )
    assert [(begin // 1000, end // 1000) for begin, end in pieces] == [
        (1, 20),
        (21, 60),
        (61, 65),
        (71, 75),
    ]


def test_the_floor_is_without_elements_that_the_op_does_not_use():
    floor = profile_step(popped().trace(), GRAPH, min_bytes=MIB).floor
    assert floor.streamed.op == "other"
    assert floor.streamed.bytes == 100 + 16 * MIB


def add_row(r: Recording) -> int:
    r.op("tfswap/list/rows/x", 0, 2, op_type="_RowsToHost")
    row = r.buffer(4, 1, 90, "tfswap/list/rows/x")
    r.buffers[row] = (*r.buffers[row][:-1], 1)  # temporary memory
    return row


def test_rows_of_a_sequence_are_elements():
    r = popped()
    add_row(r)
    profile = profile_step(r.trace(), GRAPH, min_bytes=MIB)
    assert profile.unswapped_peak_bytes == 100 + 28 * MIB
    assert peak_load(profile.timeline) == 100 + 16 * MIB


def test_a_row_is_away_until_its_first_use():
    r = popped()
    row = add_row(r)
    pop = r.op("tfswap/list/in/row", 65, 65, op_type="_CopyFromHost")
    last = r.op("last", 66, 70)
    r.access(pop, -1, row)
    r.access(last, 0, row)
    profile = profile_step(r.trace(), GRAPH, min_bytes=MIB)
    assert profile.unswapped_peak_bytes == 100 + 28 * MIB
    profile.timeline.validate()
    assert peak_load(profile.timeline) == 100 + 16 * MIB
    assert profile.floor.streamed.op == "other"
    assert profile.floor.streamed.bytes == 100 + 16 * MIB
