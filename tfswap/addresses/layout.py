"""Planned addresses: from recorded steps to slots, and to the order of ops that keeps them free.

A slot belongs to what an op allocates. Lifetimes come from a step that was recorded with the plan
in force, so that what is swapped out leaves its addresses free and comes back wherever there is
room. They hold in other steps too, because whoever used an address last is made to end before the
next one starts (`StepOrder`).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap.addresses.order import StepOrder
from tfswap.addresses.packing import FIXED_NOWHERE, Buffers, pack
from tfswap.addresses.recorded_step import Lived, RecordedStep
from tfswap.plan.schema import FunctionPlan
from tfswap.plan.slots import GRANULE_BYTES, OUTSIDE, Key, Slot
from tfswap.step.graph import StepGraph
from tfswap.step.trace import StepTrace

# Steps whose loads differ by less are alike in that.
_LOW = 1.02


@dataclass(frozen=True)
class Layout:
    """The slots of one graph.

    Attributes:
        slots: One a key.
        order: Pairs of ops, the first to end before the second starts: without them, places are
            taken in steps whose ops run in another order.
        height_bytes: The end of the highest slot.
        max_live_bytes: The largest load of the slots: no layout is lower.
        lived: Of the first slots, when they are in use.
        beside_bytes: The largest load of what has no slot (weights, batches, what outlives a step),
            with one more new value of a variable: their updates have no order.
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
    """Packs what a graph's ops allocate.

    Args:
        traces: Recordings of whole steps. Of those that went by the plan the best, which moved
            nothing that the plan keeps on the device, and had the lowest load, the fastest is
            packed.
        graph: The graph.
        function: Its plan, which was in force. It may have layouts already, for tensors of other
            shapes.
        seconds: How long to search for a lower layout.
    """
    if not traces:
        return Layout()
    order = StepOrder(graph, function)
    steps = [RecordedStep(trace, graph, order) for trace in traces]
    steps = [step for step in steps if step.lived] or steps
    packed = _best(steps)
    wanted = packed.settle_in_place()
    lasting = _lasting(steps, graph)
    packed.lived = [lived for lived in packed.lived if lived.key not in lasting]
    buffers = packed.buffers_to_pack()
    fixed = _fixed(packed, buffers, function.layouts)
    buffers = dataclasses.replace(buffers, fixed=fixed)
    packing = pack(buffers, seconds=seconds)
    places = [int(offset) for offset in packing.offsets]
    slots = [
        Slot(*lived.key, place * GRANULE_BYTES, lived.bytes)
        for lived, place in zip(packed.lived, places, strict=True)
    ]
    slots += [Slot(*key, OUTSIDE, size) for key, size in sorted(lasting.items())]
    for before, after in _neighbours(buffers, packing.offsets):
        first, then = packed.lived[before], packed.lived[after]
        if then.gate is not None:
            wanted[then.gate].update(first.users - {then.gate})
        if not packed.can_be_waited_for(then):
            then.users |= first.users  # who comes next waits for both
    return Layout(
        tuple(slots),
        order.enforce(wanted, packed.start_ns),
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
    low = (step for step, load in with_load if load <= _LOW * least)
    return min(low, key=lambda step: step.duration_ns)


def _fixed(
    step: RecordedStep, buffers: Buffers, layouts: Sequence[Sequence[Slot]]
) -> NDArray[np.int64]:
    """Where other shapes' layouts have what a step allocates before it is known which shape it is.

    The device's allocator tells by the first size that only one of them has.
    """
    known = [{Key(*slot[:3]): slot for slot in layout} for layout in layouts]
    telling_ns = min(
        (
            lived.begin_ns
            for lived in step.lived
            for slots in known
            if _tells(lived.bytes, slots.get(lived.key))
        ),
        default=0,
    )
    places = np.full(len(buffers), FIXED_NOWHERE, dtype=np.int64)
    settled: list[int] = []
    for b, lived in enumerate(step.lived):
        slot = next((slots[lived.key] for slots in known if lived.key in slots), None)
        if lived.begin_ns >= telling_ns or slot is None or slot.offset_bytes == OUTSIDE:
            continue
        place = slot.offset_bytes // GRANULE_BYTES
        in_the_way = any(
            places[other] < place + buffers.size[b]
            and place < places[other] + buffers.size[other]
            and buffers.lower[other] < buffers.upper[b]
            and buffers.lower[b] < buffers.upper[other]
            for other in settled
        )
        if not in_the_way:
            places[b] = place
            settled.append(b)
    return places


def _tells(size_bytes: int, slot: Slot | None) -> bool:
    return slot is not None and slot.offset_bytes != OUTSIDE and slot.size_bytes != size_bytes


def _lasting(steps: Sequence[RecordedStep], graph: StepGraph) -> dict[Key, int]:
    """What outlives its step: in any of the recorded ones, or by the nature of the op."""
    lasting: dict[Key, int] = {}
    for name, node in graph.nodes.items():
        if node.updates_variable:  # it makes a copy where somebody still reads the old value
            lasting[Key(name, 1, 0)] = 1
    for step in steps:
        lasting.update(step.lasting)
    return lasting


def _neighbours(buffers: Buffers, offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Pairs of buffers of which the second is the next one at some address of the first."""
    begins: list[int] = [0]  # of stretches, ascending, and who was there last
    last: list[int] = [-1]
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
