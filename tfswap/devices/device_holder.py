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
    """

    is_idle: bool
    thread: threading.Thread

    def is_over(self) -> bool:
        """Return whether its training has ended without releasing the devices."""
        ...

    def end(self) -> None:
        """Release the devices, and call `DeviceHolder.release`."""


class DeviceHolder:
    """Keep track of the session that has the devices. Thread-safe.

    Attributes:
        lock: Held while a session acquires or releases the devices.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._session: Session | None = None

    def acquire(self, session: Session) -> None:
        """Give the devices to a session; end the current one if it is idle or over.

        Raises:
            DeviceBusy: The current session is neither.
        """
        with self.lock:
            self.end_unless_busy()
            if self._session is not None:
                here = self._session.thread is threading.current_thread()
                where = "this thread" if here else f"thread {self._session.thread.name!r}"
                raise DeviceBusy(_BUSY.format(where=where))
            self._session = session

    def end_unless_busy(self) -> None:
        """End the session that has the devices if it is idle or over."""
        with self.lock:
            if self._session is not None and (self._session.is_idle or self._session.is_over()):
                self._session.end()

    def release(self, session: Session) -> None:
        """Take the devices from a session; has no effect if it does not have them."""
        with self.lock:
            if self._session is session:
                self._session = None

    def has(self, session: Session) -> bool:
        """Return whether this session has the devices."""
        with self.lock:
            return self._session is session


of_process = DeviceHolder()
