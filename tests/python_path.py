"""What processes of tests find modules in."""

from __future__ import annotations

import os
from pathlib import Path


def python_path(*folders: Path) -> str:
    """Folders before those that this process was given, which may have another TensorFlow."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [*map(str, folders), given]))
