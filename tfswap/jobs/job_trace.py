"""A job's step in a message: a timeline reduced to what a division looks at, in bounded bytes.

Of the absences those that can take most out of memory stay, with their buffers and the ops around
them. All other buffers become one staircase, its highest value between any two ops that stay: what
is foretold with a reduced timeline needs at least as much memory as with the whole one.

The message is ``TFSWJOB1``, then, compressed by zlib, little-endian: a head of int64 (ops, buffers,
absences, resident_bytes, step_ns, the speeds and latencies of the job's link, and the speed of a
core that copies, 0 where none does), then int64 arrays: op starts and durations, buffers' bytes,
allocations and lifetimes (-1: outlives the step), and int32 rows of absences (buffer, producer_op,
after_op, before_op, first absence of the tensor). Who reads it believes nothing: sizes are bounded
before anything is unpacked, values before they are used, and what is left is checked as any
timeline is.
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

MOST_BYTES = 256 << 10
"""Of a message."""

MOST_OPS, MOST_ABSENCES = 1500, 400
"""Of a reduced timeline."""

_MOST_BUFFERS = MOST_OPS + MOST_ABSENCES + 1
_HEAD = 10
_MOST_UNPACKED = 8 * (_HEAD + 2 * MOST_OPS + 3 * _MOST_BUFFERS) + 20 * MOST_ABSENCES
# More than any device or step has; sums of so many fit into 64 bits.
_MOST_MEMORY, _MOST_NS = 1 << 50, 86_400 * 10**9
_SPEEDS = (10**5, 10**14)  # bytes per second
_MOST_LATENCY_NS = 10**9

Ints = NDArray[np.int64]


class BadTrace(ValueError):
    """The bytes are no job's trace; the text says why."""


@dataclass(frozen=True)
class JobTrace:
    """What a broker knows of a job's step.

    Attributes:
        timeline: The step, reduced; ops and tensors have no names.
        link: The job's link to far memory, as if it were alone.
    """

    timeline: Timeline
    link: Machine

    def to_bytes(self) -> bytes:
        """The message.

        Raises:
            ValueError: The timeline is not a reduced one.
        """
        timeline, link = self.timeline, self.link
        rows = absence_rows(timeline)
        n, m, k = len(timeline.op_names), len(timeline.buffer_bytes), len(rows)
        if n > MOST_OPS or m > _MOST_BUFFERS or k > MOST_ABSENCES:
            raise ValueError(f"a timeline of {n} ops, {m} buffers, {k} absences must be reduced")
        lifetime_ns = np.where(
            timeline.buffer_free_ns == OUTLIVES_STEP_NS,
            -1,
            timeline.buffer_free_ns - timeline.buffer_alloc_ns,
        )
        head = [n, m, k, timeline.resident_bytes, timeline.step_ns]
        head += [_bounded(link.out_bytes_per_s), _bounded(link.in_bytes_per_s)]
        head += [min(link.out_latency_ns, _MOST_LATENCY_NS)]
        head += [min(link.in_latency_ns, _MOST_LATENCY_NS)]
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
        """Reads a message.

        Raises:
            BadTrace: It is none, or what it says cannot be.
        """
        if not data.startswith(MAGIC):
            raise BadTrace(f"a trace begins with {MAGIC.decode()}")
        if len(data) > MOST_BYTES:
            raise BadTrace(f"a trace of {len(data)} bytes is larger than {MOST_BYTES}")
        unpacker = zlib.decompressobj()
        try:
            packed = unpacker.decompress(data[len(MAGIC) :], _MOST_UNPACKED + 1)
        except zlib.error as error:
            raise BadTrace(f"a trace that cannot be unpacked: {error}") from None
        if len(packed) > _MOST_UNPACKED or not unpacker.eof or unpacker.unused_data:
            raise BadTrace(f"a trace that does not end within {_MOST_UNPACKED} bytes")
        return _read(packed)


def _bounded(bytes_per_s: float) -> int:
    return int(min(max(bytes_per_s, _SPEEDS[0]), _SPEEDS[1]))


def _read(packed: bytes) -> JobTrace:
    if len(packed) < 8 * _HEAD:
        raise BadTrace("a trace without a head")
    head = np.frombuffer(packed, "<i8", _HEAD).tolist()
    n, m, k, resident_bytes, step_ns, out_speed, in_speed = head[:7]
    out_latency_ns, in_latency_ns, copy_speed = head[7:]
    for what, value, most in (
        ("ops", n, MOST_OPS),
        ("buffers", m, _MOST_BUFFERS),
        ("absences", k, MOST_ABSENCES),
        ("resident bytes", resident_bytes, _MOST_MEMORY),
        ("ns a step", step_ns, _MOST_NS),
        ("ns of latency", max(out_latency_ns, in_latency_ns), _MOST_LATENCY_NS),
    ):
        _check(0 <= value <= most, f"{value} {what}; there may be 0 to {most}")
    _check(min(out_latency_ns, in_latency_ns) >= 0, "a latency below 0")
    for speed in (out_speed, in_speed, copy_speed or _SPEEDS[0]):
        _check(_SPEEDS[0] <= speed <= _SPEEDS[1], f"a link of {speed} bytes per second")
    _check(len(packed) == 8 * (_HEAD + 2 * n + 3 * m) + 20 * k, "another size than its head says")
    numbers = np.frombuffer(packed, "<i8", 2 * n + 3 * m, 8 * _HEAD).astype(np.int64)
    start_ns, duration_ns, size, alloc_ns, lifetime_ns = np.split(
        numbers, [n, 2 * n, 2 * n + m, 2 * n + 2 * m]
    )
    for what, values, least, most in (
        ("op's start", start_ns, 0, _MOST_NS),
        ("op's duration", duration_ns, 0, _MOST_NS),
        ("buffer's size", size, 0, _MOST_MEMORY // max(m, 1)),
        ("buffer's allocation", alloc_ns, -_MOST_NS, _MOST_NS),
        ("buffer's lifetime", lifetime_ns, -1, 2 * _MOST_NS),
    ):
        wrong = np.flatnonzero((values < least) | (values > most))
        _check(not len(wrong), f"{what} {values[wrong[:1]]} that cannot be")
    rows = np.frombuffer(packed, "<i4", 5 * k, len(packed) - 20 * k).reshape(-1, 5)
    first = rows[:, 4]
    _check(bool(np.all((first >= 0) & (first <= np.arange(k)))), "a tensor that is not there")
    lives = np.where(lifetime_ns < 0, OUTLIVES_STEP_NS, alloc_ns + lifetime_ns)
    timeline = _nameless(
        start_ns,
        start_ns + duration_ns,
        resident_bytes,
        (size, alloc_ns, lives),
        [(int(b), int(p), int(a), int(before), f"t{f}") for b, p, a, before, f in rows.tolist()],
        step_ns,
    )
    try:
        _ = timeline.core  # checks it
    except ValueError as error:
        raise BadTrace(f"a trace of a step that cannot be: {error}") from None
    link = Machine(
        "link",
        float(out_speed),
        float(in_speed),
        out_latency_ns,
        in_latency_ns,
        float(copy_speed or math.inf),
    )
    return JobTrace(timeline, link)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise BadTrace(f"a trace with {what}")


def _nameless(
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


def reduced(timeline: Timeline, most_ops: int = MOST_OPS) -> Timeline:
    """A timeline within a message's bounds that needs no less memory at any time.

    Args:
        timeline: The step.
        most_ops: How many ops may stay. Defaults to `MOST_OPS`.
    """
    chosen = _absences_that_matter(timeline, min(MOST_ABSENCES, most_ops // 3))
    absences = [timeline.absences[i] for i in chosen]
    ops = _ops_that_matter(timeline, absences, most_ops)
    place_of_op = {op: place for place, op in enumerate(ops)}
    place_of_op[-1] = -1
    buffers = sorted({absence.buffer for absence in absences})
    place_of_buffer = {buffer: place for place, buffer in enumerate(buffers)}
    start_ns, end_ns = timeline.op_start_ns[ops], timeline.op_end_ns[ops]
    resident_bytes, steps = _staircase_of_others(timeline, buffers, start_ns)
    own = np.array(buffers, dtype=np.int64)
    return _nameless(
        start_ns,
        end_ns,
        resident_bytes,
        (
            np.concatenate([timeline.buffer_bytes[own], steps[0]]),
            np.concatenate([np.maximum(timeline.buffer_alloc_ns[own], -1), steps[1]]),
            np.concatenate([timeline.buffer_free_ns[own], steps[2]]),
        ),
        [
            (
                place_of_buffer[absence.buffer],
                place_of_op[absence.producer_op],
                place_of_op[absence.after_op],
                place_of_op[absence.before_op],
                absence.tensor,
            )
            for absence in absences
        ],
        timeline.step_ns,
    )


def _absences_that_matter(timeline: Timeline, most: int) -> list[int]:
    """Those of the largest areas, bytes times ns (AutoSwap's AOA), in the order they had."""
    absences = timeline.absences
    if not absences:
        return []
    after = timeline.op_end_ns[[a.after_op for a in absences]]
    before = timeline.op_start_ns[[a.before_op for a in absences]]
    gap_ns = np.where(before > after, before - after, before - after + timeline.step_ns)
    size = timeline.buffer_bytes[[a.buffer for a in absences]]
    largest = np.argsort(-(gap_ns.astype(np.float64) * size), kind="stable")[:most]
    return [int(i) for i in np.sort(largest)]


def _ops_that_matter(timeline: Timeline, absences: list[Absence], most: int) -> list[int]:
    """Those around absences, and as many others, evenly, as there is room for."""
    n = len(timeline.op_names)
    if n <= most:
        return list(range(n))
    kept = {op for a in absences for op in (a.producer_op, a.after_op, a.before_op) if op >= 0}
    room = max(most - len(kept), 0)
    evenly = np.linspace(0, n - 1, room, dtype=np.int64) if room else np.zeros(0, np.int64)
    kept.update(int(op) for op in evenly)
    return sorted(kept)


def _staircase_of_others(
    timeline: Timeline, buffers: list[int], start_ns: Ints
) -> tuple[int, tuple[Ints, Ints, Ints]]:
    """What stays and, as buffers from op to op, what is beside that and the given buffers."""
    others = np.ones(len(timeline.buffer_bytes), dtype=np.bool_)
    others[buffers] = False
    rest = _nameless(
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        timeline.resident_bytes,
        (
            timeline.buffer_bytes[others],
            timeline.buffer_alloc_ns[others],
            # What lives for no time is there all the same.
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
    place = np.searchsorted(edges, time_ns, side="right") - 1
    return np.clip(place, 0, len(edges) - 2).astype(np.int64)


def job_trace(timeline: Timeline, link: Machine) -> JobTrace:
    """What a job sends of its step.

    Args:
        timeline: The step.
        link: Its link to far memory, as if it were alone.
    """
    return JobTrace(reduced(timeline), link)
