"""Leases: which process a share belongs to, and whether it still lives, as the kernel says.

A lease is a file in the broker's folder that the job's process has locked (POSIX, `F_SETLK`). The
lock is not inherited by forks, and goes with the process however it ends, ``kill -9`` included, at
about the time its memory does; nobody else can say that it is gone, or that it is not.
`F_GETLK` names the process that has it. What the broker wrote into the file is what the job may
hold, so that another broker knows it after the first one has died.

A process must open its lease once only: closing any descriptor of the file gives up the lock.
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
_MOST_RECORD_BYTES = 4096
_MOST_MEMORY = 1 << 62


@dataclass(frozen=True)
class LeaseRecord:
    """What a broker knows of a job when all it has is the lease.

    Attributes:
        name: the job's.
        token: what the job proves by that it is the one.
        held_bytes: what it may hold.
        weight, minimum_bytes, wanted_bytes: what it asked for.
    """

    name: str
    token: str
    held_bytes: int
    weight: float
    minimum_bytes: int
    wanted_bytes: int


class HeldLease:
    """The lease of this process's job, locked until `release`.

    Args:
        path: Of the file, which the broker has made.

    Raises:
        OSError: It is not there, or another process has it.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Gives it up; harmless when called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def holder(path: Path) -> int | None:
    """The process that has a lease; None: nobody does, or there is no such file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else int(pid)


def write_record(path: Path, record: LeaseRecord, create: bool = False) -> None:
    """Writes what is known of a job into its lease, in one piece.

    Raises:
        OSError: It cannot be written; or there is such a file, and it was to be made.
    """
    text = json.dumps(asdict(record)).encode().ljust(_MOST_RECORD_BYTES)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
    try:
        if os.pwrite(fd, text, 0) != len(text):
            raise OSError(f"{path} could not be written as a whole")
    finally:
        os.close(fd)


def read_record(path: Path) -> LeaseRecord | None:
    """What a broker wrote into a lease; None: it is nothing of the kind."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            text = os.read(fd, _MOST_RECORD_BYTES)
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
        and all(type(size) is int and 0 <= size <= _MOST_MEMORY for size in sizes)
        and isinstance(weight, (int, float))
        and not isinstance(weight, bool)
        and math.isfinite(weight)
        and weight > 0
    )
