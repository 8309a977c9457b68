"""nvCOMP, NVIDIA's library of codecs: find it, or say how to install it.

Python does not import it: ``cc/gpu/nvcomp`` opens its shared library.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path

NAMES = ("lz4", "ans")
"""The codecs of nvCOMP that tfswap uses on GPUs."""

INSTALL = (
    "nvCOMP is not installed: pip install nvidia-nvcomp-cu12 (or nvidia-nvcomp-cu13, for a driver "
    "of CUDA 13)"
)

WORKSPACE_BYTES = 64 << 20
"""Maximum size of nvCOMP's workspace in a GPU's memory."""
_BUDGET_PER_WORKSPACE = 32
_MIN_WORKSPACE_BYTES = 1 << 20  # a few sections at once

# Folders in the package `nvidia`: of NVIDIA's wheels of 5.1 and later, and of 5.0.
_FOLDERS = ("libnvcomp/lib64", "libnvcomp/lib", "nvcomp")
_LIBRARY = "libnvcomp.so"
# Names for the system's loader, newest first.
_SONAMES = (f"{_LIBRARY}.6", f"{_LIBRARY}.5", _LIBRARY)


@functools.cache
def find_nvcomp() -> str | None:
    """Return the library in an installed wheel, else one that the system's loader finds."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for subfolder in _FOLDERS:
            for path in sorted(Path(folder, subfolder).glob(f"{_LIBRARY}*"), reverse=True):
                return str(path)
    for name in _SONAMES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def workspace_bytes(budget_bytes: int) -> int:
    """Return the size of nvCOMP's workspace under a GPU's budget."""
    return min(WORKSPACE_BYTES, max(_MIN_WORKSPACE_BYTES, budget_bytes // _BUDGET_PER_WORKSPACE))
