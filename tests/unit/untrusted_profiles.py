"""Changed copies of a valid profile, as untrusted input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import inputs
import numpy as np

Arrays = dict[str, np.ndarray]


def changed_profile(path: Path, change: Callable[[Arrays], object]) -> Path:
    with np.load(inputs.CORPUS / "profile" / "good") as archive:
        arrays = dict(archive)
    change(arrays)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path
