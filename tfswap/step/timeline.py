"""Timeline: the ops and buffers of one step, and the gaps in which a buffer is not used.

::

    load
     ^              ______
     |        _____|      |____         ops      --A--  --B--  --C--  --D--  --E--
     |  _____|                 |___     buffer   alloc..................free
     +-----------------------------> t  absence         after=A ..... before=D
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tfswap import _core

if TYPE_CHECKING:
    from tfswap.plan.schema import Recompute
    from tfswap.step.dataflow import Dataflow

OUTLIVES_STEP_NS = int(np.iinfo(np.int64).max)

BEFORE_FIRST_OP = "(before the first op)"
"""Used in place of an op's name where no op has started."""

MAX_BYTES = 1 << 60
"""Maximum size of all buffers together, so that sums fit in 64 bits."""

_MAX_NS = 1 << 60
_FAR_COPY_COLUMN = 4


@dataclass(frozen=True)
class Absence:
    """A gap between two uses of one buffer.

    Two absences of one buffer share a far copy if they name the same ``tensor``: when the earlier
    one is swapped, the later one needs no copy-out.

    A gap may cross the step's end: then it lasts from after_op to before_op of the next step, and
    before_op is not after after_op in the timeline. The buffer outlives the step, and absences of
    its tensor without a producer read the value of the previous step.

    Attributes:
        buffer: Index of the buffer.
        tensor: Name of the copied tensor in the graph, such as ``"block1/Relu:0"``.
        producer_op: Index of the op that produces the tensor; the copy-out may start at its end.
            -1: the tensor existed before the step.
        after_op: Index of the op that ends last among the users of the buffer before the gap.
        before_op: Index of the first op that needs the buffer again.
        consumers: Names of the graph nodes that read the copied-in tensor.
        context: Control-flow context of the copies.
        users: For a variable's value: names of the graph nodes that need it on the device.
            `consumers` are then the nodes that have the variable itself among their inputs.
    """

    buffer: int
    tensor: str
    producer_op: int
    after_op: int
    before_op: int
    consumers: tuple[str, ...] = ()
    context: int = 0
    users: tuple[str, ...] = ()

    @property
    def of_variable(self) -> bool:
        """Whether the absent buffer is a variable's value."""
        return bool(self.users)


@dataclass(frozen=True, eq=False)
class Timeline:
    """One unswapped step, on a time axis that starts with the step and has no stalls.

    Attributes:
        op_names: Names of the n ops, sorted by start.
        op_start_ns: int64[n], ascending.
        op_end_ns: int64[n]; ops may overlap.
        op_gateable: bool[n]; whether the op may wait for a copy-out or trigger a copy-in.
        op_context: int32[n]; control-flow context.
        resident_bytes: Bytes outside the buffers that stay through the whole step.
        buffer_bytes: int64[m].
        buffer_alloc_ns: int64[m].
        buffer_free_ns: int64[m]; ``OUTLIVES_STEP_NS`` if the step does not free the buffer.
        absences: The absences; those of one tensor are in the order of time.
        step_ns: Duration of the step.
        op_types: Type of each op; empty if unknown.
        dataflow: The tensors that the ops read and write; None if unknown.
    """

    op_names: tuple[str, ...]
    op_start_ns: NDArray[np.int64]
    op_end_ns: NDArray[np.int64]
    op_gateable: NDArray[np.bool_]
    op_context: NDArray[np.int32]
    resident_bytes: int
    buffer_bytes: NDArray[np.int64]
    buffer_alloc_ns: NDArray[np.int64]
    buffer_free_ns: NDArray[np.int64]
    absences: tuple[Absence, ...]
    step_ns: int
    op_types: tuple[str, ...] = ()
    dataflow: Dataflow | None = None

    def validate(self) -> None:
        """Check the timeline.

        Raises:
            ValueError: The timeline is inconsistent; the message says where.
        """
        _check_ops(self)
        _check_buffers(self)
        for index, absence in enumerate(self.absences):
            _check_absence(self, index, absence)
        _check_order_of_absences(self)

    @property
    def recomputes(self) -> tuple[Recompute, ...]:
        """The recomputed tensors."""
        return () if self.dataflow is None else self.dataflow.recomputes

    def without_dataflow(self) -> Timeline:
        """Return the timeline without the dataflow that recomputes need."""
        return replace(self, dataflow=None)

    def unswapped_load(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ``load_curve(self)``."""
        return load_curve(self)

    @cached_property
    def core(self) -> _core.Timeline:
        """The timeline in the native core, validated and converted once."""
        self.validate()
        return _core.Timeline(
            op_start_ns=self.op_start_ns,
            op_end_ns=self.op_end_ns,
            resident_bytes=self.resident_bytes,
            buffer_bytes=self.buffer_bytes,
            buffer_alloc_ns=self.buffer_alloc_ns,
            buffer_free_ns=self.buffer_free_ns,
            absences=absence_rows(self),
            step_ns=self.step_ns,
        )


def absence_rows(timeline: Timeline) -> NDArray[np.int32]:
    """Return an int32 row per absence: buffer, producer_op, after_op, before_op, far copy.

    The far copy is the index of the first absence of the same tensor in the same buffer.
    """
    first_of_tensor: dict[tuple[int, str], int] = {}
    rows = np.empty((len(timeline.absences), 5), dtype=np.int32)
    for index, absence in enumerate(timeline.absences):
        far_copy = first_of_tensor.setdefault((absence.buffer, absence.tensor), index)
        rows[index, :_FAR_COPY_COLUMN] = (
            absence.buffer,
            absence.producer_op,
            absence.after_op,
            absence.before_op,
        )
        rows[index, _FAR_COPY_COLUMN] = far_copy
    return rows


def load_curve(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the unswapped load over time.

    Returns:
        Times in ns, and the live bytes from each time on. At equal times, frees come before
        allocations; each time occurs once, with the load after its last allocation.
    """
    alloc_ns = np.maximum(timeline.buffer_alloc_ns, 0)
    freed = timeline.buffer_free_ns != OUTLIVES_STEP_NS
    times = np.concatenate([[0], alloc_ns, np.maximum(timeline.buffer_free_ns[freed], 0)])
    changes = np.concatenate(
        [[timeline.resident_bytes], timeline.buffer_bytes, -timeline.buffer_bytes[freed]]
    )
    unique_ns, place = np.unique(times, return_inverse=True)
    change = np.zeros(len(unique_ns), dtype=np.int64)
    np.add.at(change, place, changes)
    return unique_ns.astype(np.int64), np.cumsum(change)


def peak_load(timeline: Timeline) -> int:
    """Return the largest number of bytes alive at once in the unswapped step."""
    _, load_bytes = timeline.core.events()
    return int(max(load_bytes.max(initial=0), timeline.resident_bytes))


def op_at(timeline: Timeline, event: int) -> str:
    """Return the name of the op that runs right after an event of ``timeline.core.events()``.

    Of several running ops, it is the one that started last; if none is running, the last one that
    started before.

    Args:
        timeline: The step.
        event: The event's index; -1: the step's start.
    """
    start_position, end_position = timeline.core.op_positions()
    started = np.flatnonzero(start_position <= event)
    if not len(started):
        return BEFORE_FIRST_OP
    running = started[end_position[started] > event]
    return timeline.op_names[int((running if len(running) else started)[-1])]


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _first(wrong: NDArray[Any]) -> int | None:
    places = np.flatnonzero(wrong)
    return int(places[0]) if len(places) else None


def _check_ops(timeline: Timeline) -> None:
    n = len(timeline.op_names)
    for field in ("op_start_ns", "op_end_ns", "op_gateable", "op_context"):
        length = len(getattr(timeline, field))
        _check(length == n, f"{field} has {length} entries, but there are {n} op_names")
    types = len(timeline.op_types)
    _check(types in (0, n), f"op_types has {types} entries, but there are {n} op_names")
    _check(0 <= timeline.step_ns <= _MAX_NS, f"the step takes {timeline.step_ns} ns")
    start_ns, end_ns = timeline.op_start_ns, timeline.op_end_ns
    i = _first(end_ns < start_ns)
    if i is not None:
        raise ValueError(
            f"op {i} ({timeline.op_names[i]}) ends at {end_ns[i]} ns, before it starts at "
            f"{start_ns[i]} ns"
        )
    i = _first(start_ns[1:] < start_ns[:-1])
    if i is not None:
        raise ValueError(
            f"op {i + 1} ({timeline.op_names[i + 1]}) starts at {start_ns[i + 1]} ns, before op "
            f"{i}: ops must be sorted by start"
        )
    if n:
        _check(int(start_ns[0]) >= 0, f"op 0 starts at {start_ns[0]} ns, before the step")
        _check(
            int(end_ns.max()) <= timeline.step_ns,
            f"the last op ends at {end_ns.max()} ns, after the step ({timeline.step_ns} ns)",
        )


def _check_buffers(timeline: Timeline) -> None:
    m = len(timeline.buffer_bytes)
    for field in ("buffer_alloc_ns", "buffer_free_ns"):
        length = len(getattr(timeline, field))
        _check(length == m, f"{field} has {length} entries, but buffer_bytes has {m}")
    _check(
        timeline.resident_bytes >= 0,
        f"resident_bytes is {timeline.resident_bytes}: it must not be negative",
    )
    i = _first(timeline.buffer_bytes < 0)
    if i is not None:
        raise ValueError(f"buffer {i} has {timeline.buffer_bytes[i]} bytes")
    whole_bytes = timeline.resident_bytes + float(timeline.buffer_bytes.astype(np.float64).sum())
    _check(whole_bytes <= MAX_BYTES, f"buffers have {whole_bytes:g} bytes together")
    alloc_ns, free_ns = timeline.buffer_alloc_ns, timeline.buffer_free_ns
    i = _first(
        (np.minimum(alloc_ns, free_ns) < -_MAX_NS)
        | (alloc_ns > _MAX_NS)
        | ((free_ns > _MAX_NS) & (free_ns != OUTLIVES_STEP_NS))
    )
    if i is not None:
        raise ValueError(f"buffer {i} lives from {alloc_ns[i]} ns to {free_ns[i]} ns")
    i = _first(timeline.buffer_free_ns < timeline.buffer_alloc_ns)
    if i is not None:
        raise ValueError(
            f"buffer {i} is freed at {timeline.buffer_free_ns[i]} ns, before it is allocated at "
            f"{timeline.buffer_alloc_ns[i]} ns"
        )


def _check_absence(timeline: Timeline, index: int, absence: Absence) -> None:
    name = f"absence {index} ({absence.tensor})"
    n, m = len(timeline.op_names), len(timeline.buffer_bytes)
    _check(0 <= absence.buffer < m, f"{name} names buffer {absence.buffer}, but there are {m}")
    for field in ("producer_op", "after_op", "before_op"):
        op = getattr(absence, field)
        lowest = -1 if field == "producer_op" else 0
        _check(lowest <= op < n, f"{name}: {field} is {op}, but there are {n} ops")
    after, before = absence.after_op, absence.before_op
    after_end_ns = int(timeline.op_end_ns[after])
    before_start_ns = int(timeline.op_start_ns[before])
    producer = absence.producer_op
    if producer >= 0:
        _check(
            int(timeline.op_end_ns[producer]) <= after_end_ns and producer <= after,
            f"{name}: producer_op {producer} ends at {timeline.op_end_ns[producer]} ns, after "
            f"after_op {after} at {after_end_ns} ns",
        )
    alloc_ns = int(timeline.buffer_alloc_ns[absence.buffer])
    free_ns = int(timeline.buffer_free_ns[absence.buffer])
    if crosses_step_end(timeline, absence):
        _check(
            free_ns == OUTLIVES_STEP_NS and alloc_ns <= 0,
            f"{name}: after_op {after} ends at {after_end_ns} ns, which is not before before_op "
            f"{before} starts at {before_start_ns} ns, and buffer {absence.buffer} does not "
            f"outlive the step",
        )
        return
    _check(
        alloc_ns < after_end_ns,
        f"{name}: buffer {absence.buffer} is allocated at {alloc_ns} ns, but after_op {after} "
        f"ends at {after_end_ns} ns",
    )
    _check(
        free_ns > before_start_ns,
        f"{name}: buffer {absence.buffer} is freed at {free_ns} ns, but before_op {before} starts "
        f"at {before_start_ns} ns",
    )


def crosses_step_end(timeline: Timeline, absence: Absence) -> bool:
    """Return whether the gap extends into the next step."""
    after, before = absence.after_op, absence.before_op
    return after >= before or bool(timeline.op_end_ns[after] > timeline.op_start_ns[before])


def _check_order_of_absences(timeline: Timeline) -> None:
    last_of_buffer: dict[int, int] = {}
    producer_of_tensor: dict[tuple[int, str], int] = {}
    crossing = {
        (absence.buffer, absence.tensor): absence.producer_op
        for absence in timeline.absences
        if crosses_step_end(timeline, absence)
    }
    for index, absence in enumerate(timeline.absences):
        name = f"absence {index} ({absence.tensor})"
        tensor = (absence.buffer, absence.tensor)
        producer = crossing.get(tensor, -2)
        if absence.producer_op == -1 and producer != -2:
            producer = -1
        elif producer == -2:
            producer = producer_of_tensor.setdefault(tensor, absence.producer_op)
        _check(
            producer == absence.producer_op,
            f"{name}: producer_op is {absence.producer_op}, but an earlier absence of this tensor, "
            f"or one across the step's end, has {producer}",
        )
        last = last_of_buffer.get(absence.buffer)
        if last is not None:
            before = timeline.absences[last].before_op
            _check(
                not crosses_step_end(timeline, timeline.absences[last])
                and before <= absence.after_op
                and int(timeline.op_end_ns[before]) <= int(timeline.op_end_ns[absence.after_op]),
                f"{name}: after_op {absence.after_op} ends before op {before}, which ends absence "
                f"{last} of the same buffer",
            )
        last_of_buffer[absence.buffer] = index
