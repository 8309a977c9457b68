"""Functions of SavedModels, bound to the budget that was saved with them while they are loaded.

One of the users of TensorFlow's private interface (see `plan_session.py`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfswap.hooks import function_calls
from tfswap.training.function_runs import FunctionRuns
from tfswap.training.swap_options import SwapOptions
from tfswap.training.swap_session import SwapSession

OptionsOf = Callable[[str], SwapOptions | None]
"""Of a model's folder; None: it has none."""

_asked: list[OptionsOf] = []  # the last one is


@contextmanager
def options(of: OptionsOf) -> Iterator[None]:
    """Has another one be asked about the models that are loaded meanwhile."""
    _asked.append(of)
    try:
        yield
    finally:
        _asked.remove(of)


def install(of: OptionsOf) -> None:
    """Has every model that is loaded be looked at.

    Args:
        of: Asked for its options. Where it raises ValueError, the model is loaded without them, and
            there is a warning; within `options` it is an error.
    """
    from tensorflow.python.saved_model.load import Loader

    _asked.append(of)

    def binding(recreate: Any) -> Any:
        @functools.wraps(recreate)
        def recreated(self: Any, *arguments: Any, **named: Any) -> Any:
            found = recreate(self, *arguments, **named)
            runs = _runs_of(self)
            if runs is not None:
                function_calls.bind(found[0], runs)
                runs.end_with(found[0])
            return found

        return recreated

    for name in ("_recreate_function", "_recreate_bare_concrete_function"):
        setattr(Loader, name, binding(getattr(Loader, name)))


def _runs_of(loader: Any) -> FunctionRuns | None:
    """One for all functions of a model."""
    if not hasattr(loader, "_tfswap_runs"):
        folder = loader._export_dir
        try:
            found = _asked[-1](folder.decode() if isinstance(folder, bytes) else folder)
        except ValueError as error:
            if len(_asked) > 1:
                raise
            warnings.warn(f"tfswap: the model runs without its plan: {error}", stacklevel=2)
            found = None
        # All weights are read at once, for which an idle budget may have no room.
        SwapSession.let_go_if_idle()
        loader._tfswap_runs = None if found is None else FunctionRuns(found)
    runs: FunctionRuns | None = loader._tfswap_runs
    return runs
