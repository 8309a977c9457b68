"""nvCOMP, NVIDIA's library of codecs: where it is, and what to install where it is not.

Nothing of it is imported: its shared library is opened by ``cc/gpu/nvcomp``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path

NAMES = ("lz4", "ans")
"""Codecs of nvCOMP's that a GPU may have."""

INSTALL = (
    "nvCOMP is not installed: pip install nvidia-nvcomp-cu12 (or nvidia-nvcomp-cu13, for a driver "
    "of CUDA 13)"
)

WORKSPACE_BYTES = 64 << 20
"""Of a GPU's memory, for nvCOMP to work in, where the budget is large."""
_PART_OF_BUDGET = 32
_LEAST_BYTES = 1 << 20  # some sections at once

# In a package `nvidia`, as NVIDIA's wheels of 5.1 and later have it, and of 5.0.
_PLACES = ("libnvcomp/lib64", "libnvcomp/lib", "nvcomp")
_LIBRARY = "libnvcomp.so"
# By which the system's loader may find one, newest first.
_NAMES = (f"{_LIBRARY}.6", f"{_LIBRARY}.5", _LIBRARY)


@functools.cache
def find_nvcomp() -> str | None:
    """The library in an installed wheel, else one that the system's loader finds, else None."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for place in _PLACES:
            for path in sorted(Path(folder, place).glob(f"{_LIBRARY}*"), reverse=True):
                return str(path)
    for name in _NAMES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def workspace_bytes(budget_bytes: int) -> int:
    """What nvCOMP works in on a GPU, of a budget of so many bytes."""
    return min(WORKSPACE_BYTES, max(_LEAST_BYTES, budget_bytes // _PART_OF_BUDGET))
