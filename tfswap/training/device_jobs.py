"""DeviceJobs: the trainings of this process that share a device, and what each of them has of it.

::

    one alone ── has all ───────────┐                            ┌──▶ has all again
                                    ▼                            │
    another ──── waits ──▶ shares are divided ──▶ takes its own, steps ... ── ends
                           each takes its own between two steps

Shares, with what is no job's, are never more than the budget, and they are hard: an allocation
within a share finds its memory there, so no job waits for another one's step. What is no job's
because it is older than they are, variables above all, is replaced in steps, and becomes a part of
the share of the job whose step that is. A job gives up what
the next one gets between two of its own steps, for which it needs nobody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from tfswap import budget as budgets
from tfswap.gpus import FIRST_GPU
from tfswap.jobs.division import LEAST_SLOWDOWN, WEIGHTS, Claim, divide
from tfswap.jobs.share import STEP_WAIT_S, Share
from tfswap.jobs.slowdown import SlowdownCurve, planned_curve
from tfswap.ops.library import Library
from tfswap.simulator import Link
from tfswap.swap_options import SwapOptions
from tfswap.timeline import Timeline, peak_load
from tfswap.training.managed_devices import ManagedDevices

# Of the device; all that use it at the same time must agree.
_OF_DEVICE = (
    "budget",
    "host_limit",
    "link_bandwidth",
    "spill_dir",
    "spill_limit",
    "verify",
    "workspace_limit",
)
# What cannot be shared, and how it is said.
_ALONE = {
    "broker": "a broker",
    "lossy": "lossy=True",
    "stream_weights": "stream_weights=True",
}
# Left to what is no job's: batches that are read ahead.
_SPARE = 0.02
# Shares are divided again when what is no job's is less or more by this part of the budget.
_DRIFT = 0.03
# Shares that differ by less stay as they are.
_NEAR = 0.01
_POLL_S = 0.5
# How long a profiled job waits for the others' steps to end, and shares may take to be worked out.
_MOST_WAIT_S = 60.0
_MOST_CURVE_S = 1.0


class DeviceBusy(RuntimeError):
    """Another training has the devices, and they cannot be shared."""


class NoShare(RuntimeError):
    """The others left no room for a training as long as it waited."""


class Holder(Protocol):
    """Has a job: a `SwapSession`."""

    options: SwapOptions
    is_idle: bool

    def is_over(self) -> bool:
        """Whether what it was begun for runs no more, although nobody has ended it."""
        ...

    def end(self) -> None:
        """Gives its part of the devices back."""


class Job:
    """What one training, or several that take turns, has of the device.

    Attributes:
        holder: Whose.
        number: By which the library knows it; 0 while it has the device for itself.
        share_bytes: In force when shares were last divided, or taken over since; None: all that
            there is.
        version: Counts the changes of that.
        held_bytes: What it had between its last two steps: its variables.
        devices: What it sees of them.
    """

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.number = 0
        self.share_bytes: int | None = None
        self.version = 0
        self.devices: ManagedDevices | None = None
        self.target_bytes: int | None = None
        self.has_begun = False
        self.steps = 0
        self.held_bytes = 0
        self.in_step = False
        self.waits_in_step = False  # for a share that its first step is foretold to need
        self.thread = threading.current_thread()
        self._profile: tuple[Timeline, Link] | None = None
        self._is_foretold = False
        self._curve: SlowdownCurve | None = None

    def foretold(self, timeline: Timeline, link: Link) -> None:
        """Its step, which has just begun, is foretold, which is good until it is known."""
        if not self.is_known:
            self._profile, self._is_foretold, self._curve = (timeline, link), True, None
            if self.devices is not None:
                self.held_bytes = self.devices.own_bytes()  # as when it was foretold

    def profiled(self, timeline: Timeline, link: Link) -> None:
        """Its step is known; of several functions', the one that needs most counts."""
        known = self._profile
        if known is None or self._is_foretold or peak_load(timeline) >= peak_load(known[0]):
            self._profile, self._curve = (timeline, link), None
            self._is_foretold = False

    def curve(self) -> SlowdownCurve | None:
        """Of its steps by what it has of the device for itself; None: not known yet."""
        if self._profile is None or self.devices is None:
            return None
        if self._curve is None:
            timeline, link = self._profile
            self._curve = planned_curve(timeline, link, deadline_s=time.monotonic() + _MOST_CURVE_S)
        # What was there then is, by now, its own in part.
        then_bytes = self._profile[0].resident_bytes if self._is_foretold else None
        base_bytes = self.devices.base_bytes(self.held_bytes, then_bytes)
        budgets_bytes = [budget - base_bytes for budget in self._curve.budget_bytes]
        kept = {max(b, 1): s for b, s in zip(budgets_bytes, self._curve.slowdowns, strict=True)}
        return SlowdownCurve(tuple(kept), tuple(kept.values()))

    @property
    def is_known(self) -> bool:
        """Whether its step has been profiled."""
        return self._profile is not None and not self._is_foretold

    @property
    def share(self) -> Share:
        """What was asked for."""
        return self.holder.options.share or Share()


class DeviceJobs:
    """The jobs of this process; thread-safe.

    Args:
        lib: The library.

    Attributes:
        lock: Held while anything about them changes.
    """

    def __init__(self, lib: Library) -> None:
        self._library = lib
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._jobs: list[Job] = []
        self._slots = lib.most_jobs()  # the first of which is no job's
        self._most = self._slots - 1
        self._numbered = 0  # jobs so far
        self._capacity_bytes = 0  # what shares were divided of
        self._everybodys_bytes = 0  # then
        self._is_due = False  # shares are to be divided for what has been foretold since

    def _new_number(self) -> int:
        """One that no job has had, of the least slot that none has: slots keep what they need."""
        taken = {each.number % self._slots for each in self._jobs if each.number}
        slot = next(slot for slot in range(1, self._slots) if slot not in taken)
        self._numbered += 1
        return self._numbered * self._slots + slot

    # Coming and going.

    def make_way(self, job: Job) -> None:
        """Has those end that are over, or idle where they cannot be beside a job about to join.

        Raises:
            DeviceBusy: Another one has the devices, and they cannot be shared.
        """
        with self._changed:
            for each in list(self._jobs):
                same_thread = each.thread is threading.current_thread()
                alive = each.thread.is_alive()
                done = same_thread or not each.steps or self._why_not_beside(each, job)
                over = not alive or each.holder.is_over()
                if each is not job and (over or (each.holder.is_idle and done)):
                    each.holder.end()
            self._check_beside(job)

    def _check_beside(self, job: Job) -> None:
        for each in self._jobs:
            problem = self._why_not_beside(each, job)
            if problem:
                raise DeviceBusy(f"tfswap: {problem}")

    def let_go_if_idle(self) -> None:
        """Has those end that are only between calls of functions of this thread."""
        with self._changed:
            for each in list(self._jobs):
                if each.holder.is_idle and each.thread is threading.current_thread():
                    each.holder.end()

    def join(self, job: Job, devices: ManagedDevices) -> None:
        """A job begins, alone or beside others.

        Args:
            job: Knows its devices from now on.
            devices: As its options say, not taken yet.

        Raises:
            DeviceBusy: Another one has the devices, and they cannot be shared.
            NoShare: There was no room for it as long as it waits.
            ValueError: The budget cannot be kept.
        """
        with self._changed:
            if not self._jobs:
                job.devices, job.has_begun = devices, True
                self._jobs.append(job)
                devices.take()
                return
            self._check_beside(job)
            first = self._jobs[0]
            assert first.devices is not None
            job.devices = devices
            devices.join(first.devices)
            self._jobs.append(job)
            try:
                self._wait_for_share(job)
            except BaseException:
                self.leave(job)
                raise

    def leave(self, job: Job) -> None:
        """A job ends: the others get its share, the last one gives the devices back."""
        with self._changed:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
            assert job.devices is not None
            job.devices.end_job()
            job.has_begun, job.in_step = False, False
            job.number, job.share_bytes, job.target_bytes = 0, None, None
            job.version += 1
            if self._jobs:
                self._divide()
                self._settle()
            else:
                job.devices.give_back()
            self._changed.notify_all()

    def are_there(self) -> bool:
        """Whether a job has the devices."""
        with self._changed:
            return bool(self._jobs)

    def has(self, job: Job) -> bool:
        """Whether the job has its part of the devices."""
        with self._changed:
            return job in self._jobs and job.has_begun

    def _wait_for_share(self, job: Job) -> None:
        """Until its floor has room, and the others have left it what is its own."""
        deadline_s = time.monotonic() + job.share.wait_s
        while True:
            if job.target_bytes is None:
                self._divide()
            self._settle()
            if len(self._jobs) == 1:
                self._begin_alone(job)
                return
            if job.share_bytes is not None:
                job.has_begun = True
                return
            if time.monotonic() > deadline_s:
                raise NoShare(
                    f"tfswap: after {job.share.wait_s:g} s the other trainings of this process "
                    "have no room for this one. Let one of them end, give this one a smaller "
                    "minimum, all of them a larger budget, or have it wait longer: "
                    "share=tfswap.Share(wait_s=...)"
                )
            self._changed.wait(_POLL_S)
            self._end_dead(job)

    def _end_dead(self, job: Job) -> None:
        """Has those end, but for this one, whose threads are no more: an error has ended them."""
        for each in list(self._jobs):
            if each is not job and not each.thread.is_alive():
                each.holder.end()

    def _begin_alone(self, job: Job) -> None:
        """The others have ended meanwhile, and have left the devices as they were."""
        job.has_begun, job.target_bytes = True, None
        self._have_all(job)

    def _why_not_beside(self, other: Job, job: Job) -> str:
        """What hinders two jobs from sharing the devices; "" if nothing does."""
        if other.thread is threading.current_thread():
            return (
                "another training is under way in this thread, and has the devices under its own "
                "budget: let it end first, or give both one tfswap.Session"
            )
        begins = "another training is under way in this process, and has the devices"
        for name, said in _ALONE.items():
            if getattr(other.holder.options, name) or getattr(job.holder.options, name):
                return f"{begins}; with {said} they cannot be shared: let it end first"
        assert other.devices is not None
        if len(other.devices.numbers) > 1 or other.devices.device >= FIRST_GPU:
            return (
                f"{begins}; only a single CPU device can be shared by trainings of one process: "
                "let it end first, or give both one tfswap.Session"
            )
        for name in _OF_DEVICE:
            has, wants = getattr(other.holder.options, name), getattr(job.holder.options, name)
            if not _same(has, wants):
                return (
                    f"{begins} with {name}={has!r}, where this one has {wants!r}. Trainings at "
                    f"the same time share one budget: give both the same {', '.join(_OF_DEVICE)} "
                    "(and share=tfswap.Share(...) for how it is divided), let the other one end "
                    "first, or give both one tfswap.Session"
                )
        if len(self._jobs) >= self._most:
            return f"{self._most} trainings share the devices already: let one end first"
        return ""

    # Steps.

    def step_begins(self, job: Job) -> None:
        """What the job has of the devices stays as it is until `step_ended`."""
        with self._changed:
            job.thread = threading.current_thread()
            job.steps += 1
            self._end_dead(job)
            if job in self._jobs:
                self._settle()
                job.in_step = True
                assert job.devices is not None
                if job.share_bytes is not None:
                    job.share_bytes = job.devices.share_bytes()
                job.devices.look_at_share()
                job.held_bytes = job.devices.own_bytes()
            self._library.set_threads_job(job.number)

    def step_ended(self, job: Job) -> None:
        """Whether it failed or not; harmless when called again."""
        with self._changed:
            if not job.in_step:
                return
            job.in_step = False
            assert job.devices is not None
            job.held_bytes = job.devices.own_bytes()
            # Who waits may not get to it before the next step begins: it is done for him.
            unknown = any(each.target_bytes is None for each in self._jobs)
            if unknown or self._is_due or self._has_drifted(job):
                self._divide()
            self._settle()
            self._changed.notify_all()

    def _has_drifted(self, job: Job) -> bool:
        """Whether there is more or less that is no job's than shares were divided for."""
        if len(self._jobs) < 2 or not job.number:
            return False
        assert job.devices is not None
        now_bytes = job.devices.everybodys_bytes()
        return abs(now_bytes - self._everybodys_bytes) > _DRIFT * job.devices.total_bytes

    def expect(self, job: Job, timeline: Timeline, link: Link) -> int:
        """A job's step, which runs already, is foretold: what `know` says will replace that.

        Of another thread than the job's, whose step waits for this one. Beside others it waits
        until they have left the least that the step can do with, as long as that takes them, but
        not for ever.

        Args:
            job: Whose.
            timeline: The step, with what there was of the device when it began.
            link: What copies have.

        Returns:
            Bytes that its share lacks even then; 0: none.
        """
        with self._changed:
            job.foretold(timeline, link)
            self._is_due = True
            if job.is_known or len(self._jobs) < 2 or not (job.in_step and job.number):
                return 0
            job.waits_in_step = True
            deadline_s = time.monotonic() + min(STEP_WAIT_S, job.share.wait_s)
            try:
                while True:
                    self._divide()
                    self._settle()
                    lack_bytes = self._lack_bytes(job)
                    # What others still have to leave it; more comes only when one of them ends.
                    comes = (job.target_bytes or 0) > (job.share_bytes or 0)
                    if not lack_bytes or not comes or time.monotonic() > deadline_s:
                        return lack_bytes
                    self._changed.notify_all()
                    self._changed.wait(_POLL_S)
                    self._end_dead(job)
            finally:
                job.waits_in_step = False

    def _lack_bytes(self, job: Job) -> int:
        """Of the least that its foretold step can do with."""
        curve = job.curve()
        if curve is None or job.share_bytes is None:
            return 0
        return max(curve.least_bytes - job.share_bytes, 0)

    def know(self, job: Job, timeline: Timeline, link: Link) -> None:
        """A job's step has been profiled, and has just ended: shares are divided by that.

        Waits until the others have given up what is now the job's.

        Args:
            job: Whose.
            timeline: The step.
            link: What copies have.
        """
        with self._changed:
            job.profiled(timeline, link)
            if len(self._jobs) < 2 or job not in self._jobs:
                return
            was_in_step, job.in_step = job.in_step, False
            self._divide()
            deadline_s = time.monotonic() + _MOST_WAIT_S
            while True:
                self._settle()
                self._changed.notify_all()
                if job.share_bytes == job.target_bytes or time.monotonic() > deadline_s:
                    break
                self._changed.wait(_POLL_S)
            job.in_step = was_in_step

    # Shares.

    def _divide(self) -> None:
        """Says what each is to have: by least total slowdown, once all steps are known."""
        if len(self._jobs) == 1:
            self._jobs[0].target_bytes = None
            return
        # What one that has all uses in a step cannot be told from what is no job's: it is waited
        # for by who wants a share.
        if any(each.in_step and each.share_bytes is None for each in self._jobs):
            return
        devices = self._jobs[0].devices
        assert devices is not None
        self._is_due = False
        for each in self._jobs:
            if not each.number:
                each.number = self._new_number()
        devices.leave_slab()
        # First: what is everybody's becomes a job's meanwhile, if at all.
        self._everybodys_bytes = devices.everybodys_bytes()
        for each in self._jobs:
            if each.share_bytes is not None and each.devices is not None:
                before_bytes, each.share_bytes = each.share_bytes, each.devices.share_bytes()
                if each.in_step:  # what was everybody's when it began has become its own
                    each.held_bytes += each.share_bytes - before_bytes
        spare_bytes = int(_SPARE * devices.total_bytes)
        self._capacity_bytes = max(devices.total_bytes - self._everybodys_bytes - spare_bytes, 1)
        held = {each: self._held_bytes(each) for each in self._jobs}
        part = min(1.0, self._capacity_bytes / max(sum(held.values()), 1))
        claims = [self._claim(each, int(part * held[each])) for each in self._jobs]
        # What is foretold is good for floors.
        known = all(each.is_known for each in self._jobs)
        shares = divide(claims, self._capacity_bytes, LEAST_SLOWDOWN if known else WEIGHTS)
        targets = {each: shares.get(str(each.number)) for each in self._jobs}
        if all(map(self._is_about, self._jobs, targets.values())):
            return
        for each, target_bytes in targets.items():
            each.target_bytes = target_bytes

    def _is_about(self, job: Job, target_bytes: int | None) -> bool:
        """Whether a share is so near to the one in force that it is not worth another plan."""
        if job.share_bytes is None or target_bytes is None:
            return False
        if job.waits_in_step and target_bytes > job.share_bytes:
            return False
        return abs(target_bytes - job.share_bytes) <= _NEAR * target_bytes

    def _held_bytes(self, job: Job) -> int:
        if not job.has_begun:
            return 0
        return self._capacity_bytes if job.share_bytes is None else job.share_bytes

    def _claim(self, job: Job, held_bytes: int) -> Claim:
        capacity_bytes = self._capacity_bytes
        curve = job.curve() or SlowdownCurve.assumed(job.held_bytes, capacity_bytes)
        least_bytes = curve.least_bytes if curve.is_known else job.held_bytes
        floor_bytes = max(job.share.minimum_bytes, least_bytes, 1)
        return Claim(
            str(job.number), curve, floor_bytes, capacity_bytes, job.share.weight, held_bytes
        )

    def _settle(self) -> None:
        """Has those take over their shares that are between two steps: first who gives up some."""
        if len(self._jobs) == 1:
            only = self._jobs[0]
            if only.has_begun and only.share_bytes is not None and not only.in_step:
                self._have_all(only)
            return
        for job in self._jobs:
            target_bytes, has_bytes = job.target_bytes, job.share_bytes
            if job.in_step or not job.has_begun or target_bytes is None:
                continue
            if has_bytes is None or target_bytes < has_bytes:
                self._take_over(job, target_bytes)
        for job in self._jobs:
            target_bytes, has_bytes = job.target_bytes, job.share_bytes
            if target_bytes is None or has_bytes == target_bytes:
                continue
            may_grow = job.waits_in_step and has_bytes is not None and has_bytes < target_bytes
            if job.in_step and not may_grow:
                continue
            others = [each for each in self._jobs if each is not job]
            if any(each.has_begun and each.share_bytes is None for each in others):
                continue  # one that has all still is in a step
            taken_bytes = sum(each.share_bytes or 0 for each in others)
            if taken_bytes + target_bytes <= self._capacity_bytes:
                self._take_over(job, target_bytes)

    def _take_over(self, job: Job, share_bytes: int) -> None:
        assert job.devices is not None
        job.devices.take_share(job.number, share_bytes, len(self._jobs))
        job.share_bytes = share_bytes
        job.version += 1

    def _have_all(self, job: Job) -> None:
        assert job.devices is not None
        job.devices.take_all()
        job.number, job.share_bytes = 0, None
        job.version += 1

    def state(self, job: Job) -> dict[str, Any]:
        """For `tfswap.status()`: the share in force, in bytes, and how many trainings share."""
        with self._changed:
            return {"share_bytes": job.share_bytes, "sharing": max(len(self._jobs), 1)}


def _same(one: Any, other: Any) -> bool:
    """Whether two values of an option are alike, however they are written."""
    if one == other:
        return True
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        return False
    try:
        return budgets.parse_bytes(one) == budgets.parse_bytes(other)
    except (TypeError, ValueError):
        return False


_of_process: DeviceJobs | None = None


def of_process(lib: Library) -> DeviceJobs:
    """Those of this process."""
    global _of_process
    if _of_process is None:
        _of_process = DeviceJobs(lib)
    return _of_process
