"""JobTrace: a job's step as a message of bounded size.

The timeline is reduced to what a division needs. It keeps the absences with the largest areas,
with their buffers and the ops around them. All other buffers become a step function, the maximum
of their load between two kept ops. So the reduced timeline never needs less memory than the whole
one.

The message is ``TFSWJOB1`` and a zlib stream of little-endian arrays: an int64 header (ops,
buffers, absences, resident_bytes, step_ns, speeds and latencies of the job's link, and the speed
of a core that copies or 0); int64 arrays of op starts and durations, buffer sizes, allocations and
lifetimes (-1: outlives the step); int32 rows of absences (buffer, producer_op, after_op,
before_op, first absence of the tensor). It is untrusted input: sizes are bounded before
decompression, values before their use, and the timeline is validated.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.machine import Machine
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline, absence_rows, load_curve

MAGIC = b"TFSWJOB1"

MAX_BYTES = 256 << 10
"""Maximum size of a message."""

MAX_OPS, MAX_ABSENCES = 1500, 400
"""Maximum numbers of ops and absences in a reduced timeline."""

_MAX_BUFFERS = MAX_OPS + MAX_ABSENCES + 1
_HEADER = 10
_MAX_UNPACKED = 8 * (_HEADER + 2 * MAX_OPS + 3 * _MAX_BUFFERS) + 20 * MAX_ABSENCES
# Above any real device or step, but small enough that sums fit into 64 bits.
_MAX_MEMORY, _MAX_NS = 1 << 50, 86_400 * 10**9
_SPEEDS = (10**5, 10**14)  # bytes per second
_MAX_LATENCY_NS = 10**9

Ints = NDArray[np.int64]


class BadTrace(ValueError):
    """The bytes are not a valid trace, for the reason in the text."""


@dataclass(frozen=True)
class JobTrace:
    """A job's step as its broker sees it.

    Attributes:
        timeline: The reduced step, without names of ops and tensors.
        link: The job's link to far memory, if no other job used it.
    """

    timeline: Timeline
    link: Machine

    def to_bytes(self) -> bytes:
        """Encode the message.

        Raises:
            ValueError: The timeline is not reduced.
        """
        timeline, link = self.timeline, self.link
        rows = absence_rows(timeline)
        n, m, k = len(timeline.op_names), len(timeline.buffer_bytes), len(rows)
        if n > MAX_OPS or m > _MAX_BUFFERS or k > MAX_ABSENCES:
            raise ValueError(f"a timeline of {n} ops, {m} buffers, {k} absences must be reduced")
        lifetime_ns = np.where(
            timeline.buffer_free_ns == OUTLIVES_STEP_NS,
            -1,
            timeline.buffer_free_ns - timeline.buffer_alloc_ns,
        )
        head = [n, m, k, timeline.resident_bytes, timeline.step_ns]
        head += [_bounded(link.out_bytes_per_s), _bounded(link.in_bytes_per_s)]
        head += [min(link.out_latency_ns, _MAX_LATENCY_NS)]
        head += [min(link.in_latency_ns, _MAX_LATENCY_NS)]
        head += [0 if math.isinf(link.copy_bytes_per_s) else _bounded(link.copy_bytes_per_s)]
        arrays = (
            head,
            timeline.op_start_ns,
            timeline.op_end_ns - timeline.op_start_ns,
            timeline.buffer_bytes,
            timeline.buffer_alloc_ns,
            lifetime_ns,
        )
        packed = b"".join(np.asarray(array, dtype="<i8").tobytes() for array in arrays)
        return MAGIC + zlib.compress(packed + rows.astype("<i4").tobytes(), 6)

    @staticmethod
    def from_bytes(data: bytes) -> JobTrace:
        """Decode and validate a message.

        Raises:
            BadTrace: The message is invalid.
        """
        if not data.startswith(MAGIC):
            raise BadTrace(f"a trace must begin with {MAGIC.decode()}")
        if len(data) > MAX_BYTES:
            raise BadTrace(f"a trace of {len(data)} bytes is larger than {MAX_BYTES} bytes")
        unpacker = zlib.decompressobj()
        try:
            packed = unpacker.decompress(data[len(MAGIC) :], _MAX_UNPACKED + 1)
        except zlib.error as error:
            raise BadTrace(f"a trace cannot be decompressed: {error}") from None
        if len(packed) > _MAX_UNPACKED or not unpacker.eof or unpacker.unused_data:
            raise BadTrace(f"a trace does not end within {_MAX_UNPACKED} bytes")
        return _read(packed)


def _bounded(bytes_per_s: float) -> int:
    return int(min(max(bytes_per_s, _SPEEDS[0]), _SPEEDS[1]))


def _read(packed: bytes) -> JobTrace:
    if len(packed) < 8 * _HEADER:
        raise BadTrace("a trace has no header")
    head = np.frombuffer(packed, "<i8", _HEADER).tolist()
    n, m, k, resident_bytes, step_ns, out_speed, in_speed = head[:7]
    out_latency_ns, in_latency_ns, copy_speed = head[7:]
    for what, value, maximum in (
        ("ops", n, MAX_OPS),
        ("buffers", m, _MAX_BUFFERS),
        ("absences", k, MAX_ABSENCES),
        ("resident bytes", resident_bytes, _MAX_MEMORY),
        ("ns per step", step_ns, _MAX_NS),
        ("ns of latency", max(out_latency_ns, in_latency_ns), _MAX_LATENCY_NS),
    ):
        _check(0 <= value <= maximum, f"{value} {what}; allowed are 0 to {maximum}")
    _check(min(out_latency_ns, in_latency_ns) >= 0, "a negative latency")
    for speed in (out_speed, in_speed, copy_speed or _SPEEDS[0]):
        _check(_SPEEDS[0] <= speed <= _SPEEDS[1], f"a link of {speed} bytes per second")
    _check(
        len(packed) == 8 * (_HEADER + 2 * n + 3 * m) + 20 * k,
        "a size that does not match its header",
    )
    numbers = np.frombuffer(packed, "<i8", 2 * n + 3 * m, 8 * _HEADER).astype(np.int64)
    start_ns, duration_ns, size, alloc_ns, lifetime_ns = np.split(
        numbers, [n, 2 * n, 2 * n + m, 2 * n + 2 * m]
    )
    for what, values, minimum, maximum in (
        ("op's start", start_ns, 0, _MAX_NS),
        ("op's duration", duration_ns, 0, _MAX_NS),
        ("buffer's size", size, 0, _MAX_MEMORY // max(m, 1)),
        ("buffer's allocation", alloc_ns, -_MAX_NS, _MAX_NS),
        ("buffer's lifetime", lifetime_ns, -1, 2 * _MAX_NS),
    ):
        wrong = np.flatnonzero((values < minimum) | (values > maximum))
        _check(not len(wrong), f"an invalid {what}: {values[wrong[:1]]}")
    rows = np.frombuffer(packed, "<i4", 5 * k, len(packed) - 20 * k).reshape(-1, 5)
    first = rows[:, 4]
    _check(bool(np.all((first >= 0) & (first <= np.arange(k)))), "an absence of an unknown tensor")
    free_ns = np.where(lifetime_ns < 0, OUTLIVES_STEP_NS, alloc_ns + lifetime_ns)
    timeline = _timeline(
        start_ns,
        start_ns + duration_ns,
        resident_bytes,
        (size, alloc_ns, free_ns),
        [(int(b), int(p), int(a), int(before), f"t{f}") for b, p, a, before, f in rows.tolist()],
        step_ns,
    )
    try:
        _ = timeline.core  # validates the timeline
    except ValueError as error:
        raise BadTrace(f"a trace has an invalid timeline: {error}") from None
    link = Machine(
        "link",
        float(out_speed),
        float(in_speed),
        out_latency_ns,
        in_latency_ns,
        float(copy_speed or math.inf),
    )
    return JobTrace(timeline, link)


def _check(is_valid: bool, problem: str) -> None:
    if not is_valid:
        raise BadTrace(f"a trace has {problem}")


def _timeline(
    start_ns: Ints,
    end_ns: Ints,
    resident_bytes: int,
    buffers: tuple[Ints, Ints, Ints],
    absences: list[tuple[int, int, int, int, str]],
    step_ns: int,
) -> Timeline:
    n = len(start_ns)
    size, alloc_ns, free_ns = buffers
    return Timeline(
        op_names=tuple(f"op {i}" for i in range(n)),
        op_start_ns=start_ns,
        op_end_ns=end_ns,
        op_gateable=np.ones(n, dtype=np.bool_),
        op_context=np.zeros(n, dtype=np.int32),
        resident_bytes=resident_bytes,
        buffer_bytes=size,
        buffer_alloc_ns=alloc_ns,
        buffer_free_ns=free_ns,
        absences=tuple(
            Absence(buffer, tensor, producer, after, before)
            for buffer, producer, after, before, tensor in absences
        ),
        step_ns=step_ns,
    )


def reduce_timeline(timeline: Timeline, max_ops: int = MAX_OPS) -> Timeline:
    """Reduce a timeline to the size of a message, without lowering its load at any time.

    Args:
        timeline: The step.
        max_ops: Maximum number of ops. Defaults to `MAX_OPS`.
    """
    chosen = _largest_absences(timeline, min(MAX_ABSENCES, max_ops // 3))
    absences = [timeline.absences[i] for i in chosen]
    ops = _ops_to_keep(timeline, absences, max_ops)
    new_op = {op: index for index, op in enumerate(ops)}
    new_op[-1] = -1
    buffers = sorted({absence.buffer for absence in absences})
    new_buffer = {buffer: index for index, buffer in enumerate(buffers)}
    start_ns, end_ns = timeline.op_start_ns[ops], timeline.op_end_ns[ops]
    resident_bytes, steps = _load_of_others(timeline, buffers, start_ns)
    kept = np.array(buffers, dtype=np.int64)
    return _timeline(
        start_ns,
        end_ns,
        resident_bytes,
        (
            np.concatenate([timeline.buffer_bytes[kept], steps[0]]),
            np.concatenate([np.maximum(timeline.buffer_alloc_ns[kept], -1), steps[1]]),
            np.concatenate([timeline.buffer_free_ns[kept], steps[2]]),
        ),
        [
            (
                new_buffer[absence.buffer],
                new_op[absence.producer_op],
                new_op[absence.after_op],
                new_op[absence.before_op],
                absence.tensor,
            )
            for absence in absences
        ],
        timeline.step_ns,
    )


def _largest_absences(timeline: Timeline, count: int) -> list[int]:
    """Return the absences with the largest areas, bytes times ns (AutoSwap's AOA), in order."""
    absences = timeline.absences
    if not absences:
        return []
    after = timeline.op_end_ns[[a.after_op for a in absences]]
    before = timeline.op_start_ns[[a.before_op for a in absences]]
    gap_ns = np.where(before > after, before - after, before - after + timeline.step_ns)
    size = timeline.buffer_bytes[[a.buffer for a in absences]]
    largest = np.argsort(-(gap_ns.astype(np.float64) * size), kind="stable")[:count]
    return [int(i) for i in np.sort(largest)]


def _ops_to_keep(timeline: Timeline, absences: list[Absence], max_ops: int) -> list[int]:
    """Return the ops around absences, and evenly spaced others up to `max_ops`."""
    n = len(timeline.op_names)
    if n <= max_ops:
        return list(range(n))
    kept = {op for a in absences for op in (a.producer_op, a.after_op, a.before_op) if op >= 0}
    room = max(max_ops - len(kept), 0)
    evenly = np.linspace(0, n - 1, room, dtype=np.int64) if room else np.zeros(0, np.int64)
    kept.update(int(op) for op in evenly)
    return sorted(kept)


def _load_of_others(
    timeline: Timeline, buffers: list[int], start_ns: Ints
) -> tuple[int, tuple[Ints, Ints, Ints]]:
    """Return the load of all other buffers, as resident bytes and buffers from op to op."""
    others = np.ones(len(timeline.buffer_bytes), dtype=np.bool_)
    others[buffers] = False
    rest = _timeline(
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        timeline.resident_bytes,
        (
            timeline.buffer_bytes[others],
            timeline.buffer_alloc_ns[others],
            # A buffer with no lifetime still adds to the load.
            np.maximum(timeline.buffer_free_ns[others], timeline.buffer_alloc_ns[others] + 1),
        ),
        [],
        timeline.step_ns,
    )
    time_ns, load = load_curve(rest)
    edges = np.unique(np.concatenate([[0], start_ns, [max(timeline.step_ns, 0)]]))
    highest = np.zeros(max(len(edges) - 1, 1), dtype=np.int64)
    if len(edges) < 2:
        return int(load.max()), (np.zeros(0, np.int64),) * 3
    np.maximum.at(highest, _segment(edges, time_ns), load)
    at_edge = load[np.searchsorted(time_ns, edges[:-1], side="right") - 1]
    highest = np.maximum(highest, at_edge)
    resident_bytes = int(highest.min())
    above = highest > resident_bytes
    return resident_bytes, (
        highest[above] - resident_bytes,
        edges[:-1][above].astype(np.int64),
        edges[1:][above].astype(np.int64),
    )


def _segment(edges: Ints, time_ns: Ints) -> Ints:
    index = np.searchsorted(edges, time_ns, side="right") - 1
    return np.clip(index, 0, len(edges) - 2).astype(np.int64)


def job_trace(timeline: Timeline, link: Machine) -> JobTrace:
    """Return the trace that a job sends of its step.

    Args:
        timeline: The step.
        link: The job's link to far memory, if no other job used it.
    """
    return JobTrace(reduce_timeline(timeline), link)
