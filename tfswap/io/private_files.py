"""Read and write files without trusting what other users may have placed there.

tfswap's own files are in folders that only this user can write to. A path that the user names may
be in a shared folder, where another user may have placed a link under that name: links are never
followed on writing, and files are written atomically.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
"""The mode of files that only this user can read."""

_DEFAULT_MODE = 0o666  # before the process's umask applies
# Prefix and suffix of a partial file, and the age at which its writer is assumed dead.
_PREFIX, _SUFFIX, _MAX_WRITING_S = ".tfswap-", ".partial", 600.0


def is_private_folder(folder: Path) -> bool:
    """Return whether this is a folder of this user's that no other user can write to."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def is_own_file(path: Path) -> bool:
    """Return whether this is a regular file that only this user can write to, and not a link."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return _is_own(found)


def _is_own(found: os.stat_result) -> bool:
    return (
        stat.S_ISREG(found.st_mode)
        and found.st_uid == os.getuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def make_private_folder(folder: Path) -> bool:
    """Create a folder and its parents for this user alone, and return `is_private_folder`.

    Raises:
        OSError: The folder cannot be created.
    """
    missing = []
    above = folder
    while not above.exists() and above != above.parent:
        missing.append(above)
        above = above.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return is_private_folder(folder)


def read_bytes(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read a file that the user named.

    Raises:
        ValueError: The file is larger than `max_bytes`.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        return _read_at_most(file, path, max_bytes)


def read_own_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a file that tfswap wrote into one of its own folders.

    Raises:
        ValueError: The file is larger than `max_bytes`, or not a regular file that only this user
            can write to.
        OSError: The file cannot be read, or is a link.
    """
    with open(path, "rb", opener=_open_own) as file:
        if not _is_own(os.fstat(file.fileno())):
            raise ValueError(f"{path} is not a regular file that only this user can write to")
        return _read_at_most(file, path, max_bytes)


def _read_at_most(file: BinaryIO, path: str | os.PathLike[str], max_bytes: int) -> bytes:
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{os.fspath(path)} has more than {max_bytes} bytes")
    return data


def _open_own(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe would block until another process writes to it.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def write_bytes(path: str | os.PathLike[str], data: bytes, mode: int = _DEFAULT_MODE) -> None:
    """Write a file atomically; a link of that name is replaced, never followed.

    Special files ("/dev/stdout") are written to directly.

    Args:
        path: The file's path.
        data: The file's new content.
        mode: The file's mode, to which the umask applies: `PRIVATE`, or 0o666 by default.

    Raises:
        OSError: The file cannot be written.
    """
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_bytes(data)
        return
    partial = target.with_name(f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(partial, flags, mode), "wb") as file:
        try:
            file.write(data)
            file.flush()
            os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def remove_unfinished(folder: Path) -> None:
    """Remove the partial files that killed processes left in one of tfswap's folders."""
    for partial in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        writer = partial.name.removeprefix(_PREFIX).partition("-")[0]
        try:
            age_s = time.time() - partial.lstat().st_mtime
        except FileNotFoundError:
            continue  # its writer has just finished
        has_ended = writer.isdecimal() and not Path(f"/proc/{writer}").exists()
        if has_ended or age_s > _MAX_WRITING_S:
            partial.unlink(missing_ok=True)
