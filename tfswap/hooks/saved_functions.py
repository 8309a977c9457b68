"""Bind functions of SavedModels, while they are loaded, to a caller with a budget."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from tfswap.hooks import function_calls
from tfswap.hooks.function_calls import Caller


class ModelCaller(Caller, Protocol):
    """Calls the functions of one model."""

    def end_with(self, function: Any) -> None:
        """End when the last of these functions is destroyed."""


def install(caller_of: Callable[[str], ModelCaller | None]) -> None:
    """Call a function for each model that is loaded.

    Args:
        caller_of: Maps a model's folder to the caller of its functions; None for no caller.
    """
    from tensorflow.python.saved_model.load import Loader

    def binding(recreate: Any) -> Any:
        @functools.wraps(recreate)
        def recreated(self: Any, *arguments: Any, **named: Any) -> Any:
            found = recreate(self, *arguments, **named)
            if not hasattr(self, "_tfswap_caller"):
                folder = self._export_dir
                self._tfswap_caller = caller_of(
                    folder.decode() if isinstance(folder, bytes) else folder
                )
            caller: ModelCaller | None = self._tfswap_caller
            if caller is not None:
                function_calls.bind(found[0], caller)
                caller.end_with(found[0])
            return found

        return recreated

    for name in ("_recreate_function", "_recreate_bare_concrete_function"):
        setattr(Loader, name, binding(getattr(Loader, name)))
