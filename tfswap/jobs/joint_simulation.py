"""All jobs in one simulation, with the link between them shared.

::

    job A   --op--op--op--wait--op--|--op--op--        each job replays its step under its own plan,
    job B   ----op----op--|----op----op--|----         again and again, from a beginning of its own
    link     AAAA  BBBB  A/B A/B  AAAA                 copies of several jobs share its speed

A job's step is replayed as `tfswap.planning.simulator` does it: ops start when recorded plus what
the job has waited so far; a copy-out is asked for when its tensor is made, a copy-in when its
trigger ends; gates and readers wait; memory is not looked at, since budgets are each job's own. A
job's copies of one direction go one after the other. Those of several jobs at once share the link's
speed evenly, and none is faster than it would be alone. TENSILE (Zhang et al., arXiv 2105.13336)
has each job use
the link as if it were alone.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tfswap.machine.link import Link
from tfswap.planning.simulator import Swap
from tfswap.step.timeline import Timeline, crosses_step_end

# Where in one another's steps jobs are is up to chance: each begins later than the one before it by
# this part of its step, the golden section, which meets no multiple of itself.
_OFFSET = 0.6180339887498949
# Steps that are looked at, of the job that takes the fewest; the first one is not counted.
_STEPS = 3
# Of all jobs together: a job of short steps beside one of long steps is looked at for a while only.
_MOST_EVENTS = 40_000


@dataclass(frozen=True)
class PlannedJob:
    """A job that runs under a plan.

    Attributes:
        timeline: its step without swaps.
        swaps: its plan.
        link: the link as if the job were alone.
    """

    timeline: Timeline
    swaps: tuple[Swap, ...]
    link: Link


@dataclass(frozen=True)
class JobOutcome:
    """What became of a job.

    Attributes:
        step_ns: a step's duration, on average.
        link_share: the part of its link's speed that its copies had while they ran; 1 if none did.
        copying: the part of its time in which the busier direction of the link served it.
    """

    step_ns: float
    link_share: float
    copying: float


def simulate_jobs(jobs: Sequence[PlannedJob], steps: int = _STEPS) -> list[JobOutcome]:
    """Foretells what jobs do to one another.

    Args:
        jobs: those on one device.
        steps: how many each is looked at for, at least; behind a first one, which is not counted.

    Returns:
        What becomes of each.
    """
    run = _Run([_Job(i, job) for i, job in enumerate(jobs)], steps)
    run.until_all_have_ended()
    outcomes = []
    for job in run.jobs:
        served = [direction.served_ns.get(job.number, 0.0) for direction in (run.outs, run.ins)]
        outcomes.append(job.outcome(sum(served), max(served)))
    return outcomes


@dataclass
class _Copy:
    """One on its way.

    Attributes:
        job: its number.
        swap: place of its swap in the job's.
        step: in which step it was asked for.
        out: which way it goes.
        latency_ns: what passes before its first byte.
        work_ns: of its bytes, alone on the link.
    """

    job: int
    swap: int
    step: int
    out: bool
    latency_ns: float
    work_ns: float


@dataclass
class _Direction:
    """One way of the link, and what waits for it.

    Attributes:
        waiting: by job.
        active: by job: the one that is served.
        at_ns: until when what is left of each is known.
        served_ns: by job: how long bytes of its were moved.
    """

    waiting: dict[int, deque[_Copy]] = field(default_factory=dict)
    active: dict[int, _Copy] = field(default_factory=dict)
    at_ns: float = 0.0
    served_ns: dict[int, float] = field(default_factory=dict)

    def ask(self, copy: _Copy, now_ns: float) -> None:
        self.advance(now_ns)
        self.waiting.setdefault(copy.job, deque()).append(copy)
        self._serve(copy.job)

    def _serve(self, job: int) -> None:
        if job not in self.active and self.waiting.get(job):
            self.active[job] = self.waiting[job].popleft()

    def _sharing(self) -> int:
        return sum(copy.latency_ns <= 0 for copy in self.active.values())

    def next_ns(self) -> float:
        """When something changes next: a copy ends, or has its first byte moved."""
        sharing = self._sharing()
        soonest = float("inf")
        for copy in self.active.values():
            left_ns = copy.latency_ns if copy.latency_ns > 0 else copy.work_ns * sharing
            soonest = min(soonest, left_ns)
        return self.at_ns + soonest

    def advance(self, now_ns: float) -> None:
        """Moves bytes until now, in which nothing changes."""
        passed_ns, sharing = now_ns - self.at_ns, self._sharing()
        self.at_ns = now_ns
        for copy in self.active.values():
            if copy.latency_ns > 0:
                copy.latency_ns -= passed_ns
                if copy.latency_ns < 1e-6:
                    copy.latency_ns = 0.0
            else:
                copy.work_ns -= passed_ns / sharing
                self.served_ns[copy.job] = self.served_ns.get(copy.job, 0.0) + passed_ns

    def ended(self) -> list[_Copy]:
        """Takes out the copies that are done."""
        done = [c for c in self.active.values() if c.latency_ns <= 0 and c.work_ns < 1e-3]
        for copy in done:
            del self.active[copy.job]
            self._serve(copy.job)
        return done


class _Event(NamedTuple):
    """One of a job's step that has to do with a swap; in the order in which they are handled.

    Attributes:
        position: among the step's events.
        kind: in the order of those at one position.
        swap: place of the swap in the job's.
        at_ns: as recorded.
    """

    position: int
    kind: int
    swap: int
    at_ns: int


_MADE, _TRIGGERED, _WANTED, _GATED, _NEEDED, _STEP_ENDS = range(6)


class _Job:
    """One job, step after step."""

    def __init__(self, number: int, planned: PlannedJob) -> None:
        timeline, self._link = planned.timeline, planned.link
        self.number = number
        self._timeline = timeline
        self._swaps = sorted(planned.swaps, key=lambda swap: swap.absence)
        absences = [timeline.absences[swap.absence] for swap in self._swaps]
        self._crosses = [crosses_step_end(timeline, absence) for absence in absences]
        self._leaders = self._found_leaders()
        self._copies_out = [
            leader == i and not (self._crosses[i] and absences[i].producer_op < 0)
            for i, leader in enumerate(self._leaders)
        ]
        self._events = sorted(self._listed_events())
        self._place = 0
        self.step = 0
        self._begun_ns = number * _OFFSET % 1.0 * timeline.step_ns
        self._shift_ns = self._begun_ns
        self._out_ended: set[tuple[int, int]] = set()  # (step, swap)
        self._in_asked: set[tuple[int, int]] = set()
        self._in_ended: set[tuple[int, int]] = set()
        self._fired: set[tuple[int, int]] = set()
        self.waits_for: tuple[bool, int, int] | None = None  # out or in, step, swap
        self.step_times_ns: list[float] = []
        self.moved_ns = 0.0  # what its copies take alone, latencies left out

    def _found_leaders(self) -> list[int]:
        """By swap, the one whose copy-out it uses."""
        first: dict[tuple[int, str], int] = {}
        absences = self._timeline.absences
        # What crosses the step's end was made a step before, as was what has no producer.
        for crossing in (True, False):
            for i, swap in enumerate(self._swaps):
                absence = absences[swap.absence]
                if self._crosses[i] == crossing and (absence.producer_op < 0 or not crossing):
                    first.setdefault((absence.buffer, absence.tensor), i)
        return [
            i
            if self._crosses[i]
            else first[absences[swap.absence].buffer, absences[swap.absence].tensor]
            for i, swap in enumerate(self._swaps)
        ]

    def _listed_events(self) -> Iterator[_Event]:
        timeline = self._timeline
        starts, ends = (positions.tolist() for positions in timeline.core.op_positions())
        start_ns, end_ns = timeline.op_start_ns.tolist(), timeline.op_end_ns.tolist()
        for i, swap in enumerate(self._swaps):
            absence = timeline.absences[swap.absence]
            made, trigger, gate = absence.producer_op, swap.trigger_op, swap.gate_op
            needed = absence.before_op
            if self._copies_out[i]:
                yield (
                    _Event(-1, _MADE, i, 0)
                    if made < 0
                    else _Event(ends[made], _MADE, i, end_ns[made])
                )
            if trigger >= 0:
                yield _Event(ends[trigger], _TRIGGERED, i, end_ns[trigger])
            elif self._crosses[i]:
                yield _Event(-1, _TRIGGERED, i, 0)
            if gate >= 0:
                yield _Event(starts[gate], _GATED, i, start_ns[gate])
            for kind in (_WANTED, _NEEDED):
                yield _Event(starts[needed], kind, i, start_ns[needed])
        after_all = 2 * (len(starts) + len(timeline.buffer_bytes))
        yield _Event(after_all, _STEP_ENDS, -1, timeline.step_ns)

    @property
    def next_ns(self) -> float:
        """When it goes on by itself."""
        if self.waits_for is not None:
            return float("inf")
        return self._shift_ns + self._events[self._place].at_ns

    def handle(self, now_ns: float, run: _Run) -> None:
        """Its next event, if it need not wait."""
        event = self._events[self._place]
        if event.kind == _STEP_ENDS:
            self.step_times_ns.append(now_ns - self._begun_ns)
            self._begun_ns = self._shift_ns = now_ns
            self.step += 1
            self._place = 0
            for known in (self._out_ended, self._in_asked, self._in_ended, self._fired):
                known -= {each for each in known if each[0] < self.step - 1}
            return
        key = (self.step, event.swap)
        if event.kind == _MADE:
            self._ask(event.swap, out=True, now_ns=now_ns, run=run)
        elif event.kind in (_TRIGGERED, _WANTED):
            self._fire(key, now_ns, run)
        elif event.kind == _GATED:
            out = (self.step, self._leaders[event.swap])
            if self._copies_out[out[1]] and out not in self._out_ended:
                self.waits_for = (True, *out)
        elif event.kind == _NEEDED and key not in self._in_ended:
            self.waits_for = (False, *key)
        if self.waits_for is None:
            self._place += 1

    def _fire(self, key: tuple[int, int], now_ns: float, run: _Run) -> None:
        """The way back may begin; it does when the way out has ended."""
        if key in self._fired:
            return
        self._fired.add(key)
        if self._is_far(key):
            self._ask_in(key, now_ns, run)

    def _is_far(self, key: tuple[int, int]) -> bool:
        step, swap = key
        leader = self._leaders[swap]
        if self._crosses[leader]:
            made = (step - 1, leader)
            return step == 0 or not self._copies_out[leader] or made in self._out_ended
        return (step, leader) in self._out_ended

    def _ask_in(self, key: tuple[int, int], now_ns: float, run: _Run) -> None:
        if key not in self._in_asked:
            self._in_asked.add(key)
            self._ask(key[1], out=False, now_ns=now_ns, run=run)

    def _ask(self, place: int, out: bool, now_ns: float, run: _Run) -> None:
        swap, link = self._swaps[place], self._link
        latency_ns = link.out_latency_ns if out else link.in_latency_ns
        codec_ns = swap.encode_ns if out else swap.decode_ns
        copy = _Copy(
            self.number,
            place,
            self.step,
            out,
            float(latency_ns + codec_ns),
            self._work_ns(place, out),
        )
        (run.outs if out else run.ins).ask(copy, now_ns)

    def _work_ns(self, place: int, out: bool) -> float:
        swap, link = self._swaps[place], self._link
        buffer = self._timeline.absences[swap.absence].buffer
        size = int(self._timeline.buffer_bytes[buffer]) if swap.far_bytes < 0 else swap.far_bytes
        return size * 1e9 / (link.out_bytes_per_s if out else link.in_bytes_per_s)

    def copied(self, copy: _Copy, now_ns: float, run: _Run) -> None:
        """A copy of its own has ended."""
        key = (copy.step, copy.swap)
        if copy.out:
            self._out_ended.add(key)
            for i, leader in enumerate(self._leaders):
                step = copy.step + self._crosses[leader]
                if leader != copy.swap or (step, i) in self._in_asked:
                    continue
                at_once = self._swaps[i].trigger_op < 0 and not self._crosses[leader]
                if at_once or (step, i) in self._fired:
                    self._fired.add((step, i))
                    self._ask_in((step, i), now_ns, run)
        else:
            self._in_ended.add(key)
        self.moved_ns += self._work_ns(copy.swap, copy.out)
        if self.waits_for == (copy.out, *key):
            self.waits_for = None
            self._shift_ns += now_ns - (self._shift_ns + self._events[self._place].at_ns)

    def _foretold_ns(self) -> float:
        """Of a step that has not ended: with what it waited so far."""
        return self._timeline.step_ns + self._shift_ns - self._begun_ns

    def outcome(self, served_ns: float, busiest_ns: float) -> JobOutcome:
        """What became of it.

        Args:
            served_ns: How long bytes of its were moved, both ways.
            busiest_ns: Likewise, in the busier direction.
        """
        counted = self.step_times_ns[1:] or self.step_times_ns or [self._foretold_ns()]
        step_ns = sum(counted) / len(counted)
        share = min(self.moved_ns / served_ns, 1.0) if self.moved_ns > 0 else 1.0
        whole_ns = max(sum(self.step_times_ns), 1.0)
        return JobOutcome(step_ns, share, min(busiest_ns / whole_ns, 1.0))


class _Run:
    """Jobs, and the link between them."""

    def __init__(self, jobs: list[_Job], steps: int) -> None:
        self.jobs = jobs
        self.outs, self.ins = _Direction(), _Direction()
        self._steps = steps + 1
        self._heap = [(job.next_ns, job.number) for job in jobs]
        heapq.heapify(self._heap)

    def until_all_have_ended(self) -> None:
        """Runs until each job has done its steps, or for so many events."""
        for _ in range(_MOST_EVENTS):
            if all(len(job.step_times_ns) >= self._steps for job in self.jobs):
                return
            link_ns = min(self.outs.next_ns(), self.ins.next_ns())
            if self._heap and self._heap[0][0] < link_ns:
                now_ns, number = heapq.heappop(self._heap)
                job = self.jobs[number]
                job.handle(now_ns, self)
                if job.waits_for is None:
                    heapq.heappush(self._heap, (job.next_ns, number))
            else:
                self._copies_go_on(link_ns)

    def _copies_go_on(self, now_ns: float) -> None:
        for direction in (self.outs, self.ins):
            direction.advance(now_ns)
            for copy in direction.ended():
                job = self.jobs[copy.job]
                waited = job.waits_for is not None
                job.copied(copy, now_ns, self)
                if waited and job.waits_for is None:
                    heapq.heappush(self._heap, (job.next_ns, job.number))
