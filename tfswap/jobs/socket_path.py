"""The broker's socket, which only its owner can access, and the files beside it.

::

    /run/user/1000/tfswap/            0700
        broker.sock                   0600   jobs connect to it
        broker.sock.leases/           0700   one file per job (`lease`)
            broker                    0600   locked by the running broker
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_SCHEME = "unix:"
# sun_path has 108 bytes, including the final 0.
_MAX_PATH_BYTES = 107


class SocketRefused(RuntimeError):
    """A socket, or a folder of it, that another user controls or can access."""


def default_path() -> Path:
    """Return the default path of this user's broker."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime) and os.path.isdir(runtime):
        return Path(runtime) / "tfswap" / "broker.sock"
    return Path(f"/tmp/tfswap-{os.getuid()}") / "broker.sock"


def parse_path(broker: bool | str | os.PathLike[str]) -> Path:
    """Return the path of the socket in an option.

    Args:
        broker: True for the default path, or a path with or without the prefix ``unix:``.

    Raises:
        ValueError: The value is not a path, or the path is too long for a socket.
    """
    if broker is True:
        return default_path()
    text = os.fspath(broker) if isinstance(broker, (str, os.PathLike)) else ""
    text = text.removeprefix(_SCHEME)
    if not text or "\0" in text:
        raise ValueError(
            f"broker is {broker!r}; it must be the path of a broker's socket, True for the default "
            f"path ({default_path()}), or None"
        )
    path = Path(os.path.abspath(text))
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ValueError(
            f"broker: a socket's path has at most {_MAX_PATH_BYTES} bytes, and {path} has "
            f"{len(os.fsencode(path))}: use a shorter path"
        )
    return path


def leases_of(socket: Path) -> Path:
    """Return the folder of a broker's leases."""
    return socket.with_name(socket.name + ".leases")


def make_private_folder(folder: Path) -> None:
    """Create a private folder, or check that an existing one is private.

    Raises:
        SocketRefused: The folder is not private, or cannot be created.
    """
    try:
        os.makedirs(folder.parent, exist_ok=True)
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise SocketRefused(f"{folder} cannot be created: {error.strerror}") from None
    check_private_folder(folder)


def check_private_folder(folder: Path) -> None:
    """Check that no other user can access a folder.

    Raises:
        SocketRefused: Another user can, or it is not a folder.
    """
    try:
        status = os.lstat(folder)
    except OSError as error:
        raise SocketRefused(f"{folder} does not exist: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise SocketRefused(f"{folder} is not a folder")
    _check_owner(folder, status)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise SocketRefused(
            f"the folder {folder} is open to other users (mode {mode:04o}): the folder of a "
            f"broker must have mode 0700. Put the socket into a new folder, such as "
            f"{folder / 'tfswap' / 'broker.sock'}"
        )


def check_socket(socket: Path) -> None:
    """Check that a socket exists and that no other user can access it.

    Raises:
        SocketRefused: Another user can, or it does not exist.
    """
    check_private_folder(socket.parent)
    try:
        status = os.lstat(socket)
    except OSError:
        raise SocketRefused(
            f"there is no broker at {socket}: start one with `tfswap broker --socket {socket}`"
        ) from None
    if not stat.S_ISSOCK(status.st_mode):
        raise SocketRefused(f"{socket} is not a socket")
    _check_owner(socket, status)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise SocketRefused(
            f"the socket {socket} is open to other users (mode {mode:04o}); a broker's socket has "
            "mode 0600"
        )


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.getuid():
        raise SocketRefused(
            f"{path} belongs to user {status.st_uid}, and this process to {os.getuid()}: a broker "
            "serves only jobs of its own user"
        )
