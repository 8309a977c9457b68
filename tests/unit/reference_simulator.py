"""A second implementation of the simulator: slow, simple, and independent of the native one.

It stores no derived state: queues, memory contents and the next event are computed from the known
facts about the copies whenever they are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from reference_copies import AWAY, BACK, Copies, copies_of
from timelines import FakeMachine

from tfswap.planning.simulator import Swap
from tfswap.step.timeline import OUTLIVES_STEP_NS, Timeline


@dataclass
class Reference:
    """The result, with the field names of the native one."""

    step_ns: int = 0
    stall_ns: int = 0
    peak_bytes: int = 0
    peak_ns: int = 0
    peak_op: int = -1
    peak_holders: list[tuple[int, int]] = field(default_factory=list)
    bytes_out: int = 0
    bytes_in: int = 0
    far_peak_bytes: list[int] = field(default_factory=list)
    fits: bool = True
    stalls: list[tuple[int, str, int, int]] = field(default_factory=list)
    swap_times: list[list[int]] = field(default_factory=list)
    load_curve: list[tuple[int, int]] = field(default_factory=list)


def ordered_events(timeline: Timeline) -> list[tuple[int, str, int]]:
    """Return (time, kind, index) of all events in simulation order."""
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
    machine: FakeMachine | Sequence[FakeMachine],
    budget_bytes: int | None = None,
    order: Sequence[tuple[int, int]] = (),
) -> Reference:
    tiers = list(machine) if isinstance(machine, Sequence) else [machine]
    run = _Run(timeline, swaps, tiers, budget_bytes, order, {})
    result = run.run()
    left = run.left_over()
    if not left:
        return result
    return _Run(timeline, swaps, tiers, budget_bytes, order, left).run()


class _Run:
    def __init__(
        self,
        timeline: Timeline,
        swaps: Sequence[Swap],
        tiers: list[FakeMachine],
        budget_bytes: int | None,
        order: Sequence[tuple[int, int]],
        left: dict[tuple[int, int], int],
    ) -> None:
        self.timeline = timeline
        self.tiers = tiers
        self.budget = budget_bytes
        self.order = order
        self.really_ends: dict[int, int] = {}
        self.left = left  # (place, section) -> end of a copy-out of the previous step
        self.copies = copies_of(timeline, swaps, tiers)
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
            if c.role == BACK:
                c.after_ended = True
                end = self.left.get((c.place, c.section))
                c.out_end = -1 if end is None else end
                c.out_seen = end is None
            elif c.is_clean:
                c.out_end, c.out_seen = -1, True
        late = [c for c in self.copies if c.role == BACK and not c.out_seen]
        self.asked_out.extend(
            sorted(late, key=lambda c: list(self.left).index((c.place, c.section)))
        )
        for c in self.copies:
            if c.role == BACK:
                self.release(c)
        for c in self.copies:
            if c.role == BACK:
                self.far_copy_is_known(c)
            elif c.absence.producer_op < 0 and c.copies_out:
                self.ask_out(c)
        for time, kind, index in ordered_events(self.timeline):
            self.pass_time(time + self.shift)
            self.now = time + self.shift
            getattr(self, "on_" + kind)(index)
            self.pass_time(self.now)
        self.pass_time(self.timeline.step_ns + self.shift)
        self.finish()
        return self.out

    def left_over(self) -> dict[tuple[int, int], int]:
        end = self.timeline.step_ns + self.shift
        return {
            (c.place, c.section): c.out_end - end
            for c in self.asked_out
            if c.role == AWAY and not c.out_seen and c.out_end is not None
        }

    # Events of the timeline.

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
        needed = [c for c in self.copies if c.absence.before_op == op and c.role != AWAY]
        for c in needed:
            self.ask_in(c)
        self.pass_time(self.now)
        for c in self.copies:
            if c.swap.gate_op == op and c.role != BACK:
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
                    self.start_in(self.queue(c.swap.tier)[0])
            self.pass_time(self.now)
            self.stall(op, "swap-in", c, since)
        for before in [b for b, after in self.order if after == op]:
            since = self.now
            self.pass_time(max(self.now, self.really_ends[before]))
            self.now = max(self.now, self.really_ends[before])
            self.stall(op, "order", None, since)
        length = int(self.timeline.op_end_ns[op] - self.timeline.op_start_ns[op])
        self.really_ends[op] = self.now + length
        self.last_started = op

    def on_end(self, op: int) -> None:
        for c in self.copies:
            if c.absence.producer_op == op and c.copies_out:
                self.ask_out(c)
        for c in self.copies:
            if c.absence.after_op == op and c.role != BACK:
                c.after_ended = True
                self.release(c)
        for c in self.copies:
            if c.swap.trigger_op == op and c.role != AWAY:
                self.ask_in(c)

    # The copies.

    def out_rank(self, c: Copies) -> int:
        return self.asked_out.index(c)

    @property
    def asked_out(self) -> list[Copies]:
        return self.__dict__.setdefault("_asked_out", [])

    def ask_out(self, c: Copies) -> None:
        before = [other for other in self.asked_out if other.swap.tier == c.swap.tier]
        link_free = before[-1].out_end if before else 0
        assert link_free is not None
        c.out_start = max(self.now, link_free)
        c.out_end = c.out_start + c.out_ns
        self.asked_out.append(c)
        self.out.bytes_out += c.far_bytes
        self.far_copy_is_known(c)

    def far_copy_is_known(self, c: Copies) -> None:
        assert c.out_end is not None
        for other in self.copies:
            if other.leader is not c or other.role == AWAY:
                continue
            if other.swap.trigger_op < 0 or other.asked_in is not None:
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

    def queue(self, tier: int) -> list[Copies]:
        waiting = [
            c
            for c in self.copies
            if c.queue_place is not None and c.in_start is None and c.swap.tier == tier
        ]
        return sorted(waiting, key=lambda c: c.queue_place or 0)

    def start_copies_in(self) -> None:
        for tier in range(len(self.tiers)):
            under_way = [c for c in self.copies if c.in_start is not None and not c.in_seen]
            busy = any(c.swap.tier == tier for c in under_way)
            waiting = self.queue(tier)
            if busy or self.hold_copies_in or not waiting or self.too_much(waiting[0].bytes):
                continue
            self.start_in(waiting[0])

    def start_in(self, c: Copies) -> None:
        c.in_start = self.now
        c.in_end = self.now + c.in_ns
        self.out.bytes_in += c.far_bytes
        self.change(c.absence.buffer, c.bytes)

    def next_events(self) -> Iterator[tuple[tuple[int, int, int], Callable[[], None]]]:
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
        events = sorted(self.next_events(), key=lambda event: event[0])
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

    # Accounting.

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

    def stall(self, op: int, cause: str, c: Copies | None, since: int) -> None:
        if self.now > since:
            self.shift += self.now - since
            place = -1 if c is None else c.place
            self.out.stalls.append((op, cause, place, self.now - since))

    def finish(self) -> None:
        out = self.out
        out.step_ns = self.timeline.step_ns + self.shift
        out.stall_ns = self.shift
        places = sorted({c.place for c in self.copies})
        out.swap_times = [self.times_of(place) for place in places]
        out.far_peak_bytes = [self.far_peak(tier) for tier in range(len(self.tiers))]
        out.fits = self.budget is None or out.peak_bytes <= self.budget
        for tier, peak in zip(self.tiers, out.far_peak_bytes, strict=True):
            out.fits = out.fits and peak <= getattr(tier, "capacity_bytes", peak)

    def times_of(self, place: int) -> list[int]:
        own = [c for c in self.copies if c.place == place]
        outs = [c for c in own if c.copies_out]
        backs = [c for c in own if c.role != AWAY]
        released = [c.released for c in own if c.role != BACK]
        whole = [
            min((c.out_start for c in outs if c.out_start is not None), default=None),
            max((c.out_end for c in outs if c.out_end is not None), default=None),
            max((r for r in released if r is not None), default=None),
            min((c.in_start for c in backs if c.in_start is not None), default=None),
            max((c.in_end for c in backs if c.in_end is not None), default=None),
        ]
        return [-1 if time is None else time for time in whole]

    def far_peak(self, tier: int) -> int:
        """Return the largest sum of far copies at the times at which one begins."""
        stays: list[tuple[int, float, int]] = []
        for c in self.copies:
            if c.leader is not c or c.swap.tier != tier or c.is_clean:
                continue
            last = [o for o in self.copies if (o.place, o.role) == (c.place, c.role)][-1]
            served = [o for o in self.copies if o is last or o.leader is last or o is c]
            served += [o for o in self.copies if (o.place, o.role) == (c.place, c.role)]
            until: float = max(o.in_end or 0 for o in served)
            if any(o.role == AWAY for o in served):
                until = math.inf
            begin = c.out_start
            if c.role == BACK:
                begin = 0
                if c.absence.producer_op < 0:
                    until = self.out.step_ns
            assert begin is not None
            stays.append((begin, until, c.far_bytes))
        peak = 0
        for time, _, _ in stays:
            peak = max(peak, sum(size for a, b, size in stays if a <= time < b))
        return peak
