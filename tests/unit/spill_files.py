"""Spill files for tests, with their folders and contents."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

import numpy as np
import pytest

from tfswap._core import SpillFile

KIB, MIB = 1 << 10, 1 << 20
BLOCK = 4096
GROWTH = 64 * MIB

ENGINES = ["io_uring", "threads"]
# Random, so that no two ranges are equal.
PATTERN = np.random.default_rng(1).integers(0, 256, 24 * MIB, dtype=np.uint8)


@contextlib.contextmanager
def disk_folder() -> Iterator[str]:
    """Create a folder on a disk; on some machines, temporary folders are in memory."""
    for parent in (tempfile.gettempdir(), os.getcwd(), "/var/tmp"):
        with tempfile.TemporaryDirectory(dir=parent) as found:
            try:
                SpillFile(found)
            except OSError:
                continue
            yield found
            assert os.listdir(found) == []
            return
    pytest.skip("no folder here has a file system with O_DIRECT")


def open_file(folder: str, engine: str, limit_bytes: int = 0, checksums: bool = True) -> SpillFile:
    file = SpillFile(folder, limit_bytes, checksums=checksums, io_uring=engine == "io_uring")
    if file.engine != engine:
        pytest.skip("io_uring is not allowed here")
    return file


def memory(size: int, shift: int = 0) -> np.ndarray:
    """Return a zeroed array that starts `shift` bytes after the start of a page."""
    pages = np.zeros(size + shift + BLOCK, np.uint8)
    begin = -pages.ctypes.data % BLOCK + shift
    return pages[begin : begin + size]


def pattern(size: int, seed: int = 0, shift: int = 0) -> np.ndarray:
    data = memory(size, shift)
    data[:] = np.resize(PATTERN[seed * 4099 % MIB :], size)
    return data


def descriptor(folder: str) -> int:
    """Return the descriptor of the only spill file in the folder, to reopen the file by."""
    found = [fd for fd in map(int, os.listdir("/proc/self/fd")) if is_in(folder, fd)]
    assert len(found) == 1
    return found[0]


def is_in(folder: str, fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(os.path.realpath(folder) + "/")
    except OSError:
        return False
