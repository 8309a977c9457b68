"""The folder in which tfswap keeps what it found out on this machine, for later processes."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/tfswap``, or ``~/.cache/tfswap``; nobody has made it yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfswap"
