"""Keras's training function while `AutoSwap` is in force: not compiled by XLA, and watched."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any


class TrainingFunction:
    """The function that a model runs for each call of a step; `restore` takes all changes back."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._xla_was_on = False
        self._inner: Any = None
        self._guarded: Any = None

    def turn_xla_off(self) -> bool:
        """Has the model's steps run op by op; says whether XLA was on."""
        if not self._model.jit_compile:
            return False
        self._xla_was_on = True
        self._model.jit_compile = False
        self._model.make_train_function(force=True)
        return True

    def guard(self, failed: Callable[[BaseException], None], ended: Callable[[], None]) -> None:
        """Has an exception in a step known at once.

        Keras calls no callback when `fit` fails. An exception that comes from elsewhere (data,
        another callback) ends the life of `fit`'s list of callbacks, which is watched too.

        Args:
            failed: Called with a step's exception, before it goes on.
            ended: Called when the list is gone.
        """
        import tensorflow as tf

        inner = self._model.train_function
        self._inner = inner

        def train_function(iterator: Any) -> Any:
            try:
                return inner(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                raise
            except BaseException as error:
                failed(error)
                raise

        self._guarded = train_function
        self._model.train_function = train_function
        frame: FrameType | None = sys._getframe()
        for _ in range(7):
            frame = None if frame is None else frame.f_back
            if frame is None:
                return
            owner = frame.f_locals.get("self")
            if type(owner).__name__ == "CallbackList":
                weakref.finalize(owner, ended)
                return

    def restore(self) -> None:
        """Gives the model back as it was; harmless when called again."""
        if self._guarded is not None and self._model.train_function is self._guarded:
            self._model.train_function = None if self._xla_was_on else self._inner
        self._guarded = None
        if self._xla_was_on:
            self._model.jit_compile = True
            self._xla_was_on = False
