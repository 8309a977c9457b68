"""The PYTHONPATH of processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path


def python_path(*folders: Path) -> str:
    """Return folders before those of this process, which may have another TensorFlow."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [*map(str, folders), given]))
