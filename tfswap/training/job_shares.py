"""JobShares: how a device is divided among the trainings of this process that share it."""

from __future__ import annotations

from tfswap.jobs.division import LEAST_SLOWDOWN, WEIGHTS, Claim, divide
from tfswap.jobs.slowdown import SlowdownCurve
from tfswap.training.device_job import Job

# Left to what is no job's: batches that are read ahead.
_SPARE = 0.02
# Shares are divided again when what is no job's is less or more by this part of the budget.
_DRIFT = 0.03
# Shares that differ by less stay as they are.
_NEAR = 0.01


class JobShares:
    """The shares of all jobs: what each is to have, and has as soon as there is room for it.

    A job takes over what it is to have between two of its steps. To be called by one thread at a
    time: under `DeviceJobs.lock`.

    Args:
        jobs: Whose list it is; those that share the device.
        slots: No two of their numbers are alike modulo this, nor 0, which is no job's.

    Attributes:
        is_due: Shares are to be divided for what has been foretold since.
    """

    def __init__(self, jobs: list[Job], slots: int) -> None:
        self._jobs = jobs
        self._slots = slots
        self._numbered = 0  # jobs so far
        self._capacity_bytes = 0  # what shares were divided of
        self._everybodys_bytes = 0  # then
        self.is_due = False

    def are_due_behind(self, job: Job) -> bool:
        """Whether they are to be divided again behind a step of that job's."""
        unknown = any(each.target_bytes is None for each in self._jobs)
        return unknown or self.is_due or self._have_drifted(job)

    def _have_drifted(self, job: Job) -> bool:
        """Whether there is more or less that is no job's than they were divided for."""
        if len(self._jobs) < 2 or not job.number:
            return False
        assert job.devices is not None
        now_bytes = job.devices.everybodys_bytes()
        return abs(now_bytes - self._everybodys_bytes) > _DRIFT * job.devices.total_bytes

    def divide(self) -> None:
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
        self.is_due = False
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

    def _new_number(self) -> int:
        """One that no job has had, of the least slot that none has: slots keep what they need."""
        taken = {each.number % self._slots for each in self._jobs if each.number}
        slot = next(slot for slot in range(1, self._slots) if slot not in taken)
        self._numbered += 1
        return self._numbered * self._slots + slot

    def settle(self) -> None:
        """Has those take over their shares that are between two steps: first who gives up some."""
        if len(self._jobs) == 1:
            only = self._jobs[0]
            if only.has_begun and only.share_bytes is not None and not only.in_step:
                self.have_all(only)
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

    def have_all(self, job: Job) -> None:
        """Has one take over all that there is: the others have ended."""
        assert job.devices is not None
        job.devices.take_all()
        job.number, job.share_bytes = 0, None
        job.version += 1
