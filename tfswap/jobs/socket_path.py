"""Where a broker listens: a socket that only its owner can reach, and files beside it.

::

    /run/user/1000/tfswap/            0700
        broker.sock                   0600   what jobs connect to
        broker.sock.leases/           0700   a file for each job (`lease`)
            broker                    0600   locked by the broker that listens
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_SCHEME = "unix:"
# sun_path has 108 bytes, the last one 0.
_MOST_PATH_BYTES = 107


class SocketRefused(RuntimeError):
    """A socket or its folder that others could have put there, or reach; the text says which."""


def default_path() -> Path:
    """Of this user's broker, if it was given no other."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime) and os.path.isdir(runtime):
        return Path(runtime) / "tfswap" / "broker.sock"
    return Path(f"/tmp/tfswap-{os.getuid()}") / "broker.sock"


def parse_path(broker: bool | str | os.PathLike[str]) -> Path:
    """The socket that an option names.

    Args:
        broker: True for the default one; a path, with or without ``unix:`` before it.

    Raises:
        ValueError: It names none, or is longer than sockets' paths may be.
    """
    if broker is True:
        return default_path()
    text = os.fspath(broker) if isinstance(broker, (str, os.PathLike)) else ""
    text = text.removeprefix(_SCHEME)
    if not text or "\0" in text:
        raise ValueError(
            f"broker is {broker!r}; it must be the path of a broker's socket, True for the default "
            f"one ({default_path()}), or None"
        )
    path = Path(os.path.abspath(text))
    if len(os.fsencode(path)) > _MOST_PATH_BYTES:
        raise ValueError(
            f"broker: a socket's path has at most {_MOST_PATH_BYTES} bytes, and {path} has "
            f"{len(os.fsencode(path))}: give a shorter one"
        )
    return path


def leases_of(socket: Path) -> Path:
    """The folder of a broker's leases."""
    return socket.with_name(socket.name + ".leases")


def make_private_folder(folder: Path) -> None:
    """Makes a folder for this user alone, or checks that it is one.

    Raises:
        SocketRefused: It is there, and is not.
    """
    try:
        os.makedirs(folder.parent, exist_ok=True)
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise SocketRefused(f"{folder} cannot be made: {error.strerror}") from None
    check_private_folder(folder)


def check_private_folder(folder: Path) -> None:
    """Refuses a folder in which others could put things.

    Raises:
        SocketRefused: It is one.
    """
    try:
        found = os.lstat(folder)
    except OSError as error:
        raise SocketRefused(f"{folder} is not there: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise SocketRefused(f"{folder} is no folder")
    _check_owner(folder, found)
    if found.st_mode & 0o077:
        raise SocketRefused(
            f"the folder {folder} is open to others (mode {stat.S_IMODE(found.st_mode):04o}): a "
            f"broker's must be of mode 0700. Name a socket in one of its own, such as "
            f"{folder / 'tfswap' / 'broker.sock'}"
        )


def check_socket(socket: Path) -> None:
    """Refuses a socket that is not this user's alone.

    Raises:
        SocketRefused: It is not, or there is none.
    """
    check_private_folder(socket.parent)
    try:
        found = os.lstat(socket)
    except OSError:
        raise SocketRefused(
            f"there is no broker at {socket}: start one with `tfswap broker --socket {socket}`"
        ) from None
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketRefused(f"{socket} is no socket")
    _check_owner(socket, found)
    if found.st_mode & 0o077:
        raise SocketRefused(
            f"the socket {socket} is open to others (mode {stat.S_IMODE(found.st_mode):04o}); a "
            "broker's has mode 0600"
        )


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.getuid():
        raise SocketRefused(
            f"{path} belongs to user {found.st_uid}, and this process to {os.getuid()}: a broker "
            "serves its own user's jobs only"
        )
