"""LeaseFolder: the leases of a broker's jobs, and the lock by which there is one broker."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from tfswap.jobs.lease import LeaseRecord, holder, read_record, write_record
from tfswap.jobs.socket_path import SocketRefused, leases_of, make_private_folder

_LOCK, _PREFIX = "broker", "job-"


class BrokerRunning(RuntimeError):
    """There is another broker on the socket."""


class LeaseFolder:
    """The folder beside a broker's socket; see `lease` for what a lease is.

    Args:
        socket: The broker's.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._folder = leases_of(socket)
        self._lock_fd = -1

    def open(self) -> None:
        """Makes the folder, or takes over an earlier broker's.

        Raises:
            BrokerRunning: Another one has it.
            SocketRefused: It, or the socket's, is open to others.
        """
        make_private_folder(self._socket.parent)
        make_private_folder(self._folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._folder / _LOCK, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise BrokerRunning(
                f"there is a broker at {self._socket} already: stop it first, or give this one "
                "another --socket"
            ) from None
        self._lock_fd = fd

    def unlock(self) -> None:
        """Lets another broker have it; leases stay."""
        (self._folder / _LOCK).unlink(missing_ok=True)
        os.close(self._lock_fd)

    def close(self) -> None:
        """Lets another broker have what jobs still hold, and removes the rest."""
        for path in self._folder.glob(f"{_PREFIX}*"):
            if holder(path) is None:
                path.unlink(missing_ok=True)
        self.unlock()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def held(self) -> Iterator[tuple[str, int, LeaseRecord]]:
        """Leases that jobs have had from an earlier broker; those that nobody holds are removed.

        Yields:
            Name, process, and what the broker wrote into it.

        Raises:
            SocketRefused: One does not say what its job may hold.
        """
        for path in sorted(self._folder.glob(f"{_PREFIX}*")):
            pid = holder(path)
            if pid is None:
                path.unlink(missing_ok=True)
                continue
            record = read_record(path)
            if record is None:
                raise SocketRefused(
                    f"process {pid} holds the lease {path}, which does not say what it may hold: "
                    "end that process first"
                )
            yield path.name, pid, record

    def new(self, record: LeaseRecord) -> str:
        """Makes a lease, which its job is to lock; answers its name.

        Raises:
            OSError: It cannot be written.
        """
        name = f"{_PREFIX}{secrets.token_hex(8)}"
        write_record(self.path(name), record, create=True)
        return name

    def write(self, name: str, record: LeaseRecord) -> None:
        """Says what its job may hold.

        Raises:
            OSError: It cannot be written.
        """
        write_record(self.path(name), record)

    def holder(self, name: str) -> int | None:
        """The process that has a lease; None if nobody does."""
        return holder(self.path(name))

    def remove(self, name: str) -> None:
        """Its job is gone, or never came."""
        self.path(name).unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Of a lease's file."""
        return self._folder / name
