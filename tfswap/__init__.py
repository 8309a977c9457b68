"""tfswap: train TensorFlow models within a hard device memory budget, with the same results."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from tfswap import activation as _activation
from tfswap._version import __version__

if TYPE_CHECKING:
    from tfswap import options, saved_model
    from tfswap.auto_swap import AutoSwap
    from tfswap.function import Session, swap
    from tfswap.jobs.job import BrokerError
    from tfswap.jobs.share import Share
    from tfswap.ops.loaded_library import LibraryError
    from tfswap.plan.schema import SwapPlan
    from tfswap.planning.planners.decision import BudgetTooSmall
    from tfswap.state import memory_stats, reset_memory_stats, set_budget, status

__all__ = [
    "AutoSwap",
    "BrokerError",
    "BudgetTooSmall",
    "LibraryError",
    "Session",
    "Share",
    "SwapPlan",
    "memory_stats",
    "options",
    "reset_memory_stats",
    "saved_model",
    "set_budget",
    "status",
    "swap",
    "__version__",
]

# AutoSwap, which needs Keras, and in commands all of them are imported when they are first used.
_MODULES = {
    "AutoSwap": "tfswap.auto_swap",
    "BrokerError": "tfswap.jobs.job",
    "BudgetTooSmall": "tfswap.planning.planners.decision",
    "LibraryError": "tfswap.ops.loaded_library",
    "Session": "tfswap.function",
    "Share": "tfswap.jobs.share",
    "SwapPlan": "tfswap.plan.schema",
    "memory_stats": "tfswap.state",
    "reset_memory_stats": "tfswap.state",
    "set_budget": "tfswap.state",
    "status": "tfswap.state",
    "swap": "tfswap.function",
}


def __getattr__(name: str) -> Any:
    if name in ("options", "saved_model"):
        return _import_module(f"tfswap.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_MODULES[name]), name)
    return value


if not _activation.is_command():
    if _problem := _activation.why_not_here():
        raise ImportError(_problem)
    _activation.activate()
    for _name in _MODULES.keys() - {"AutoSwap"}:
        __getattr__(_name)
