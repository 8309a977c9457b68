"""DeviceHolder: one session at a time."""

from __future__ import annotations

import threading

import pytest

from tfswap.devices.device_holder import DeviceBusy, DeviceHolder


class Session:
    """Release the devices when ended.

    Attributes:
        ended: Number of calls of `end`.
    """

    def __init__(self, holder: DeviceHolder, is_idle: bool = False, is_over: bool = False) -> None:
        self.is_idle = is_idle
        self.thread = threading.current_thread()
        self.streams_weights = False
        self.ended = 0
        self.successor: object = None
        self._holder = holder
        self._is_over = is_over

    def is_over(self) -> bool:
        return self._is_over

    def yield_to(self, successor: object) -> None:
        self.ended += 1
        self.successor = successor
        self._holder.release(self)

    def stand_by(self) -> None:
        self._holder.set_standby(self, True)


def test_a_training_session_keeps_the_devices() -> None:
    holder = DeviceHolder()
    first, second = Session(holder), Session(holder)
    holder.acquire(first)
    with pytest.raises(DeviceBusy, match=r"in this thread.*one tfswap\.Session.*tfswap broker"):
        holder.acquire(second)
    assert holder.has(first) and not holder.has(second) and first.ended == 0
    holder.release(second)
    assert holder.has(first)
    holder.release(first)
    holder.acquire(second)
    assert holder.has(second)


def test_the_message_names_the_other_thread() -> None:
    holder = DeviceHolder()
    first = Session(holder)
    first.thread = threading.Thread(name="trainer")
    holder.acquire(first)
    with pytest.raises(DeviceBusy, match="in thread 'trainer'"):
        holder.acquire(Session(holder))


@pytest.mark.parametrize("state", ["is_idle", "is_over"])
def test_an_idle_or_finished_session_is_ended(state: str) -> None:
    holder = DeviceHolder()
    first, second = Session(holder, **{state: True}), Session(holder)
    holder.acquire(first)
    holder.acquire(second)
    assert first.ended == 1 and holder.has(second) and first.successor is second
    holder.end_unless_busy()
    assert second.ended == 0


def test_the_newest_session_stands_by() -> None:
    holder = DeviceHolder()
    outer, inner = Session(holder), Session(holder)
    assert holder.standby() is None
    outer.stand_by()
    inner.stand_by()
    outer.stand_by()
    assert holder.standby() is outer
    holder.set_standby(outer, False)
    assert holder.standby() is inner
    holder.set_standby(inner, False)
    assert holder.standby() is None


def test_one_of_many_threads_gets_the_devices() -> None:
    holder = DeviceHolder()
    barrier = threading.Barrier(8)
    got: list[Session] = []
    refused: list[DeviceBusy] = []

    def begin() -> None:
        session = Session(holder)
        barrier.wait()
        try:
            holder.acquire(session)
            got.append(session)
        except DeviceBusy as error:
            refused.append(error)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 and len(refused) == 7 and holder.has(got[0])
