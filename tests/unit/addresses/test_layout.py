"""Slots from recorded steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from tfswap.addresses.layout import Layout, plan_layout
from tfswap.plan.schema import FunctionPlan, Return, SwapPlan, TensorSwap
from tfswap.plan.slots import GRANULE_BYTES, OUTSIDE, Slot, slots_to_text
from tfswap.step.graph import StepGraph
from tfswap.step.trace import ACCESS_DTYPE, BUFFER_DTYPE, OP_DTYPE, StepTrace

KIB = 1024
FINGERPRINT = "0123456789abcdef"


def recorded(
    *buffers: tuple[int | str, ...],
    runs: tuple[tuple[str, int, int], ...] = (),
    accesses: tuple[tuple[int, int, int], ...] = (),
) -> StepTrace:
    """A step of 100 ns.

    Buffers are (op, bytes, allocated, freed or -1), with a kind behind if they are no outputs; runs
    are (op, start, end), accesses (which run, port, which buffer).
    """
    names = tuple(dict.fromkeys(str(row[0]) for row in (*buffers, *runs)))
    ops = np.zeros(len(runs), OP_DTYPE)
    for row, (name, begin, end) in zip(ops, runs, strict=True):
        row["name"], row["start_ns"], row["end_ns"] = names.index(name), begin, end
    table = np.zeros(len(buffers), BUFFER_DTYPE)
    for row, (name, size, begin, end, *kind) in zip(table, buffers, strict=True):
        row["name"], row["bytes"], row["kind"] = (names.index(str(name)), size, *(kind or [0]))
        row["alloc_ns"], row["free_ns"] = begin, end
    touched = np.zeros(len(accesses), ACCESS_DTYPE)
    for row, (run, port, buffer) in zip(touched, accesses, strict=True):
        row["op"], row["port"], row["buffer"] = run, port, buffer
    return StepTrace(0, 100, 0, ops, table, touched, names)


class Ran(NamedTuple):
    """An op that ran once.

    Args:
        op, start, end: Its name, and when.
        reads: Whose outputs, in the order of its inputs.
        makes: Bytes of its output, 0 for none.
        into: Whose output's memory it wrote instead.
        allocates: When, if not at its start.
    """

    op: str
    start: int
    end: int
    reads: tuple[str, ...] = ()
    makes: int = 0
    into: str | None = None
    allocates: int | None = None


def step(*ran: Ran) -> StepTrace:
    """What these ops did: memory is freed when the last op ends that uses it."""
    holder: dict[str, int] = {}  # of an op's output
    buffers: list[tuple[str, int, int, int]] = []
    accesses = []
    for run, op in enumerate(ran):
        used = [holder[name] for name in op.reads]
        accesses += [(run, port, buffer) for port, buffer in enumerate(used)]
        if op.into is not None:
            holder[op.op] = holder[op.into]
        elif op.makes:
            holder[op.op] = len(buffers)
            begin = op.start if op.allocates is None else op.allocates
            buffers.append((op.op, op.makes, begin, op.end))
        if op.op in holder:
            accesses.append((run, -1, holder[op.op]))
            used.append(holder[op.op])
        for buffer in used:
            name, size, begin, end = buffers[buffer]
            buffers[buffer] = (name, size, begin, max(end, op.end))
    return recorded(
        *buffers, runs=tuple((op.op, op.start, op.end) for op in ran), accesses=tuple(accesses)
    )


def graph(*lines: str) -> StepGraph:
    """A graph from its description, with blanks for tabs and "-" for no flags."""
    return StepGraph.parse("\n".join(line.replace(" ", "\t") for line in lines))


LETTERS = graph(*(f"{name} Sum 0 o 1" for name in "abcde"))
A_R = ("a Sum 0 o 1", "r Sum 0 o 1 a:0")


def laid_out(trace: StepTrace, of: StepGraph, function: FunctionPlan | None = None) -> Layout:
    return plan_layout([trace], of, function or FunctionPlan(FINGERPRINT), seconds=0.1)


def slots_of(layout: Layout) -> dict[str, Slot]:
    return {slot.op: slot for slot in layout.slots}


def planned(
    *traces: StepTrace, of: StepGraph = LETTERS, swaps: tuple[TensorSwap, ...] = ()
) -> dict[tuple[str, int, int], Slot]:
    layout = plan_layout(traces, of, FunctionPlan(FINGERPRINT, swaps), seconds=0.1)
    slots = {slot[:3]: slot for slot in layout.slots}
    assert len(slots) == len(layout.slots)
    return slots


def overlap(a: Slot, b: Slot) -> bool:
    return (
        a.offset_bytes < b.offset_bytes + b.size_bytes
        and b.offset_bytes < a.offset_bytes + a.size_bytes
    )


def test_what_lives_together_is_apart_and_the_rest_shares() -> None:
    slots = planned(recorded(("a", 8 * KIB, 0, 50), ("b", 8 * KIB, 40, 90), ("c", 8 * KIB, 60, 99)))
    a, b, c = (slots[name, 0, 0] for name in "abc")
    assert not overlap(a, b) and not overlap(b, c)
    assert overlap(a, c)
    for slot in slots.values():
        assert slot.size_bytes == 8 * KIB
        assert slot.offset_bytes % GRANULE_BYTES == 0


def test_the_height_is_that_of_the_highest_slot_and_no_less_than_the_load() -> None:
    trace = recorded(("a", 8 * KIB, 0, 50), ("b", 2 * KIB - 100, 40, 90), ("c", 4 * KIB, 60, 99))
    layout = laid_out(trace, LETTERS)
    # In whole granules.
    assert layout.height_bytes == layout.max_live_bytes == 10 * KIB
    assert max(slot.offset_bytes + slot.size_bytes for slot in layout.slots) <= layout.height_bytes


def test_of_several_steps_the_one_with_the_lowest_load_is_packed() -> None:
    apart = step(Ran("a", 0, 30, makes=8 * KIB), Ran("b", 40, 90, makes=8 * KIB))
    together = step(Ran("b", 40, 90, makes=8 * KIB), Ran("a", 50, 95, makes=8 * KIB))
    for traces in ((apart, together), (together, apart)):
        layout = plan_layout(traces, LETTERS, FunctionPlan(FINGERPRINT), seconds=0.1)
        assert overlap(*layout.slots)
        # A step may not run like the other one any more, in which a place would be taken.
        assert layout.order == (("a", "b"),)


def test_a_step_that_brought_back_what_the_plan_keeps_is_packed_only_if_there_is_no_other() -> None:
    name = "tfswap/in/a_0/0"
    low = recorded(("a", 8 * KIB, 0, 30), (name, 8 * KIB, 60, 90), ("b", 8 * KIB, 40, 50))
    high = recorded(("a", 8 * KIB, 0, 90), ("b", 8 * KIB, 40, 50))
    assert (name, 0, 0) not in planned(low, high)
    assert (name, 0, 0) in planned(low)
    # A swap-in of the plan is no such thing, unless its tensor only leaves where memory is short.
    swap = TensorSwap("a:0", 8 * KIB, (), (Return("", ("c",)),))
    lazy = TensorSwap("a:0", 8 * KIB, (), (Return("", ("c",)),), lazy=True)
    assert (name, 0, 0) in planned(low, high, swaps=(swap,))
    assert (name, 0, 0) not in planned(low, high, swaps=(lazy,))


def test_allocations_of_an_op_are_told_apart_by_kind() -> None:
    slots = planned(recorded(("a", 8 * KIB, 2, 9), ("a", 9 * KIB, 3, 9, 1), ("a", 7 * KIB, 4, 9)))
    assert {key: slot.size_bytes for key, slot in slots.items()} == {
        ("a", 0, 0): 8 * KIB,
        ("a", 1, 0): 9 * KIB,
        ("a", 0, 1): 7 * KIB,
    }


def test_allocations_of_an_op_are_told_apart_by_their_order_in_a_run() -> None:
    slots = planned(
        recorded(
            ("a", 8 * KIB, 2, 9),
            ("a", 9 * KIB, 3, 9),
            ("a", 8 * KIB, 52, 59),
            ("a", 9 * KIB, 53, 59),
            runs=(("a", 1, 4), ("a", 51, 54)),
        )
    )
    assert {key: slot.size_bytes for key, slot in slots.items()} == {
        ("a", 0, 0): 8 * KIB,
        ("a", 0, 1): 9 * KIB,
    }


def test_a_slot_in_a_loop_covers_all_runs_and_nobody_waits_for_it() -> None:
    trace = recorded(
        ("a", 17 * KIB, 0, 5),
        ("b", 8 * KIB, 10, 15),
        ("c", 8 * KIB, 20, 25),
        ("b", 8 * KIB, 30, 35),
        ("d", 17 * KIB, 40, 45),
        runs=(("a", 0, 5), ("b", 10, 15), ("c", 20, 25), ("b", 30, 35), ("d", 40, 45)),
    )
    layout = laid_out(trace, LETTERS)
    assert len(layout.slots) == 4
    assert not overlap(slots_of(layout)["b"], slots_of(layout)["c"])
    # The large ones share with both.
    assert layout.height_bytes == 17 * KIB
    assert sorted(layout.order) == [("a", "c"), ("c", "d")]


def test_what_outlives_the_step_is_put_outside_and_what_was_there_before_is_nothing() -> None:
    slots = planned(
        recorded(("a", 8 * KIB, 10, -1), ("b", 4 * KIB, 20, 30), ("c", 8 * KIB, -1, 12))
    )
    assert slots["a", 0, 0].offset_bytes == OUTSIDE
    assert slots["b", 0, 0].offset_bytes == 0
    assert len(slots) == 2


def test_what_outlives_any_recorded_step_is_put_outside() -> None:
    stays = recorded(("a", 8 * KIB, 10, -1), ("b", 20 * KIB, 0, 20))
    goes = recorded(("a", 8 * KIB, 10, 30), ("b", 4 * KIB, 0, 20))  # the one that is packed
    slots = planned(stays, goes)
    assert slots["a", 0, 0].offset_bytes == OUTSIDE
    assert slots["b", 0, 0].size_bytes == 4 * KIB


def test_copies_of_variables_are_put_outside_though_no_step_made_any() -> None:
    updates = graph("a Sum 0 o 1", "update AssignVariableOp 0 ou - a:0")
    assert planned(recorded(), of=updates)["update", 1, 0].offset_bytes == OUTSIDE


def test_a_copy_of_a_variable_that_was_gone_at_once_is_put_outside_as_well() -> None:
    updates = graph("a Sum 0 o 1", "update AssignVariableOp 0 ou - a:0")
    slots = planned(recorded(("update", 8 * KIB, 10, 20, 1)), of=updates)
    assert slots["update", 1, 0].offset_bytes == OUTSIDE


def test_what_is_not_the_graphs_gets_nothing() -> None:
    slots = planned(recorded(("a", 8 * KIB, 10, 15), ("other", 8 * KIB, 5, 20)))
    assert list(slots) == [("a", 0, 0)]


def test_no_step_and_an_empty_step_have_an_empty_layout() -> None:
    for traces in ((), (recorded(),)):
        layout = plan_layout(traces, LETTERS, FunctionPlan(FINGERPRINT))
        assert layout == Layout((), (), 0, 0)
        assert slots_to_text([layout.slots]) == ""


def test_before_the_shape_is_known_every_shape_has_the_same_places() -> None:
    # "a" and "d" are of one size for all batches, "b" and "c" are not; "b" is the first that tells.
    full = step(
        Ran("a", 0, 90, makes=8 * KIB),
        Ran("b", 10, 95, makes=64 * KIB),
        Ran("d", 20, 80, makes=8 * KIB),
        Ran("c", 30, 99, ("a", "b", "d"), makes=64 * KIB),
    )
    last = step(
        Ran("a", 0, 90, makes=8 * KIB),
        Ran("b", 10, 95, makes=16 * KIB),
        Ran("d", 20, 80, makes=8 * KIB),
        Ran("c", 30, 99, ("a", "b", "d"), makes=16 * KIB),
    )
    first = laid_out(full, LETTERS)
    function = FunctionPlan(FINGERPRINT, order=first.order, layouts=(first.slots,))
    second = laid_out(last, LETTERS, function)
    assert slots_of(first)["a"].offset_bytes == slots_of(second)["a"].offset_bytes > 0
    assert second.height_bytes < first.height_bytes
    assert second.height_bytes >= slots_of(first)["a"].offset_bytes + 8 * KIB


def test_slots_travel_in_the_plan() -> None:
    slots = (Slot("a", 0, 0, 1024, 5000), Slot("b", 1, 2, OUTSIDE, 7000))
    plan = SwapPlan((FunctionPlan(FINGERPRINT, layouts=(slots,)),))
    back = SwapPlan.from_json(plan.to_json())
    assert back == plan
    assert all(type(slot) is Slot for slot in back.functions[0].layouts[0])


def test_the_device_reads_a_line_a_slot() -> None:
    slots = (Slot("a", 0, 0, 1024, 5000), Slot("b", 1, 2, OUTSIDE, 7000))
    assert slots_to_text([slots]) == "a\t0\t0\t1024\t5000\nb\t1\t2\t-2\t7000"


# --- Outputs in the memory of inputs. ---


def in_place(m: str, *ran: Ran, more: tuple[str, ...] = ()) -> Layout:
    """The layout of a step in which r and m read a, both may wait, and m is of that op."""
    op, flags = (m, "oa") if m == "Reshape" else (m, "o")
    of = graph(*A_R, f"m {op} 0 {flags} 1 a:0", "end Sum 0 o 1 m:0", "b Sum 0 o 1", *more)
    return laid_out(step(Ran("a", 0, 5, makes=8 * KIB), *ran), of)


SAME = {"reads": ("a",), "makes": 8 * KIB}
EARLY = Ran("r", 10, 20, ("a",))
NEVER = ["Conv2D", "_FusedConv2D", "Sum", "Reshape"]


@pytest.mark.parametrize("op, waits", [("Mul", True), ("Reshape", False)])
def test_who_wrote_in_place_waits_for_the_other_readers(op: str, waits: bool) -> None:
    layout = in_place(op, EARLY, Ran("m", 25, 30, ("a",), into="a"), Ran("end", 40, 45, ("m",)))
    assert layout.order == ((("r", "m"),) if waits else ())
    assert list(slots_of(layout)) == ["a"]


@pytest.mark.parametrize("start", [12, 35])
def test_who_did_not_but_could_have_comes_before_a_later_reader(start: int) -> None:
    def layout(op: str, makes: int) -> Layout:
        return in_place(op, Ran("m", 10, 30, ("a",), makes), Ran("r", start, 40, ("a",)))

    assert layout("Mul", 8 * KIB).order == (("m", "r"),)
    assert layout("Mul", 4 * KIB).order == ()
    assert all(layout(op, 8 * KIB).order == () for op in NEVER)


def test_the_last_of_two_that_ran_at_once_takes_over_if_its_kind_does_so_elsewhere() -> None:
    elsewhere = (Ran("q", 1, 2, makes=KIB), Ran("k", 3, 4, ("q",), into="q"))
    layout = in_place(
        "Mul",
        *elsewhere,
        EARLY,
        Ran("m", 15, 30, **SAME),
        Ran("end", 40, 45, ("m",)),
        Ran("b", 50, 55, makes=8 * KIB),
        more=("q Sum 0 o 1", "k Mul 0 o 1 q:0"),
    )
    assert set(slots_of(layout)) == {"q", "a", "b"}
    # Then a's place is taken until m's reader ends.
    assert set(layout.order) >= {("r", "m"), ("end", "b")}


@pytest.mark.parametrize("op", ["Mul", *NEVER])
def test_of_another_kind_both_places_are_kept_if_it_could(op: str) -> None:
    layout = in_place(
        op,
        EARLY,
        Ran("m", 15, 30, **SAME),
        Ran("b", 32, 35, makes=8 * KIB),
        Ran("end", 40, 45, ("m",)),
    )
    slots = slots_of(layout)
    assert not overlap(slots["a"], slots["m"])
    assert overlap(slots["a"], slots["b"]) == (op != "Mul")
    assert ("r", "m") not in layout.order
