"""DeviceJobs: the trainings of this process that share a device: who comes, waits, steps and goes.

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
from typing import Any

from tfswap.machine import budget as budgets
from tfswap.machine.devices import FIRST_GPU
from tfswap.machine.link import Link
from tfswap.ops.loaded_library import Library
from tfswap.step.timeline import Timeline
from tfswap.training.device_job import Job
from tfswap.training.job_shares import JobShares
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
_POLL_S = 0.5
# How long a profiled job waits for the others' steps to end.
_MOST_WAIT_S = 60.0


class DeviceBusy(RuntimeError):
    """Another training has the devices, and they cannot be shared."""


class NoShare(RuntimeError):
    """The others left no room for a training as long as it waited."""


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
        self._shares = JobShares(self._jobs, lib.most_jobs())
        self._most = lib.most_jobs() - 1  # one number is no job's

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
                self._shares.divide()
                self._shares.settle()
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
                self._shares.divide()
            self._shares.settle()
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
        self._shares.have_all(job)

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
                self._shares.settle()
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
            if self._shares.are_due_behind(job):
                self._shares.divide()
            self._shares.settle()
            self._changed.notify_all()

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
            self._shares.divide()
            deadline_s = time.monotonic() + _MOST_WAIT_S
            while True:
                self._shares.settle()
                self._changed.notify_all()
                if job.share_bytes == job.target_bytes or time.monotonic() > deadline_s:
                    break
                self._changed.wait(_POLL_S)
            job.in_step = was_in_step

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
