"""tfswap: train TensorFlow models within a hard device memory budget, with the same results."""

from __future__ import annotations

import warnings as _warnings
from typing import TYPE_CHECKING, Any

from tfswap.ops import library as _library
from tfswap.ops.loaded_library import LibraryError

try:
    _library.load()
except LibraryError:
    pass  # AutoSwap, status() and `tfswap doctor` report the reason and the remedy.

from tfswap import options, saved_model
from tfswap._version import __version__
from tfswap.function import Session, swap
from tfswap.jobs.job import BrokerError
from tfswap.jobs.share import Share
from tfswap.plan.schema import SwapPlan
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.state import memory_stats, reset_memory_stats, set_budget, status

if TYPE_CHECKING:
    from tfswap.auto_swap import AutoSwap

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


def _install_options() -> None:
    """Add tfswap's options to TensorFlow's, and set those of the environment."""
    from_environment = options.from_environment()
    if _library.problem() is None:
        options.install()
        saved_model.install()
        if from_environment:
            options.set(**from_environment)
    elif from_environment:
        _warnings.warn(
            f"tfswap: options in environment variables have no effect: {_library.problem()}",
            stacklevel=2,
        )


_install_options()


def __getattr__(name: str) -> Any:
    # AutoSwap needs Keras; `tfswap doctor` must work without it.
    if name != "AutoSwap":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfswap.auto_swap import AutoSwap

    globals()[name] = AutoSwap
    return AutoSwap
