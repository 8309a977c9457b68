"""Slots from recorded steps."""

from __future__ import annotations

import pytest
from recorded_steps import (
    A_R,
    FINGERPRINT,
    KIB,
    LETTERS,
    Ran,
    graph,
    laid_out,
    overlap,
    recorded,
    slots_of,
    step,
)

from tfswap.addresses.layout import Layout, plan_layout
from tfswap.plan.schema import FunctionPlan, Return, SwapPlan, TensorSwap
from tfswap.plan.slots import GRANULE_BYTES, OUTSIDE, Slot, slots_to_text
from tfswap.step.graph import StepGraph
from tfswap.step.trace import StepTrace


def planned(
    *traces: StepTrace, of: StepGraph = LETTERS, swaps: tuple[TensorSwap, ...] = ()
) -> dict[tuple[str, int, int], Slot]:
    layout = plan_layout(traces, of, FunctionPlan(FINGERPRINT, swaps), seconds=0.1)
    slots = {slot[:3]: slot for slot in layout.slots}
    assert len(slots) == len(layout.slots)
    return slots


def test_only_allocations_with_disjoint_lifetimes_share_addresses() -> None:
    slots = planned(recorded(("a", 8 * KIB, 0, 50), ("b", 8 * KIB, 40, 90), ("c", 8 * KIB, 60, 99)))
    a, b, c = (slots[name, 0, 0] for name in "abc")
    assert not overlap(a, b) and not overlap(b, c)
    assert overlap(a, c)
    for slot in slots.values():
        assert slot.size_bytes == 8 * KIB
        assert slot.offset_bytes % GRANULE_BYTES == 0


def test_the_height_is_the_end_of_the_highest_slot_and_at_least_the_load() -> None:
    trace = recorded(("a", 8 * KIB, 0, 50), ("b", 2 * KIB - 100, 40, 90), ("c", 4 * KIB, 60, 99))
    layout = laid_out(trace, LETTERS)
    # In whole granules.
    assert layout.height_bytes == layout.max_live_bytes == 10 * KIB
    assert max(slot.offset_bytes + slot.size_bytes for slot in layout.slots) <= layout.height_bytes


def test_the_step_with_the_lowest_load_is_packed() -> None:
    apart = step(Ran("a", 0, 30, makes=8 * KIB), Ran("b", 40, 90, makes=8 * KIB))
    together = step(Ran("b", 40, 90, makes=8 * KIB), Ran("a", 50, 95, makes=8 * KIB))
    for traces in ((apart, together), (together, apart)):
        layout = plan_layout(traces, LETTERS, FunctionPlan(FINGERPRINT), seconds=0.1)
        assert overlap(*layout.slots)
        # The order excludes the other step, in which the slots would overlap.
        assert layout.order == (("a", "b"),)


def test_a_step_with_on_demand_swap_ins_is_packed_only_if_there_is_no_other() -> None:
    name = "tfswap/in/a_0/0"
    low = recorded(("a", 8 * KIB, 0, 30), (name, 8 * KIB, 60, 90), ("b", 8 * KIB, 40, 50))
    high = recorded(("a", 8 * KIB, 0, 90), ("b", 8 * KIB, 40, 50))
    assert (name, 0, 0) not in planned(low, high)
    assert (name, 0, 0) in planned(low)
    # Planned swap-ins do not count, unless they are on demand.
    swap = TensorSwap("a:0", 8 * KIB, (), (Return("", ("c",)),))
    lazy = TensorSwap("a:0", 8 * KIB, (), (Return("", ("c",)),), lazy=True)
    assert (name, 0, 0) in planned(low, high, swaps=(swap,))
    assert (name, 0, 0) not in planned(low, high, swaps=(lazy,))


def test_allocations_of_an_op_are_distinguished_by_kind() -> None:
    slots = planned(recorded(("a", 8 * KIB, 2, 9), ("a", 9 * KIB, 3, 9, 1), ("a", 7 * KIB, 4, 9)))
    assert {key: slot.size_bytes for key, slot in slots.items()} == {
        ("a", 0, 0): 8 * KIB,
        ("a", 1, 0): 9 * KIB,
        ("a", 0, 1): 7 * KIB,
    }


def test_allocations_of_an_op_are_distinguished_by_their_order_in_a_run() -> None:
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


def test_a_slot_in_a_loop_covers_all_runs_and_no_op_waits_for_it() -> None:
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
    # The large allocations share addresses with both.
    assert layout.height_bytes == 17 * KIB
    assert sorted(layout.order) == [("a", "c"), ("c", "d")]


def test_allocations_that_outlive_the_step_have_no_address_and_older_ones_no_slot() -> None:
    slots = planned(
        recorded(("a", 8 * KIB, 10, -1), ("b", 4 * KIB, 20, 30), ("c", 8 * KIB, -1, 12))
    )
    assert slots["a", 0, 0].offset_bytes == OUTSIDE
    assert slots["b", 0, 0].offset_bytes == 0
    assert len(slots) == 2


def test_allocations_that_outlive_any_recorded_step_have_no_address() -> None:
    outlived = recorded(("a", 8 * KIB, 10, -1), ("b", 20 * KIB, 0, 20))
    packed = recorded(("a", 8 * KIB, 10, 30), ("b", 4 * KIB, 0, 20))
    slots = planned(outlived, packed)
    assert slots["a", 0, 0].offset_bytes == OUTSIDE
    assert slots["b", 0, 0].size_bytes == 4 * KIB


def test_copies_of_variables_have_no_address_even_if_no_step_made_one() -> None:
    updates = graph("a Sum 0 o 1", "update AssignVariableOp 0 ou - a:0")
    assert planned(recorded(), of=updates)["update", 1, 0].offset_bytes == OUTSIDE


def test_short_lived_copies_of_variables_have_no_address() -> None:
    updates = graph("a Sum 0 o 1", "update AssignVariableOp 0 ou - a:0")
    slots = planned(recorded(("update", 8 * KIB, 10, 20, 1)), of=updates)
    assert slots["update", 1, 0].offset_bytes == OUTSIDE


def test_allocations_of_other_graphs_have_no_slot() -> None:
    slots = planned(recorded(("a", 8 * KIB, 10, 15), ("other", 8 * KIB, 5, 20)))
    assert list(slots) == [("a", 0, 0)]


def test_no_step_and_an_empty_step_have_an_empty_layout() -> None:
    for traces in ((), (recorded(),)):
        layout = plan_layout(traces, LETTERS, FunctionPlan(FINGERPRINT))
        assert layout == Layout((), (), 0, 0)
        assert slots_to_text([layout.slots]) == ""


def test_until_the_shape_is_known_all_shapes_have_the_same_addresses() -> None:
    # The sizes of "b" and "c" depend on the batch; "b" is allocated first.
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


def test_slots_round_trip_in_the_plan() -> None:
    slots = (Slot("a", 0, 0, 1024, 5000), Slot("b", 1, 2, OUTSIDE, 7000))
    plan = SwapPlan((FunctionPlan(FINGERPRINT, layouts=(slots,)),))
    parsed = SwapPlan.from_json(plan.to_json())
    assert parsed == plan
    assert all(type(slot) is Slot for slot in parsed.functions[0].layouts[0])


def test_the_text_format_has_one_line_for_each_slot() -> None:
    slots = (Slot("a", 0, 0, 1024, 5000), Slot("b", 1, 2, OUTSIDE, 7000))
    assert slots_to_text([slots]) == "a\t0\t0\t1024\t5000\nb\t1\t2\t-2\t7000"


# --- Outputs that reuse the memory of inputs. ---


def in_place(m: str, *ran: Ran, more: tuple[str, ...] = ()) -> Layout:
    """Return the layout of a step in which r and m read a; m has the op type `m`."""
    op, flags = (m, "oa") if m == "Reshape" else (m, "o")
    of = graph(*A_R, f"m {op} 0 {flags} 1 a:0", "end Sum 0 o 1 m:0", "b Sum 0 o 1", *more)
    return laid_out(step(Ran("a", 0, 5, makes=8 * KIB), *ran), of)


SAME = {"reads": ("a",), "makes": 8 * KIB}
EARLY = Ran("r", 10, 20, ("a",))
NEVER = ["Conv2D", "_FusedConv2D", "Sum", "Reshape"]


@pytest.mark.parametrize("op, waits", [("Mul", True), ("Reshape", False)])
def test_an_op_that_wrote_in_place_waits_for_the_other_readers(op: str, waits: bool) -> None:
    layout = in_place(op, EARLY, Ran("m", 25, 30, ("a",), into="a"), Ran("end", 40, 45, ("m",)))
    assert layout.order == ((("r", "m"),) if waits else ())
    assert list(slots_of(layout)) == ["a"]


@pytest.mark.parametrize("start", [12, 35])
def test_an_op_that_could_have_written_in_place_precedes_a_later_reader(start: int) -> None:
    def layout(op: str, makes: int) -> Layout:
        return in_place(op, Ran("m", 10, 30, ("a",), makes), Ran("r", start, 40, ("a",)))

    assert layout("Mul", 8 * KIB).order == (("m", "r"),)
    assert layout("Mul", 4 * KIB).order == ()
    assert all(layout(op, 8 * KIB).order == () for op in NEVER)


def test_the_last_concurrent_reader_reuses_memory_if_its_type_does_so_elsewhere() -> None:
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
    # So a's addresses are in use until m's reader ends.
    assert set(layout.order) >= {("r", "m"), ("end", "b")}


@pytest.mark.parametrize("op", ["Mul", *NEVER])
def test_otherwise_the_layout_allows_for_both_cases(op: str) -> None:
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
