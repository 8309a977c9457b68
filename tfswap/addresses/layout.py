"""Planned addresses: slots from recorded steps, and the order of ops that keeps them free.

A slot belongs to an allocation of an op. Lifetimes come from a step that was recorded with the plan
installed, so a tensor that is swapped out frees its addresses and may return to others. The
lifetimes hold in every step because the last users of an address are ordered before the op that
allocates it next (`StepOrder`).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap.addresses.order import StepOrder
from tfswap.addresses.packing import ANY_OFFSET, Buffers, pack
from tfswap.addresses.recorded_step import Lived, RecordedStep
from tfswap.plan.schema import FunctionPlan
from tfswap.plan.slots import GRANULE_BYTES, OUTSIDE, Key, Slot
from tfswap.step.graph import StepGraph
from tfswap.step.trace import StepTrace

# Steps whose peak is within this factor of the lowest count as equal.
_PEAK_TOLERANCE = 1.02


@dataclass(frozen=True)
class Layout:
    """The slots of one graph.

    Attributes:
        slots: One for each key.
        order: Pairs of ops: the first ends before the second starts. Without them, slots would
            overlap in steps whose ops run in another order.
        height_bytes: The end of the highest slot.
        max_live_bytes: The peak load of the slots, which is a lower bound on the height.
        lived: The lifetimes of the first slots.
        beside_bytes: The peak load of allocations without slots (weights, batches, allocations that
            outlive the step), plus one new value of a variable, since updates are not ordered.
    """

    slots: tuple[Slot, ...] = ()
    order: tuple[tuple[str, str], ...] = ()
    height_bytes: int = 0
    max_live_bytes: int = 0
    lived: tuple[Lived, ...] = ()
    beside_bytes: int = 0


def plan_layout(
    traces: Sequence[StepTrace],
    graph: StepGraph,
    function: FunctionPlan,
    *,
    seconds: float = 1.0,
) -> Layout:
    """Pack the allocations of a graph's ops.

    Args:
        traces: Recordings of whole steps. The layout packs the fastest step among those with the
            fewest unplanned swaps and a nearly lowest peak load.
        graph: The graph.
        function: The graph's plan, which was installed. It may already have layouts, for tensors of
            other shapes.
        seconds: Time limit of the search for a lower layout.
    """
    if not traces:
        return Layout()
    order = StepOrder(graph, function)
    steps = [RecordedStep(trace, graph, order) for trace in traces]
    steps = [step for step in steps if step.lived] or steps
    packed = _best(steps)
    waits = packed.settle_in_place()
    lasting = _lasting(steps, graph)
    packed.lived = [lived for lived in packed.lived if lived.key not in lasting]
    buffers = packed.buffers_to_pack()
    fixed = _fixed(packed, buffers, function.layouts)
    buffers = dataclasses.replace(buffers, fixed=fixed)
    packing = pack(buffers, seconds=seconds)
    slots = [
        Slot(*lived.key, offset * GRANULE_BYTES, lived.bytes)
        for lived, offset in zip(packed.lived, packing.offsets.tolist(), strict=True)
    ]
    slots += [Slot(*key, OUTSIDE, size) for key, size in sorted(lasting.items())]
    for before, after in _neighbours(buffers, packing.offsets):
        first, then = packed.lived[before], packed.lived[after]
        if then.gate is not None:
            waits[then.gate].update(first.users - {then.gate})
        if not packed.can_be_waited_for(then):
            then.users |= first.users  # the next allocation waits for both
    return Layout(
        tuple(slots),
        order.enforce(waits, packed.start_ns),
        packing.height * GRANULE_BYTES,
        buffers.max_live * GRANULE_BYTES,
        tuple(packed.lived),
        packed.load_beside() + max(lasting.values(), default=0),
    )


def _best(steps: Sequence[RecordedStep]) -> RecordedStep:
    lazy_bytes = min(step.lazy_bytes for step in steps)
    with_load = [
        (step, step.buffers_to_pack().max_live) for step in steps if step.lazy_bytes == lazy_bytes
    ]
    least = min(load for _, load in with_load)
    low = (step for step, load in with_load if load <= _PEAK_TOLERANCE * least)
    return min(low, key=lambda step: step.duration_ns)


def _fixed(
    step: RecordedStep, buffers: Buffers, layouts: Sequence[Sequence[Slot]]
) -> NDArray[np.int64]:
    """Return the fixed offsets of allocations made before the step's shape is known.

    They are those of the layouts of other shapes. The device's allocator recognises the shape by
    the first size that only one layout has.
    """
    known = [{Key(*slot[:3]): slot for slot in layout} for layout in layouts]
    shape_known_ns = min(
        (
            lived.begin_ns
            for lived in step.lived
            for slots in known
            if _identifies_shape(lived.bytes, slots.get(lived.key))
        ),
        default=0,
    )
    offsets = np.full(len(buffers), ANY_OFFSET, dtype=np.int64)
    settled: list[int] = []
    for b, lived in enumerate(step.lived):
        slot = next((slots[lived.key] for slots in known if lived.key in slots), None)
        if lived.begin_ns >= shape_known_ns or slot is None or slot.offset_bytes == OUTSIDE:
            continue
        offset = slot.offset_bytes // GRANULE_BYTES
        overlaps = any(
            offsets[other] < offset + buffers.size[b]
            and offset < offsets[other] + buffers.size[other]
            and buffers.lower[other] < buffers.upper[b]
            and buffers.lower[b] < buffers.upper[other]
            for other in settled
        )
        if not overlaps:
            offsets[b] = offset
            settled.append(b)
    return offsets


def _identifies_shape(size_bytes: int, slot: Slot | None) -> bool:
    return slot is not None and slot.offset_bytes != OUTSIDE and slot.size_bytes != size_bytes


def _lasting(steps: Sequence[RecordedStep], graph: StepGraph) -> dict[Key, int]:
    """Return the allocations that outlive a recorded step, or that may do so by the op's type."""
    lasting: dict[Key, int] = {}
    for name, node in graph.nodes.items():
        if node.updates_variable:  # it allocates a copy while another op still reads the old value
            lasting[Key(name, 1, 0)] = 1
    for step in steps:
        lasting.update(step.lasting)
    return lasting


def _neighbours(buffers: Buffers, offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield pairs of buffers where the second is the next user of an address of the first."""
    begins: list[int] = [0]  # begins of address ranges, ascending
    last: list[int] = [-1]  # the last buffer in each range
    ends = offsets + buffers.size
    for b in np.argsort(buffers.lower, kind="stable").tolist():
        begin, end = int(offsets[b]), int(ends[b])
        first = bisect_left(begins, begin)
        stop = bisect_left(begins, end)
        inside = last[first:stop]
        if first == len(begins) or begins[first] != begin:
            inside.insert(0, last[first - 1])
        yield from ((before, b) for before in dict.fromkeys(inside) if before >= 0)
        tail = last[stop - 1]
        new_begins, new_last = [begin], [b]
        if stop == len(begins) or begins[stop] != end:
            new_begins.append(end)
            new_last.append(tail)
        begins[first:stop] = new_begins
        last[first:stop] = new_last
