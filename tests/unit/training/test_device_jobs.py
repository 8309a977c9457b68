"""Trainings that share a device: who has which part of it when, with a device that is none."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfswap.jobs.share import Share
from tfswap.ops.loaded_library import Library
from tfswap.training.device_job import Job
from tfswap.training.device_jobs import DeviceBusy, DeviceJobs, NoShare
from tfswap.training.managed_devices import ManagedDevices
from tfswap.training.swap_options import SwapOptions

MIB = 1 << 20
TOTAL = 100 * MIB


class Device:
    """What is known of all jobs' shares."""

    def __init__(self) -> None:
        self.everybodys = 0
        self.shares: dict[int, int] = {}
        self.highest = 0
        self.given_back = 0

    def note(self) -> None:
        self.highest = max(self.highest, self.everybodys + sum(self.shares.values()))


class Devices:
    """Stands in for one job's `ManagedDevices`."""

    numbers = (0,)
    device = 0
    total_bytes = TOTAL

    def __init__(self, device: Device) -> None:
        self.on = device
        self.job = 0
        self.own = 0
        self.has_all = False

    def take(self) -> None:
        assert not self.on.shares
        self.has_all = True

    def join(self, first: Devices) -> None:
        assert first.on is self.on

    def take_share(self, job: int, share_bytes: int, sharers: int) -> None:
        self.has_all = False
        self.job = job
        self.on.shares[job] = share_bytes
        self.on.note()

    def take_all(self) -> None:
        self.end_job()
        assert not self.on.shares
        self.has_all = True

    def end_job(self) -> None:
        self.on.shares.pop(self.job, None)
        self.job = 0

    def share_bytes(self) -> int:
        return self.on.shares[self.job]

    def inherit(self, inherited: int) -> None:
        """What was everybody's, and older than the jobs, is replaced in this one's step."""
        self.on.everybodys -= inherited
        self.on.shares[self.job] += inherited
        self.on.note()

    def leave_slab(self) -> None:
        pass

    def everybodys_bytes(self) -> int:
        return self.on.everybodys

    def look_at_share(self) -> None:
        pass

    def own_bytes(self) -> int:
        return self.own

    def base_bytes(self, own_bytes: int, then_bytes: int | None = None) -> int:
        return (then_bytes or 0) - own_bytes

    def give_back(self) -> None:
        assert not self.on.shares
        self.has_all = False
        self.on.given_back += 1


class Training:
    """A holder, in a thread of its own."""

    def __init__(self, jobs: DeviceJobs, device: Device, **options: Any) -> None:
        self.options = SwapOptions(**{"budget": TOTAL, **options})
        self.is_idle = False
        self.over = False
        self.jobs = jobs
        self.job = Job(self)
        self.devices = Devices(device)
        self._todo: list[Callable[[], Any]] = []
        self._answers: list[Any] = []
        self._wake = threading.Condition()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def is_over(self) -> bool:
        return self.over

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._todo)
                todo = self._todo.pop(0)
            try:
                answer = todo()
            except BaseException as error:
                answer = error
            with self._wake:
                self._answers.append(answer)
                self._wake.notify_all()
            if answer == "over":
                return

    def start(self, todo: Callable[[], Any]) -> None:
        with self._wake:
            self._todo.append(todo)
            self._wake.notify_all()

    def answer(self, timeout_s: float = 20) -> Any:
        with self._wake:
            assert self._wake.wait_for(lambda: self._answers, timeout_s)
            answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def do(self, todo: Callable[[], Any]) -> Any:
        self.start(todo)
        return self.answer()

    def join(self) -> None:
        self.job.thread = threading.current_thread()
        self.jobs.make_way(self.job)
        self.jobs.join(self.job, cast(ManagedDevices, self.devices))

    def end(self) -> None:
        self.jobs.leave(self.job)

    def step(self) -> None:
        self.jobs.step_begins(self.job)
        self.jobs.step_ended(self.job)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def begin(device: Device) -> Iterator[Callable[..., Training]]:
    lib = SimpleNamespace(most_jobs=lambda: 16, set_threads_job=lambda job: None)
    jobs = DeviceJobs(cast(Library, lib))
    made: list[Training] = []

    def new(**options: Any) -> Training:
        made.append(Training(jobs, device, **options))
        return made[-1]

    yield new
    assert device.highest <= TOTAL
    for each in made:
        each.start(lambda: "over")


def test_one_alone_has_all_and_two_have_halves(begin, device) -> None:
    one, two = begin(), begin()
    one.do(one.join)
    assert one.devices.has_all and not device.shares
    two.do(two.join)
    assert len(device.shares) == 2
    assert max(device.shares.values()) - min(device.shares.values()) <= 2
    assert sum(device.shares.values()) > 0.95 * TOTAL
    two.do(two.end)
    assert one.devices.has_all
    one.do(one.end)
    assert device.given_back == 1


def test_shares_are_taken_over_between_steps_only(begin, device) -> None:
    one, two = begin(), begin()
    one.do(one.join)
    one.do(lambda: one.jobs.step_begins(one.job))
    two.start(two.join)
    time.sleep(0.1)
    assert one.devices.has_all and not device.shares
    one.do(lambda: one.jobs.step_ended(one.job))
    two.answer()
    assert len(device.shares) == 2
    one.do(lambda: one.jobs.step_begins(one.job))
    two.do(two.end)
    assert not one.devices.has_all
    one.do(lambda: one.jobs.step_ended(one.job))
    assert one.devices.has_all


def test_who_waits_is_not_passed_over_by_steps_that_follow_at_once(begin, device) -> None:
    one, two = begin(), begin()
    one.do(one.join)
    over = threading.Event()

    def steps() -> int:
        count = 0
        while not over.is_set():
            one.jobs.step_begins(one.job)
            time.sleep(0.002)
            one.jobs.step_ended(one.job)
            count += 1
        return count

    one.start(steps)
    two.do(two.join)
    assert len(device.shares) == 2
    over.set()
    assert one.answer() < 100


def test_weights_and_minimums(begin, device) -> None:
    one, two = begin(share=Share(weight=3)), begin()
    one.do(one.join)
    two.do(two.join)
    assert one.job.share_bytes == pytest.approx(3 * two.job.share_bytes, rel=0.01)
    three = begin(share=Share(minimum="70MiB"))
    three.do(three.join)
    assert three.job.share_bytes >= 70 * MIB
    assert one.job.share_bytes > two.job.share_bytes


def test_who_finds_no_room_waits_and_says_so(begin) -> None:
    one = begin(share=Share(minimum="70MiB"))
    one.do(one.join)
    hasty = begin(share=Share(minimum="50MiB", wait_s=0.1))
    with pytest.raises(NoShare, match=r"after 0.1 s .* no room for this one.*wait_s"):
        hasty.do(hasty.join)
    patient = begin(share=Share(minimum="50MiB"))
    patient.start(patient.join)
    time.sleep(0.1)
    one.do(one.end)
    patient.answer()
    assert patient.devices.has_all


def test_those_who_wait_together_have_the_device_when_its_holder_ends(begin, device) -> None:
    one = begin(share=Share(minimum="90MiB"))
    one.do(one.join)
    waiting = [begin(share=Share(minimum="30MiB")) for _ in range(2)]
    for each in waiting:
        each.start(each.join)
    time.sleep(0.1)
    one.do(one.end)
    for each in waiting:
        each.answer()
    assert len(device.shares) == 2 and min(device.shares.values()) >= 30 * MIB
    assert device.given_back == 0
    for each in waiting:
        each.do(each.end)
    assert device.given_back == 1


def test_a_training_inside_of_a_step_is_refused_whoever_else_shares(begin) -> None:
    one, two = begin(), begin()
    one.do(one.join)
    two.do(two.join)
    two.do(lambda: two.jobs.step_begins(two.job))
    inner = Training(one.jobs, one.devices.on)
    with pytest.raises(DeviceBusy, match=r"in this thread.*give both one tfswap\.Session"):
        two.do(inner.join)


def test_other_options_are_refused(begin) -> None:
    one = begin()
    one.do(one.join)
    other = begin(budget="1GiB")
    with pytest.raises(DeviceBusy, match=r"with budget=104857600, where this one has '1GiB'"):
        other.do(other.join)
    alike = begin(budget="100MiB")
    alike.do(alike.join)
    streaming = begin(stream_weights=True)
    with pytest.raises(DeviceBusy, match="with stream_weights=True they cannot be shared"):
        streaming.do(streaming.join)
    inner = Training(one.jobs, one.devices.on)
    with pytest.raises(DeviceBusy, match=r"in this thread.*give both one tfswap\.Session"):
        one.do(inner.join)


def test_who_is_idle_gives_way_in_its_thread_or_to_other_options(begin, device) -> None:
    one = begin()
    one.do(one.join)
    one.do(one.step)
    one.is_idle = True
    beside = begin()
    beside.do(beside.join)
    assert len(device.shares) == 2
    beside.do(beside.end)
    inner = Training(one.jobs, device)
    one.do(inner.join)
    assert inner.devices.has_all and not one.jobs.has(one.job)
    inner.is_idle = True
    other = begin(budget="100MiB", host_limit="1GiB")
    other.do(other.join)
    assert other.devices.has_all


def test_who_is_over_gives_way_to_the_next_one_of_its_thread(begin, device) -> None:
    one = begin()
    one.do(one.join)
    one.do(one.step)
    inner = Training(one.jobs, device)
    with pytest.raises(DeviceBusy, match="in this thread"):
        one.do(inner.join)
    one.over = True
    one.do(inner.join)
    assert inner.devices.has_all and not one.jobs.has(one.job)


def test_who_died_is_not_waited_for(begin) -> None:
    one, two = begin(), begin()
    one.do(one.join)
    one.do(lambda: one.jobs.step_begins(one.job))
    two.start(two.join)
    one.do(lambda: "over")
    two.answer()
    assert two.devices.has_all


def test_variables_that_are_replaced_come_with_their_memory(begin, device) -> None:
    device.everybodys = 60 * MIB
    one, two = begin(), begin()
    one.do(one.join)
    two.do(two.join)
    assert sum(device.shares.values()) <= 40 * MIB
    one.do(lambda: one.jobs.step_begins(one.job))
    for _ in range(10):
        one.do(lambda: one.devices.inherit(5 * MIB))
        two.do(two.step)
    one.do(lambda: one.jobs.step_ended(one.job))
    for _ in range(2):
        two.do(two.step)
        one.do(one.step)
    assert sum(device.shares.values()) > 85 * MIB
    assert one.job.share_bytes == device.shares[one.devices.job]


def test_what_is_no_jobs_is_not_given_out(begin, device) -> None:
    one, two = begin(), begin()
    one.do(one.join)
    two.do(two.join)
    device.everybodys = 30 * MIB
    for _ in range(2):
        one.do(one.step)
        two.do(two.step)
    assert sum(device.shares.values()) <= 70 * MIB
    device.highest = 0
    device.everybodys = 0
    for _ in range(2):
        one.do(one.step)
        two.do(two.step)
    assert sum(device.shares.values()) > 95 * MIB


def test_shares_never_exceed_the_budget_however_trainings_come_and_go(begin, device) -> None:
    dice = random.Random(7)

    def life(training: Training) -> None:
        for _ in range(3):
            training.join()
            for _ in range(dice.randrange(1, 30)):
                training.jobs.step_begins(training.job)
                time.sleep(dice.random() / 2000)
                training.jobs.step_ended(training.job)
            training.end()

    trainings = [begin(share=Share(weight=dice.uniform(0.5, 3))) for _ in range(5)]
    for each in trainings:
        each.start(lambda each=each: life(each))
    for each in trainings:
        each.answer(60)
    assert not device.shares and device.given_back >= 1
    assert 0 < device.highest <= TOTAL
    assert dataclasses.is_dataclass(trainings[0].options)
