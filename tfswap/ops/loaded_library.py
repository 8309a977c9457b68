"""The type of the loaded library, and the error that it raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfswap._runtime import Library
else:
    # Only `tfswap.ops.library.load` may import the module: it loads libtfswap.so.
    Library = Any

__all__ = ["Library", "LibraryError"]


class LibraryError(RuntimeError):
    """libtfswap cannot do this in this process; the message says why and what to do."""
