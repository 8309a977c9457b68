"""What `import tfswap` does: load the library, and add tfswap's options to TensorFlow's."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

_NEEDS_LINUX = "tfswap needs Linux with TensorFlow"
_WSL2 = f"{_NEEDS_LINUX}: on Windows, install both in WSL2 (`wsl --install`)."
_ELSEWHERE = f"{_NEEDS_LINUX}: use a Linux machine or a Linux container."


def why_not_here() -> str:
    """Return in one line why tfswap cannot be imported here; "" if it can."""
    if sys.platform != "linux":
        return _WSL2 if sys.platform in ("win32", "cygwin") else _ELSEWHERE
    if find_spec("tfswap._core") is None:
        return (
            f"tfswap is not built in {Path(__file__).parent} for Python "
            f"{sys.version_info.major}.{sys.version_info.minor}: run `make build` in its source "
            "tree, or install it (`pip install .`) and start Python in another folder."
        )
    return ""


def is_command() -> bool:
    """Return whether this process is the command ``tfswap``, or ``python -m tfswap``.

    Most commands need no TensorFlow, which takes seconds to import; the others call `activate`.
    """
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # what Python sets while it looks for the module
        return ("-m", "tfswap") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return Path(program).name in ("tfswap", "tfswap.exe") and Path(program).is_file()


@functools.cache
def activate() -> None:
    """Register devices, ops and graph pass, and set the options of the environment.

    Has to come before TensorFlow's first operation. Calling it again has no effect.
    """
    from tfswap.ops import library
    from tfswap.ops.loaded_library import LibraryError

    # AutoSwap, status() and `tfswap doctor` report the problem and the remedy.
    with contextlib.suppress(LibraryError):
        library.load()

    from tfswap import options, saved_model

    from_environment = options.from_environment()
    problem = library.problem()
    if problem is None:
        options.install()
        saved_model.install()
        if from_environment:
            options.set(**from_environment)
    elif from_environment:
        warnings.warn(
            f"tfswap: options in environment variables have no effect: {problem}", stacklevel=3
        )
