"""The simulator's rules once more: slow, plain, and written apart from the native one.

Nothing is remembered that can be looked up: who is in which queue, what is in memory and which copy
ends next are worked out anew, from the facts known so far, whenever they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from timelines import FakeMachine

from tfswap.simulator import Swap
from tfswap.timeline import OUTLIVES_STEP_NS, Absence, Timeline


@dataclass
class Copies:
    """The facts about one swap; ``None``: not known yet."""

    place: int
    swap: Swap
    absence: Absence
    bytes: int
    leader: Copies | None = None
    out_start: int | None = None
    out_end: int | None = None
    out_seen: bool = False
    after_ended: bool = False
    released: int | None = None
    asked_in: int | None = None
    joins_in: int | None = None
    queue_place: int | None = None
    in_start: int | None = None
    in_end: int | None = None
    in_seen: bool = False


@dataclass
class Reference:
    """Outcome, with the names of the native result."""

    step_ns: int = 0
    stall_ns: int = 0
    peak_bytes: int = 0
    peak_ns: int = 0
    peak_op: int = -1
    peak_holders: list[tuple[int, int]] = field(default_factory=list)
    bytes_out: int = 0
    bytes_in: int = 0
    host_peak_bytes: int = 0
    fits: bool = True
    stalls: list[tuple[int, str, int, int]] = field(default_factory=list)
    swap_times: list[list[int]] = field(default_factory=list)
    load_curve: list[tuple[int, int]] = field(default_factory=list)


def ordered_events(timeline: Timeline) -> list[tuple[int, str, int]]:
    """(time, kind, index) in the order of the replay."""
    events: list[tuple[tuple[int, int, int, int], str]] = []
    for op, (start, end) in enumerate(
        zip(timeline.op_start_ns.tolist(), timeline.op_end_ns.tolist(), strict=True)
    ):
        events.append(((start, 2, op, 0), "start"))
        events.append(((end, 1 if end > start else 2, op, 1), "end"))
    for buffer, (alloc, free) in enumerate(
        zip(timeline.buffer_alloc_ns.tolist(), timeline.buffer_free_ns.tolist(), strict=True)
    ):
        alloc = max(alloc, 0)
        events.append(((alloc, 3, buffer, 0), "alloc"))
        if free != OUTLIVES_STEP_NS:
            free = max(free, 0)
            events.append(((free, 0 if free > alloc else 4, buffer, 0), "free"))
    return [(key[0], kind, key[2]) for key, kind in sorted(events)]


def reference_simulate(
    timeline: Timeline,
    swaps: Sequence[Swap],
    machine: FakeMachine,
    budget_bytes: int | None = None,
) -> Reference:
    return _Run(timeline, swaps, machine, budget_bytes).run()


class _Run:
    def __init__(
        self,
        timeline: Timeline,
        swaps: Sequence[Swap],
        machine: FakeMachine,
        budget_bytes: int | None,
    ) -> None:
        self.timeline = timeline
        self.machine = machine
        self.budget = budget_bytes
        self.copies = [
            Copies(
                place,
                swap,
                timeline.absences[swap.absence],
                int(timeline.buffer_bytes[timeline.absences[swap.absence].buffer]),
            )
            for place, swap in enumerate(swaps)
        ]
        self.copies.sort(key=lambda c: c.swap.absence)
        for c in self.copies:
            c.leader = next(
                other
                for other in self.copies
                if (other.absence.buffer, other.absence.tensor)
                == (c.absence.buffer, c.absence.tensor)
            )
        self.now = 0
        self.shift = 0
        self.load = timeline.resident_bytes
        self.held: dict[int, int] = {}
        self.joined = 0
        self.last_started = -1
        self.hold_copies_in = False
        self.out = Reference(peak_bytes=self.load, load_curve=[(0, self.load)])

    def run(self) -> Reference:
        for c in self.copies:
            if c.absence.producer_op < 0:
                self.ask_out(c)
        for time, kind, index in ordered_events(self.timeline):
            self.pass_time(time + self.shift)
            self.now = time + self.shift
            getattr(self, "on_" + kind)(index)
            self.pass_time(self.now)
        self.finish()
        return self.out

    # The trace's events.

    def on_alloc(self, buffer: int) -> None:
        size = int(self.timeline.buffer_bytes[buffer])
        self.hold_copies_in = True
        while self.too_much(size):
            pending = [c for c in self.copies if c.out_end is not None and not c.out_seen]
            if not pending:
                break
            first = min(pending, key=lambda c: (c.out_end, self.out_rank(c)))
            since = self.now
            assert first.out_end is not None
            self.pass_time(first.out_end)
            self.stall(self.last_started, "budget", first, since)
        self.hold_copies_in = False
        self.change(buffer, size)

    def on_free(self, buffer: int) -> None:
        self.change(buffer, -int(self.timeline.buffer_bytes[buffer]))

    def on_start(self, op: int) -> None:
        needed = [c for c in self.copies if c.absence.before_op == op]
        for c in needed:
            self.ask_in(c)
        self.pass_time(self.now)
        for c in self.copies:
            if c.swap.gate_op == op:
                since = self.now
                assert c.leader is not None and c.leader.out_end is not None
                if not c.leader.out_seen:
                    self.pass_time(c.leader.out_end)
                self.stall(op, "gate", c, since)
        for c in needed:
            since = self.now
            while not c.in_seen:
                self.start_copies_in()
                if not self.one_event(None):
                    self.start_in(self.queue()[0])
            self.pass_time(self.now)
            self.stall(op, "swap-in", c, since)
        self.last_started = op

    def on_end(self, op: int) -> None:
        for c in self.copies:
            if c.absence.producer_op == op:
                self.ask_out(c)
        for c in self.copies:
            if c.absence.after_op == op:
                c.after_ended = True
                self.release(c)
        for c in self.copies:
            if c.swap.trigger_op == op:
                self.ask_in(c)

    # The copies.

    def out_rank(self, c: Copies) -> int:
        return self.asked_out.index(c)

    @property
    def asked_out(self) -> list[Copies]:
        return self.__dict__.setdefault("_asked_out", [])

    def ask_out(self, c: Copies) -> None:
        if c.leader is not c:
            return
        link_free = self.asked_out[-1].out_end if self.asked_out else 0
        assert link_free is not None
        c.out_start = max(self.now, link_free)
        c.out_end = c.out_start + duration(
            c.bytes, self.machine.out_bytes_per_s, self.machine.out_latency_ns
        )
        self.asked_out.append(c)
        self.out.bytes_out += c.bytes
        for other in self.copies:
            if other.leader is c and (other.swap.trigger_op < 0 or other.asked_in is not None):
                other.joins_in = max(self.now, c.out_end)

    def ask_in(self, c: Copies) -> None:
        if c.asked_in is not None or c.swap.trigger_op < 0:
            return
        c.asked_in = self.now
        assert c.leader is not None
        if c.leader.out_end is not None:
            c.joins_in = max(self.now, c.leader.out_end)

    def release(self, c: Copies) -> None:
        assert c.leader is not None
        if c.after_ended and c.leader.out_seen and c.released is None:
            c.released = self.now
            self.change(c.absence.buffer, -c.bytes)

    def queue(self) -> list[Copies]:
        waiting = [c for c in self.copies if c.queue_place is not None and c.in_start is None]
        return sorted(waiting, key=lambda c: c.queue_place or 0)

    def start_copies_in(self) -> None:
        busy = any(c.in_start is not None and not c.in_seen for c in self.copies)
        waiting = self.queue()
        if busy or self.hold_copies_in or not waiting or self.too_much(waiting[0].bytes):
            return
        self.start_in(waiting[0])

    def start_in(self, c: Copies) -> None:
        c.in_start = self.now
        c.in_end = self.now + duration(
            c.bytes, self.machine.in_bytes_per_s, self.machine.in_latency_ns
        )
        self.out.bytes_in += c.bytes
        self.change(c.absence.buffer, c.bytes)

    def coming(self) -> Iterator[tuple[tuple[int, int, int], Callable[[], None]]]:
        for rank, c in enumerate(self.asked_out):
            if not c.out_seen:
                assert c.out_end is not None
                yield (c.out_end, 0, rank), lambda c=c: self.out_ends(c)
        for rank, c in enumerate(self.copies):
            if c.in_end is not None and not c.in_seen:
                yield (c.in_end, 1, rank), lambda c=c: setattr(c, "in_seen", True)
            if c.joins_in is not None and c.queue_place is None:
                yield (c.joins_in, 2, rank), lambda c=c: self.join(c)

    def out_ends(self, c: Copies) -> None:
        c.out_seen = True
        for other in self.copies:
            if other.leader is c:
                self.release(other)

    def join(self, c: Copies) -> None:
        c.queue_place = self.joined
        self.joined += 1

    def one_event(self, until: int | None) -> bool:
        events = sorted(self.coming(), key=lambda event: event[0])
        if not events or (until is not None and events[0][0][0] > until):
            return False
        (time, _, _), happen = events[0]
        self.now = max(self.now, time)
        happen()
        return True

    def pass_time(self, until: int) -> None:
        self.start_copies_in()
        while self.one_event(until):
            self.start_copies_in()

    # The books.

    def too_much(self, size: int) -> bool:
        return self.budget is not None and self.load + size > self.budget

    def change(self, buffer: int, delta: int) -> None:
        self.load += delta
        self.held[buffer] = self.held.get(buffer, 0) + delta
        self.out.load_curve.append((self.now, self.load))
        if self.load > self.out.peak_bytes:
            self.out.peak_bytes = self.load
            self.out.peak_ns = self.now
            self.out.peak_op = self.last_started
            held = sorted((-size, b) for b, size in self.held.items() if size > 0)
            self.out.peak_holders = [(b, -size) for size, b in held[:5]]

    def stall(self, op: int, cause: str, c: Copies, since: int) -> None:
        if self.now > since:
            self.shift += self.now - since
            self.out.stalls.append((op, cause, c.place, self.now - since))

    def finish(self) -> None:
        out = self.out
        out.step_ns = self.timeline.step_ns + self.shift
        out.stall_ns = self.shift
        out.fits = self.budget is None or out.peak_bytes <= self.budget
        by_place = sorted(self.copies, key=lambda c: c.place)
        out.swap_times = [
            [
                -1 if time is None else time
                for time in (c.out_start, c.out_end, c.released, c.in_start, c.in_end)
            ]
            for c in by_place
        ]
        moments = {c.out_start for c in self.asked_out if c.out_start is not None}
        for moment in moments:
            far = 0
            for c in self.asked_out:
                ends = max(other.in_end or 0 for other in self.copies if other.leader is c)
                assert c.out_start is not None
                if c.out_start <= moment < ends:
                    far += c.bytes
            out.host_peak_bytes = max(out.host_peak_bytes, far)


def duration(size: int, bytes_per_s: float, latency_ns: int) -> int:
    return latency_ns + math.ceil(size * 1e9 / bytes_per_s)
