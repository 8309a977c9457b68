"""Files that nobody else can put there or have written to: folders, reading, writing.

What tfswap keeps by itself is in folders of the user's alone. What it writes where a user says may
be in a folder of everybody's, where somebody else may have put a link under the name that is
written to: no link is followed there, and a file appears as a whole or not at all.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
"""The mode of files that are for this user alone."""

_USUAL = 0o666  # less what the process's umask takes away
# Of a file that is being written; where that takes longer than this, the writer has been killed.
_OWN, _PARTIAL, _MOST_WRITING_S = ".tfswap-", ".partial", 600.0


def is_private_folder(folder: Path) -> bool:
    """Whether a folder is there, and nobody else could have put anything into it."""
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
    """Return whether this is a regular file that only this user can write to, and no link."""
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
    """Makes a folder, and those above it, for this user alone; whether it is one.

    Raises:
        OSError: It cannot be made.
    """
    missing = []
    above = folder
    while not above.exists() and above != above.parent:
        missing.append(above)
        above = above.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return is_private_folder(folder)


def read_bytes(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The bytes of a file that a user has named.

    Raises:
        ValueError: There are more.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        return _at_most(file, path, most_bytes)


def read_own_bytes(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file that tfswap wrote into a folder of its own.

    Raises:
        ValueError: There are more; it is no regular file that only this user can write to.
        OSError: It cannot be read, or is a link.
    """
    with open(path, "rb", opener=_open_own) as file:
        if not _is_own(os.fstat(file.fileno())):
            raise ValueError(f"{path} is no regular file that only this user can write to")
        return _at_most(file, path, most_bytes)


def _at_most(file: BinaryIO, path: str | os.PathLike[str], most_bytes: int) -> bytes:
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"{os.fspath(path)} has more than {most_bytes} bytes")
    return data


def _open_own(path: str, flags: int) -> int:
    # A pipe would have the process wait for whoever writes to it.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def write_bytes(path: str | os.PathLike[str], data: bytes, mode: int = _USUAL) -> None:
    """Writes a file, all of it or nothing; a link of that name is replaced, never followed.

    What is there and is no plain file ("/dev/stdout") is written to.

    Args:
        path: Of the file.
        data: What shall be in it.
        mode: `PRIVATE`, or by default what the process's umask leaves.

    Raises:
        OSError: It cannot be written.
    """
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_bytes(data)
        return
    partial = target.with_name(f"{_OWN}{os.getpid()}-{secrets.token_hex(8)}{_PARTIAL}")
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
    """Removes from a folder of tfswap's own what processes that were killed did not finish.

    Args:
        folder: Where `write_bytes` writes.
    """
    for partial in folder.glob(f"{_OWN}*{_PARTIAL}"):
        writer = partial.name.removeprefix(_OWN).partition("-")[0]
        try:
            age_s = time.time() - partial.lstat().st_mtime
        except FileNotFoundError:
            continue  # it has just been finished
        has_ended = writer.isdecimal() and not Path(f"/proc/{writer}").exists()
        if has_ended or age_s > _MOST_WRITING_S:
            partial.unlink(missing_ok=True)
