"""Leases: file locks that prove that the process of a job is alive.

A lease is a file in the broker's folder that the job's process locks (POSIX `F_SETLK`). The kernel
releases the lock when the process ends, even by ``kill -9``, at about the time that it frees the
process's memory; forks do not inherit it, and no other process can fake or break it. `F_GETLK`
returns the process that holds the lock. The broker writes into the file how much memory the job
may hold, for the next broker in case it dies.

A process must open its lease only once: closing any descriptor of the file releases the lock.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_RECORD_BYTES = 4096
_MAX_MEMORY = 1 << 62


@dataclass(frozen=True)
class LeaseRecord:
    """The content of a lease.

    Attributes:
        name: The job's name.
        token: Secret by which the job authenticates when it reconnects.
        held_bytes: Maximum memory that the job may hold.
        weight, minimum_bytes, wanted_bytes: The job's request.
    """

    name: str
    token: str
    held_bytes: int
    weight: float
    minimum_bytes: int
    wanted_bytes: int


class HeldLease:
    """The lease of a job in this process, locked until `release`.

    Args:
        path: The file, which the broker has created.

    Raises:
        OSError: The file does not exist, or another process has locked it.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Release the lock. Further calls have no effect."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def holder(path: Path) -> int | None:
    """Return the process that has locked a lease; None if there is none, or no such file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else int(pid)


def write_record(path: Path, record: LeaseRecord, create: bool = False) -> None:
    """Write a record into a lease, in one write.

    Raises:
        OSError: The file cannot be written, or `create` is set and it exists.
    """
    text = json.dumps(asdict(record)).encode().ljust(_RECORD_BYTES)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
    try:
        if os.pwrite(fd, text, 0) != len(text):
            raise OSError(f"{path} was written only partly")
    finally:
        os.close(fd)


def read_record(path: Path) -> LeaseRecord | None:
    """Return the record in a lease; None if it has no valid one."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            text = os.read(fd, _RECORD_BYTES)
        finally:
            os.close(fd)
        record = LeaseRecord(**json.loads(text))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return record if _is_record(asdict(record)) else None


def _is_record(values: dict[str, object]) -> bool:
    sizes = (values["held_bytes"], values["minimum_bytes"], values["wanted_bytes"])
    weight = values["weight"]
    return (
        isinstance(values["name"], str)
        and isinstance(values["token"], str)
        and all(type(size) is int and 0 <= size <= _MAX_MEMORY for size in sizes)
        and isinstance(weight, (int, float))
        and not isinstance(weight, bool)
        and math.isfinite(weight)
        and weight > 0
    )
