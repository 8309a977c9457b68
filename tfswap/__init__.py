"""tfswap: train Keras models inside a hard cap on device memory, with the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfswap.ops import library as _library
from tfswap.ops.library import LibraryError

try:
    _library.load()
except LibraryError:
    pass  # AutoSwap, status() and `tfswap doctor` say why and what to do.

from tfswap.plan import SwapPlan
from tfswap.planners.decision import BudgetTooSmall
from tfswap.state import memory_stats, reset_memory_stats, set_budget, status

if TYPE_CHECKING:
    from tfswap.auto_swap import AutoSwap

__version__ = "0.1.0"

__all__ = [
    "AutoSwap",
    "BudgetTooSmall",
    "LibraryError",
    "SwapPlan",
    "memory_stats",
    "reset_memory_stats",
    "set_budget",
    "status",
]


def __getattr__(name: str) -> Any:
    # AutoSwap is a Keras callback; without Keras `tfswap doctor` must still work.
    if name != "AutoSwap":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfswap.auto_swap import AutoSwap

    globals()[name] = AutoSwap
    return AutoSwap
