"""Elements of the lists that loops keep for their gradients, in a recorded step.

They leave on demand, and plans place no copies of them, so a timeline has them only while ops use
them::

    made by an op      --A--                                            A: pushed on a list
    popped                                  --P--                       C: the pop's reader
    used                                       --C--
    whole              [============================]
    for planners       [===]                   [====]
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tfswap.step.recorded_ops import RecordedOps
from tfswap.step.timeline import OUTLIVES_STEP_NS
from tfswap.step.trace import StepTrace

# Their temporary memory is elements.
_MAKERS = frozenset({"_AddToElement", "_RowsToHost"})


@dataclass(frozen=True)
class ListElement:
    """An element of a list.

    Attributes:
        buffer: Index of its buffer.
        gaps: Times between its uses, when it may leave: (begin, end) in ns.
    """

    buffer: int
    gaps: tuple[tuple[int, int], ...]


def list_elements(step: RecordedOps, trace: StepTrace) -> list[ListElement]:
    """Return the elements of a recorded step's lists."""
    ops, names = trace.ops, trace.names
    types = {name: names[op_type] for name, op_type in zip(ops["name"], ops["type"], strict=True)}
    held_ns: dict[int, int] = {}  # from when on a list has it, by buffer
    pops_ns: defaultdict[int, list[int]] = defaultdict(list)
    for recorded, buffer in step.buffer_place.items():
        if types.get(trace.buffers["name"][recorded]) in _MAKERS and buffer in step.temporary:
            held_ns[buffer] = int(step.alloc_ns[buffer])
    for op, port, recorded in zip(
        trace.accesses["op"].tolist(),
        trace.accesses["port"].tolist(),
        trace.accesses["buffer"].tolist(),
        strict=True,
    ):
        place = step.buffer_place.get(recorded)
        if place is None or ops["end_ns"][op] < 0:
            continue
        op_type = names[ops["type"][op]]
        if op_type == "_ElementToHost" and port == 0:
            end_ns = int(step.clock(ops["end_ns"][op]))
            held_ns[place] = min(end_ns, held_ns.get(place, end_ns))
        elif op_type == "_CopyFromHost" and port < 0:
            pops_ns[place].append(int(step.clock(ops["start_ns"][op])))
    return [
        ListElement(buffer, _gaps(step, buffer, begin_ns, sorted(pops_ns[buffer])))
        for buffer, begin_ns in held_ns.items()
        if step.free_ns[buffer] != OUTLIVES_STEP_NS
    ]


def _gaps(
    step: RecordedOps, buffer: int, held_ns: int, pops_ns: list[int]
) -> tuple[tuple[int, int], ...]:
    """Return when a buffer may leave. Between two pops, it stays from its first use to its last."""
    free_ns = int(step.free_ns[buffer])
    uses = [(int(step.start_ns[op]), int(step.end_ns[op])) for op in step.users[buffer]]
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for start_ns, end_ns in [(held_ns, held_ns), *uses]:
        popped = bisect.bisect_right(pops_ns, start_ns)
        begins[popped] = min(start_ns, begins.get(popped, start_ns))
        ends[popped] = max(end_ns, ends.get(popped, end_ns))
    gaps, gone_ns = [], held_ns
    for popped in sorted(ends):
        if begins[popped] > gone_ns:
            gaps.append((gone_ns, begins[popped]))
        gone_ns = max(gone_ns, ends[popped])
    if free_ns > gone_ns:
        gaps.append((gone_ns, free_ns))
    return tuple(gaps)


def let_leave(step: RecordedOps, elements: list[ListElement]) -> None:
    """Take the gaps out of the step's buffers. What is used again becomes a buffer of its own."""
    sizes, alloc_ns, free_ns = [], [], []
    for element in elements:
        buffer, whole_ns = element.buffer, int(step.free_ns[element.buffer])
        for i, (gone_ns, back_ns) in enumerate(element.gaps):
            if i == 0:
                step.free_ns[buffer] = gone_ns
            if back_ns < whole_ns:
                last = i + 1 == len(element.gaps)
                sizes.append(int(step.buffer_bytes[buffer]))
                alloc_ns.append(back_ns)
                free_ns.append(whole_ns if last else element.gaps[i + 1][0])
    step.buffer_bytes = np.append(step.buffer_bytes, np.array(sizes, dtype=np.int64))
    step.alloc_ns = np.append(step.alloc_ns, np.array(alloc_ns, dtype=np.int64))
    step.free_ns = np.append(step.free_ns, np.array(free_ns, dtype=np.int64))
    step.users += [[] for _ in sizes]
