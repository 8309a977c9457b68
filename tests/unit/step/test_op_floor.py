"""The floor of a step: what its largest op needs at once, whatever swaps do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfswap.step.op_floor import (
    OpFloor,
    OpTimes,
    StepFloor,
    UsedBuffer,
    UsedVariable,
    step_floor,
)
from tfswap.step.timeline import OUTLIVES_STEP_NS

MIB = 1 << 20
BEFORE, AFTER = 0, OUTLIVES_STEP_NS


def ops(*times: tuple[int, int]) -> OpTimes:
    """Return ops A, B, C, ... that run at these times."""
    names = "ABCDEFGH"[: len(times)]
    starts, ends = np.array(times, dtype=np.int64).reshape(-1, 2).T
    return OpTimes(names, names.lower(), starts, ends)


THREE = ops((0, 10), (20, 30), (40, 50))


def floor_of(
    of: OpTimes,
    *buffers: UsedBuffer,
    variables: tuple[UsedVariable, ...] = (),
    temporary: dict[int, int] | None = None,
    resident: int = 0,
) -> StepFloor:
    return step_floor(of, buffers, variables, temporary or {}, resident)


def test_what_an_op_uses_counts_by_kind() -> None:
    floor = floor_of(
        THREE,
        UsedBuffer(5, (0, 1), 0, 1, 31),  # A makes it, B reads it
        UsedBuffer(7, (1, 2), 1, 21, 51, leaves=((30, 40),)),
        variables=(UsedVariable(100, (1,)), UsedVariable(40, (0, 2))),
        temporary={1: 3},
        resident=2,
    )
    assert floor.streamed == OpFloor("B", "b", 100, 5, 7, 3, 2)
    assert floor.staying == OpFloor("B", "b", 100, 5, 7, 3, 42)
    assert (floor.streamed.bytes, floor.staying.bytes) == (117, 157)


def test_the_ops_of_both_floors_differ() -> None:
    """With weights staying, an op counts that makes much beside all of them."""
    variables = (UsedVariable(100, (0,)), UsedVariable(100, (0,)))
    floor = floor_of(THREE, UsedBuffer(30, (2,), 2, 41, 51), variables=variables)
    assert (floor.staying.op, floor.staying.bytes) == ("C", 230)
    assert (floor.streamed.op, floor.streamed.bytes) == ("A", 200)


@pytest.mark.parametrize(
    ("buffer", "staying"),
    [
        (UsedBuffer(8, (0, 2), 0, 1, 51), 8),  # B runs between its uses
        (UsedBuffer(8, (0, 2), 0, 1, 51, leaves=((10, 40),)), 0),
        (UsedBuffer(8, (0, 2), 0, 1, 51, leaves=((10, 35),)), 0),  # back when B has ended
        (UsedBuffer(8, (0, 2), 0, 1, 51, leaves=((10, 20),)), 8),  # back too early
        (UsedBuffer(8, (0, 2), 0, 1, 51, leaves=((15, 40),)), 0),  # gone before B starts
        (UsedBuffer(8, (0, 2), 0, 1, 51, leaves=((25, 40),)), 0),  # gone while B runs: B can wait
        (UsedBuffer(8, (0, 2), 0, 1, 51, leaves=((35, 40),)), 8),  # gone too late
        (UsedBuffer(8, (0, 2), 0, 1, 51, leaves=((10, 15), (18, 40))), 0),
        (UsedBuffer(8, (0, 2), 0, 1, 51, leaves=((10, 15), (32, 40))), 8),
        (UsedBuffer(8, (2,), -1, BEFORE, 51), 8),  # from before the step
        (UsedBuffer(8, (0,), 0, 1, AFTER), 8),
        (UsedBuffer(8, (0,), 0, 1, 25), 0),  # freed while B runs
        (UsedBuffer(8, (), -1, 15, 35), 8),  # of no known op
        (UsedBuffer(8, (), -1, 25, 35), 0),
    ],
)
def test_what_cannot_leave_counts_for_ops_that_run_meanwhile(
    buffer: UsedBuffer, staying: int
) -> None:
    large = UsedBuffer(100, (1,), 1, 21, 31)
    assert floor_of(THREE, buffer, large).streamed == OpFloor("B", "b", 0, 0, 100, 0, staying)


def test_ops_that_run_at_once_count_one_by_one() -> None:
    overlapping = ops((0, 30), (5, 25), (10, 40))
    buffers = [UsedBuffer(8, (op,), op, alloc, 41) for op, alloc in ((0, 1), (1, 6), (2, 11))]
    assert floor_of(overlapping, *buffers).streamed.bytes == 8


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4), st.integers(0, 4)), max_size=8),
    st.booleans(),
)
def test_the_floor_is_between_an_ops_own_bytes_and_all(
    found: list[tuple[int, int, int]], may_leave: bool
) -> None:
    of = ops(*((10 * op, 10 * op + 5) for op in range(5)))
    buffers = []
    for size, one, other in found:
        first, last = min(one, other), max(one, other)
        leaves = ((10 * first + 5, 10 * last),) if may_leave else ()
        users, end = (first, last), 10 * last + 6
        buffers.append(UsedBuffer(size, users, first, 10 * first, end, leaves))
    floor = floor_of(of, *buffers)
    own = [sum(b.bytes for b in buffers if op in b.users) for op in range(5)]
    live = [sum(b.bytes for b in buffers if min(b.users) <= o <= max(b.users)) for o in range(5)]
    assert floor.streamed == floor.staying
    assert floor.streamed.bytes == max(own if may_leave else live)


def test_the_text_names_the_op_and_what_it_needs() -> None:
    floor = OpFloor("adam/Sub", "Sub", 4 * MIB, 4 * MIB, 0, 0, 100)
    assert floor.least == "8.1 MiB"  # rounded up
    assert str(floor) == (
        "op 'adam/Sub' (Sub) needs 4 MiB of weights, 4 MiB of inputs; 100 bytes cannot leave "
        "meanwhile"
    )
    assert str(OpFloor("a", "A", 0, 0, 0, 0, 0)).startswith("op 'a' (A) needs nothing; 0 bytes")


@pytest.mark.parametrize(
    ("name", "value"),
    [("op", "x" * (1 << 17)), ("op_type", 3), ("weight_bytes", -1), ("staying_bytes", 1 << 62)],
)
def test_invalid_fields(name: str, value: object) -> None:
    fields = {"op": "a", "op_type": "A"}
    sizes = ("weight_bytes", "input_bytes", "output_bytes", "temporary_bytes", "staying_bytes")
    with pytest.raises(ValueError, match=f"a floor has {name}="):
        OpFloor(**{**fields, **dict.fromkeys(sizes, 1), name: value})  # type: ignore[arg-type]
