"""Simulation of several jobs that share one link.

::

    job A   --op--op--op--wait--op--|--op--op--        each job repeats its step under its plan,
    job B   ----op----op--|----op----op--|----         from its own start time
    link     AAAA  BBBB  A/B A/B  AAAA                 concurrent copies share the bandwidth

Each step runs as in `tfswap.planning.simulator`: ops start at their recorded time plus the job's
wait so far; a copy-out is requested when its tensor is produced, a copy-in when its trigger ends;
gates and readers wait. Memory is not simulated, since each job has its own budget. Copies of one
job in one direction run one after the other; concurrent copies of several jobs share the bandwidth
evenly, and none is faster than alone. TENSILE (Zhang et al., arXiv 2105.13336) instead plans each
job as if it had the link to itself.
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

# Job n starts at this fraction, times n, of its step. The golden ratio avoids aligned steps.
_OFFSET = 0.6180339887498949
# Steps to simulate per job, after a first one that is not counted.
_STEPS = 3
# Limits the simulation of jobs with short steps beside jobs with long ones.
_MAX_EVENTS = 40_000


@dataclass(frozen=True)
class PlannedJob:
    """A job with a plan.

    Attributes:
        timeline: Its step without swaps.
        swaps: Its plan.
        link: Its link, if no other job used it.
    """

    timeline: Timeline
    swaps: tuple[Swap, ...]
    link: Link


@dataclass(frozen=True)
class JobOutcome:
    """The simulated result of a job.

    Attributes:
        step_ns: Mean duration of a step.
        link_share: Fraction of the bandwidth that its copies got; 1 without copies.
        copying: Fraction of the time in which the busier direction of the link served it.
    """

    step_ns: float
    link_share: float
    copying: float


def simulate_jobs(jobs: Sequence[PlannedJob], steps: int = _STEPS) -> list[JobOutcome]:
    """Simulate jobs that share a link.

    Args:
        jobs: The jobs on one device.
        steps: Minimum number of steps per job, after a first one that is not counted.

    Returns:
        The outcome of each job.
    """
    run = _Run([_Job(i, job) for i, job in enumerate(jobs)], steps)
    run.run()
    outcomes = []
    for job in run.jobs:
        served = [direction.served_ns.get(job.number, 0.0) for direction in (run.outs, run.ins)]
        outcomes.append(job.outcome(sum(served), max(served)))
    return outcomes


@dataclass
class _Copy:
    """A requested copy.

    Attributes:
        job: Number of the job.
        swap: Index of the swap among the job's.
        step: The step in which it was requested.
        out: Whether it is a copy-out.
        latency_ns: Remaining time before the first byte.
        work_ns: Remaining transfer time at full bandwidth.
    """

    job: int
    swap: int
    step: int
    out: bool
    latency_ns: float
    work_ns: float


@dataclass
class _Direction:
    """One direction of the link, with its copies.

    Attributes:
        waiting: Queued copies by job.
        active: The running copy by job.
        at_ns: The time up to which the copies have advanced.
        served_ns: Time spent transferring bytes, by job.
    """

    waiting: dict[int, deque[_Copy]] = field(default_factory=dict)
    active: dict[int, _Copy] = field(default_factory=dict)
    at_ns: float = 0.0
    served_ns: dict[int, float] = field(default_factory=dict)

    def request(self, copy: _Copy, now_ns: float) -> None:
        self.advance(now_ns)
        self.waiting.setdefault(copy.job, deque()).append(copy)
        self._serve(copy.job)

    def _serve(self, job: int) -> None:
        if job not in self.active and self.waiting.get(job):
            self.active[job] = self.waiting[job].popleft()

    def _transferring(self) -> int:
        return sum(copy.latency_ns <= 0 for copy in self.active.values())

    def next_ns(self) -> float:
        """Return the time of the next event: a copy ends, or its latency does."""
        sharing = self._transferring()
        soonest = float("inf")
        for copy in self.active.values():
            left_ns = copy.latency_ns if copy.latency_ns > 0 else copy.work_ns * sharing
            soonest = min(soonest, left_ns)
        return self.at_ns + soonest

    def advance(self, now_ns: float) -> None:
        """Advance the copies to `now_ns`. No copy begins or ends before that."""
        passed_ns, sharing = now_ns - self.at_ns, self._transferring()
        self.at_ns = now_ns
        for copy in self.active.values():
            if copy.latency_ns > 0:
                copy.latency_ns -= passed_ns
                if copy.latency_ns < 1e-6:
                    copy.latency_ns = 0.0
            else:
                copy.work_ns -= passed_ns / sharing
                self.served_ns[copy.job] = self.served_ns.get(copy.job, 0.0) + passed_ns

    def take_ended(self) -> list[_Copy]:
        """Remove and return the copies that have ended."""
        done = [c for c in self.active.values() if c.latency_ns <= 0 and c.work_ns < 1e-3]
        for copy in done:
            del self.active[copy.job]
            self._serve(copy.job)
        return done


class _Event(NamedTuple):
    """An event of a job's step that concerns a swap. Events sort by execution order.

    Attributes:
        position: Position in the step.
        kind: Order of events at the same position.
        swap: Index of the swap among the job's.
        at_ns: Recorded time.
    """

    position: int
    kind: int
    swap: int
    at_ns: int


_PRODUCED, _TRIGGERED, _WANTED, _GATED, _NEEDED, _STEP_ENDS = range(6)


class _Job:
    """Runs one job, step after step."""

    def __init__(self, number: int, planned: PlannedJob) -> None:
        timeline, self._link = planned.timeline, planned.link
        self.number = number
        self._timeline = timeline
        self._swaps = sorted(planned.swaps, key=lambda swap: swap.absence)
        absences = [timeline.absences[swap.absence] for swap in self._swaps]
        self._crosses = [crosses_step_end(timeline, absence) for absence in absences]
        self._leaders = self._find_leaders()
        self._copies_out = [
            leader == i and not (self._crosses[i] and absences[i].producer_op < 0)
            for i, leader in enumerate(self._leaders)
        ]
        self._events = sorted(self._list_events())
        self._next = 0
        self.step = 0
        self._begin_ns = number * _OFFSET % 1.0 * timeline.step_ns
        self._shift_ns = self._begin_ns
        self._out_ended: set[tuple[int, int]] = set()  # (step, swap)
        self._in_requested: set[tuple[int, int]] = set()
        self._in_ended: set[tuple[int, int]] = set()
        self._fired: set[tuple[int, int]] = set()
        self.waits_for: tuple[bool, int, int] | None = None  # copy: whether out, step, swap
        self.step_times_ns: list[float] = []
        self.moved_ns = 0.0  # transfer time of its copies at full bandwidth

    def _find_leaders(self) -> list[int]:
        """Return, for each swap, the swap whose copy-out it uses."""
        first: dict[tuple[int, str], int] = {}
        absences = self._timeline.absences
        # Swaps across the step's end and tensors without producer use the previous step's copy.
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

    def _list_events(self) -> Iterator[_Event]:
        timeline = self._timeline
        starts, ends = (positions.tolist() for positions in timeline.core.op_positions())
        start_ns, end_ns = timeline.op_start_ns.tolist(), timeline.op_end_ns.tolist()
        for i, swap in enumerate(self._swaps):
            absence = timeline.absences[swap.absence]
            producer, trigger, gate = absence.producer_op, swap.trigger_op, swap.gate_op
            reader = absence.before_op
            if self._copies_out[i]:
                yield (
                    _Event(-1, _PRODUCED, i, 0)
                    if producer < 0
                    else _Event(ends[producer], _PRODUCED, i, end_ns[producer])
                )
            if trigger >= 0:
                yield _Event(ends[trigger], _TRIGGERED, i, end_ns[trigger])
            elif self._crosses[i]:
                yield _Event(-1, _TRIGGERED, i, 0)
            if gate >= 0:
                yield _Event(starts[gate], _GATED, i, start_ns[gate])
            for kind in (_WANTED, _NEEDED):
                yield _Event(starts[reader], kind, i, start_ns[reader])
        after_all = 2 * (len(starts) + len(timeline.buffer_bytes))
        yield _Event(after_all, _STEP_ENDS, -1, timeline.step_ns)

    @property
    def next_ns(self) -> float:
        """The time of its next event; infinite while it waits for a copy."""
        if self.waits_for is not None:
            return float("inf")
        return self._shift_ns + self._events[self._next].at_ns

    def handle(self, now_ns: float, run: _Run) -> None:
        """Handle the next event, or start to wait for a copy."""
        event = self._events[self._next]
        if event.kind == _STEP_ENDS:
            self.step_times_ns.append(now_ns - self._begin_ns)
            self._begin_ns = self._shift_ns = now_ns
            self.step += 1
            self._next = 0
            for known in (self._out_ended, self._in_requested, self._in_ended, self._fired):
                known -= {each for each in known if each[0] < self.step - 1}
            return
        key = (self.step, event.swap)
        if event.kind == _PRODUCED:
            self._request(event.swap, out=True, now_ns=now_ns, run=run)
        elif event.kind in (_TRIGGERED, _WANTED):
            self._fire(key, now_ns, run)
        elif event.kind == _GATED:
            out = (self.step, self._leaders[event.swap])
            if self._copies_out[out[1]] and out not in self._out_ended:
                self.waits_for = (True, *out)
        elif event.kind == _NEEDED and key not in self._in_ended:
            self.waits_for = (False, *key)
        if self.waits_for is None:
            self._next += 1

    def _fire(self, key: tuple[int, int], now_ns: float, run: _Run) -> None:
        """Allow the copy-in, and request it if the copy-out has ended."""
        if key in self._fired:
            return
        self._fired.add(key)
        if self._is_in_far_memory(key):
            self._request_in(key, now_ns, run)

    def _is_in_far_memory(self, key: tuple[int, int]) -> bool:
        step, swap = key
        leader = self._leaders[swap]
        if self._crosses[leader]:
            copied = (step - 1, leader)
            return step == 0 or not self._copies_out[leader] or copied in self._out_ended
        return (step, leader) in self._out_ended

    def _request_in(self, key: tuple[int, int], now_ns: float, run: _Run) -> None:
        if key not in self._in_requested:
            self._in_requested.add(key)
            self._request(key[1], out=False, now_ns=now_ns, run=run)

    def _request(self, index: int, out: bool, now_ns: float, run: _Run) -> None:
        swap, link = self._swaps[index], self._link
        latency_ns = link.out_latency_ns if out else link.in_latency_ns
        codec_ns = swap.encode_ns if out else swap.decode_ns
        copy = _Copy(
            self.number,
            index,
            self.step,
            out,
            float(latency_ns + codec_ns),
            self._work_ns(index, out),
        )
        (run.outs if out else run.ins).request(copy, now_ns)

    def _work_ns(self, index: int, out: bool) -> float:
        swap, link = self._swaps[index], self._link
        buffer = self._timeline.absences[swap.absence].buffer
        size = int(self._timeline.buffer_bytes[buffer]) if swap.far_bytes < 0 else swap.far_bytes
        return size * 1e9 / (link.out_bytes_per_s if out else link.in_bytes_per_s)

    def handle_copied(self, copy: _Copy, now_ns: float, run: _Run) -> None:
        """Handle the end of one of its copies."""
        key = (copy.step, copy.swap)
        if copy.out:
            self._out_ended.add(key)
            for i, leader in enumerate(self._leaders):
                step = copy.step + self._crosses[leader]
                if leader != copy.swap or (step, i) in self._in_requested:
                    continue
                at_once = self._swaps[i].trigger_op < 0 and not self._crosses[leader]
                if at_once or (step, i) in self._fired:
                    self._fired.add((step, i))
                    self._request_in((step, i), now_ns, run)
        else:
            self._in_ended.add(key)
        self.moved_ns += self._work_ns(copy.swap, copy.out)
        if self.waits_for == (copy.out, *key):
            self.waits_for = None
            self._shift_ns += now_ns - (self._shift_ns + self._events[self._next].at_ns)

    def _expected_ns(self) -> float:
        """Return the duration of the unfinished step if it does not wait any more."""
        return self._timeline.step_ns + self._shift_ns - self._begin_ns

    def outcome(self, served_ns: float, busiest_ns: float) -> JobOutcome:
        """Return the job's outcome.

        Args:
            served_ns: Time spent transferring its bytes, in both directions.
            busiest_ns: The same in the busier direction.
        """
        counted = self.step_times_ns[1:] or self.step_times_ns or [self._expected_ns()]
        step_ns = sum(counted) / len(counted)
        share = min(self.moved_ns / served_ns, 1.0) if self.moved_ns > 0 else 1.0
        total_ns = max(sum(self.step_times_ns), 1.0)
        return JobOutcome(step_ns, share, min(busiest_ns / total_ns, 1.0))


class _Run:
    """The jobs and their shared link."""

    def __init__(self, jobs: list[_Job], steps: int) -> None:
        self.jobs = jobs
        self.outs, self.ins = _Direction(), _Direction()
        self._steps = steps + 1
        self._heap = [(job.next_ns, job.number) for job in jobs]
        heapq.heapify(self._heap)

    def run(self) -> None:
        """Run until each job has done its steps, or `_MAX_EVENTS` are handled."""
        for _ in range(_MAX_EVENTS):
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
                self._advance_copies(link_ns)

    def _advance_copies(self, now_ns: float) -> None:
        for direction in (self.outs, self.ins):
            direction.advance(now_ns)
            for copy in direction.take_ended():
                job = self.jobs[copy.job]
                waited = job.waits_for is not None
                job.handle_copied(copy, now_ns, self)
                if waited and job.waits_for is None:
                    heapq.heappush(self._heap, (job.next_ns, job.number))
