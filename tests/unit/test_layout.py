"""Slots from recorded steps."""

from __future__ import annotations

import numpy as np

from tfswap.layout import GRANULE_BYTES, HEADER_BYTES, OUTSIDE, Layout, Slot, plan_layout
from tfswap.plan import FunctionPlan, SwapPlan
from tfswap.trace import ACCESS_DTYPE, BUFFER_DTYPE, OP_DTYPE, StepTrace

KIB = 1024


def recorded(
    *buffers: tuple[str, int, int, int], runs: tuple[tuple[str, int, int], ...] = ()
) -> StepTrace:
    """A step of 100 ns with buffers of (op, bytes, allocated, freed or -1), all outputs."""
    names = tuple(dict.fromkeys([name for name, *_ in buffers] + [name for name, *_ in runs]))
    ops = np.zeros(len(runs), OP_DTYPE)
    for row, (name, begin, end) in zip(ops, runs, strict=True):
        row["name"], row["start_ns"], row["end_ns"] = names.index(name), begin, end
    table = np.zeros(len(buffers), BUFFER_DTYPE)
    for row, (name, size, begin, end) in zip(table, buffers, strict=True):
        row["name"], row["bytes"], row["alloc_ns"], row["free_ns"] = (
            names.index(name),
            size,
            begin,
            end,
        )
    return StepTrace(0, 100, 0, ops, table, np.zeros(0, ACCESS_DTYPE), names)


def planned(*traces: StepTrace) -> dict[tuple[str, int], Slot]:
    layout = plan_layout(traces, lambda name: name != "other", seconds=0.1)
    return {(slot.op, slot.ordinal): slot for slot in layout.slots}


def overlap(a: Slot, b: Slot) -> bool:
    return (
        a.offset_bytes < b.offset_bytes + b.size_bytes
        and b.offset_bytes < a.offset_bytes + a.size_bytes
    )


def test_what_lives_together_is_apart_and_the_rest_shares() -> None:
    slots = planned(recorded(("a", 8 * KIB, 0, 50), ("b", 8 * KIB, 40, 90), ("c", 8 * KIB, 60, 99)))
    assert not overlap(slots["a", 0], slots["b", 0]) and not overlap(slots["b", 0], slots["c", 0])
    assert overlap(slots["a", 0], slots["c", 0])
    for slot in slots.values():
        assert slot.size_bytes == 8 * KIB + HEADER_BYTES
        assert slot.offset_bytes % GRANULE_BYTES == 0


def test_no_recorded_step_may_find_its_place_taken() -> None:
    # In the second step the ops ran in another order.
    slots = planned(
        recorded(("a", 8 * KIB, 0, 30), ("b", 8 * KIB, 40, 90)),
        recorded(("a", 8 * KIB, 50, 95), ("b", 8 * KIB, 40, 90)),
    )
    assert not overlap(slots["a", 0], slots["b", 0])


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
    assert {key: slot.size_bytes - HEADER_BYTES for key, slot in slots.items()} == {
        ("a", 0): 8 * KIB,
        ("a", 1): 9 * KIB,
    }


def test_what_outlives_the_step_and_what_is_not_the_graphs_stay_out() -> None:
    slots = planned(
        recorded(("a", 8 * KIB, 10, -1), ("other", 8 * KIB, 5, 20), ("a", 8 * KIB, -1, 12))
    )
    assert list(slots) == [("a", 0)]
    assert slots["a", 0].offset_bytes == OUTSIDE


def test_no_step_and_an_empty_step_have_an_empty_layout() -> None:
    for traces in ((), (recorded(),)):
        layout = plan_layout(traces, lambda name: True)
        assert layout == Layout((), 0, 0)
        assert layout.to_text() == ""


def test_a_layout_travels_in_the_plan() -> None:
    slots = (Slot("a", 0, 0, 1024, 5000), Slot("b", 1, 2, OUTSIDE, 7000))
    plan = SwapPlan((FunctionPlan("0123456789abcdef", layout=slots),))
    assert SwapPlan.from_json(plan.to_json()) == plan
    assert Layout(slots).to_text() == "a\t0\t0\t1024\t5000\nb\t1\t2\t-2\t7000"
