"""tfswap: train Keras models inside a hard cap on device memory, with the same numbers."""

from tfswap.ops import library as _library
from tfswap.ops.library import LibraryError

try:
    _library.load()
except LibraryError:
    pass  # AutoSwap, status() and `tfswap doctor` say why and what to do.

from tfswap.auto_swap import AutoSwap
from tfswap.plan import SwapPlan
from tfswap.planners.decision import BudgetTooSmall
from tfswap.status import memory_stats, reset_memory_stats, set_budget, status

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
