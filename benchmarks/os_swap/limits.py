"""A memory cgroup and a swap file for the duration of a benchmark."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

_NAME = f"tfswap-benchmark-{os.getpid()}"


class NotAllowed(Exception):
    """The machine or the user may not do something; the text says what."""


class MemoryLimit:
    """A cgroup of version 1 or 2 with a memory limit; removed on exit."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        if (root / "memory" / "memory.limit_in_bytes").exists():
            self._folder = root / "memory" / _NAME
            self._limit_file = "memory.limit_in_bytes"
            self._highest = "memory.max_usage_in_bytes"
        else:
            self._folder = root / _NAME
            self._limit_file = "memory.max"
            self._highest = "memory.peak"

    def __enter__(self) -> MemoryLimit:
        try:
            self._folder.mkdir()
            (self._folder / self._limit_file).read_text()
        except OSError as error:
            raise NotAllowed(
                f"no memory cgroup can be made here ({error}). Run it as root, on a machine (not "
                "in a container without privileges) whose memory controller is on."
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.rmdir()

    def set_bytes(self, limit_bytes: int) -> None:
        """Set the limit for all processes that enter."""
        (self._folder / self._limit_file).write_text(str(limit_bytes))

    def enter(self) -> None:
        """Move the calling process into the cgroup."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))


class SwapFile:
    """An active swap file; deactivated and removed on exit."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self._folder = folder
        self._size_bytes = size_bytes
        self._path: Path | None = None

    def __enter__(self) -> SwapFile:
        handle, name = tempfile.mkstemp(prefix="tfswap-benchmark-", dir=self._folder)
        self._path = Path(name)
        try:
            os.posix_fallocate(handle, 0, self._size_bytes)
            os.close(handle)
            for command in (["mkswap", name], ["swapon", name]):
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode != 0:
                    raise NotAllowed(
                        f"no swap file can be made in {self._folder}: {done.stderr.strip()}. Run "
                        "it as root, with a --folder on a disk."
                    )
        except OSError as error:
            self._path.unlink()
            raise NotAllowed(f"no swap file can be made in {self._folder}: {error}") from error
        except NotAllowed:
            self._path.unlink()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._path is not None
        subprocess.run(["swapoff", str(self._path)], check=True, capture_output=True)
        self._path.unlink()
