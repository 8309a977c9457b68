"""The simulated GPU's nvCOMP (`fake_cuda/fake_nvcomp.cc`), in this process and in others."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fake_cuda.build import NVCOMP


def _gpu() -> Path | None:
    folders = map(Path, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    return next((folder for folder in folders if (folder / NVCOMP).exists()), None)


def library() -> Path | None:
    """Return its path; None on a real GPU."""
    gpu = _gpu()
    return gpu and gpu / NVCOMP


def there(**environment: str) -> dict[str, str]:
    """Return the environment of a process in which its wheel seems to be installed."""
    gpu = _gpu()
    paths = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    wheel = [str(gpu / NVCOMP.parts[0])] if gpu else []
    return {"PYTHONPATH": os.pathsep.join([*wheel, *paths]), **environment}


def not_there() -> dict[str, str]:
    """Return the environment of a process in which it is not installed."""
    return {}


@contextmanager
def failing(how: str) -> Iterator[None]:
    """Make it fail in this process, in one of the ways that its source lists."""
    own = ctypes.CDLL(str(library()))
    own.fake_nvcomp_fault(how.encode())
    try:
        yield
    finally:
        own.fake_nvcomp_fault(b"")
