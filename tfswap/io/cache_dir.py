"""The folder in which tfswap caches plans and measurements of this machine."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Return ``$XDG_CACHE_HOME/tfswap``, or ``~/.cache/tfswap``, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfswap"
