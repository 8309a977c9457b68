"""DeviceHolder: the one training that has the devices of this process."""

from __future__ import annotations

import threading
from typing import Protocol

_BUSY = (
    "tfswap: another training is under way in {where}, and has the devices. Only one training at "
    "a time can run under a budget in one process: let that one end first, call both functions "
    "within one tfswap.Session, or run each training in a process of its own and let "
    "`tfswap broker` divide the device among them (broker=True)"
)


class DeviceBusy(RuntimeError):
    """Another training of this process has the devices."""


class Session(Protocol):
    """The interface of `SwapSession` that `DeviceHolder` uses.

    Attributes:
        is_idle: Whether it can release the devices now, because it is between two calls.
        thread: The thread that used it last.
        streams_weights: Whether it moves values of variables.
    """

    is_idle: bool
    thread: threading.Thread
    streams_weights: bool

    def is_over(self) -> bool:
        """Return whether its training has ended without releasing the devices."""
        ...

    def yield_to(self, successor: Session | None) -> None:
        """Release the devices to a successor or to none, and call `DeviceHolder.release`."""

    def stand_by(self) -> None:
        """Get the devices whenever no other session has them."""


class DeviceHolder:
    """Keep track of the session that has the devices. Thread-safe.

    Attributes:
        lock: Held while a session acquires or releases the devices.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._session: Session | None = None
        self._standbys: list[Session] = []

    def acquire(self, session: Session) -> None:
        """Give the devices to a session; end the current one if it is idle or over.

        Raises:
            DeviceBusy: The current session is neither.
        """
        with self.lock:
            self.end_unless_busy(session)
            if self._session is not None:
                here = self._session.thread is threading.current_thread()
                where = "this thread" if here else f"thread {self._session.thread.name!r}"
                raise DeviceBusy(_BUSY.format(where=where))
            self._session = session

    def end_unless_busy(self, successor: Session | None = None) -> None:
        """End the session that has the devices if it is idle or over.

        Args:
            successor: The session that gets the devices then.
        """
        with self.lock:
            if self._session is not None and (self._session.is_idle or self._session.is_over()):
                self._session.yield_to(successor)

    def release(self, session: Session) -> None:
        """Take the devices from a session; has no effect if it does not have them."""
        with self.lock:
            if self._session is session:
                self._session = None

    def set_standby(self, session: Session, on: bool) -> None:
        """Set whether a session gets the devices whenever no other one has them."""
        with self.lock:
            self._standbys = [each for each in self._standbys if each is not session]
            if on:
                self._standbys.append(session)

    def standby(self) -> Session | None:
        """Return the session that gets the devices if no other one has them, the newest of all."""
        with self.lock:
            return self._standbys[-1] if self._standbys else None

    def has(self, session: Session) -> bool:
        """Return whether this session has the devices."""
        with self.lock:
            return self._session is session


of_process = DeviceHolder()
