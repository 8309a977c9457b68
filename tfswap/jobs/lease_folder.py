"""LeaseFolder: the leases of a broker's jobs, and the lock that keeps out a second broker."""

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
    """Another broker uses the socket."""


class LeaseFolder:
    """The folder of leases beside a broker's socket; see `tfswap.jobs.lease`.

    Args:
        socket: The broker's socket.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._folder = leases_of(socket)
        self._lock_fd = -1

    def open(self) -> None:
        """Create the folder, or take over that of an earlier broker.

        Raises:
            BrokerRunning: Another broker uses it.
            SocketRefused: The folder, or that of the socket, is not private.
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
        """Let another broker use the folder. The leases stay."""
        (self._folder / _LOCK).unlink(missing_ok=True)
        os.close(self._lock_fd)

    def close(self) -> None:
        """Let another broker use the folder, and remove all leases that no job holds."""
        for path in self._folder.glob(f"{_PREFIX}*"):
            if holder(path) is None:
                path.unlink(missing_ok=True)
        self.unlock()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def held(self) -> Iterator[tuple[str, int, LeaseRecord]]:
        """Find the leases that jobs of an earlier broker hold, and remove all others.

        Yields:
            Name, process and record of each lease.

        Raises:
            SocketRefused: A lease has no valid record.
        """
        for path in sorted(self._folder.glob(f"{_PREFIX}*")):
            pid = holder(path)
            if pid is None:
                path.unlink(missing_ok=True)
                continue
            record = read_record(path)
            if record is None:
                raise SocketRefused(
                    f"process {pid} holds the lease {path}, which does not record its share: end "
                    "that process first"
                )
            yield path.name, pid, record

    def new(self, record: LeaseRecord) -> str:
        """Create a lease for a job to lock, and return its name.

        Raises:
            OSError: It cannot be written.
        """
        name = f"{_PREFIX}{secrets.token_hex(8)}"
        write_record(self.path(name), record, create=True)
        return name

    def write(self, name: str, record: LeaseRecord) -> None:
        """Write a lease's record.

        Raises:
            OSError: It cannot be written.
        """
        write_record(self.path(name), record)

    def holder(self, name: str) -> int | None:
        """Return the process that has locked a lease, or None."""
        return holder(self.path(name))

    def remove(self, name: str) -> None:
        """Remove a lease."""
        self.path(name).unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Return the path of a lease's file."""
        return self._folder / name
