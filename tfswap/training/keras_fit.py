"""A Keras model's `fit` under a budget: its function not compiled by XLA, and watched."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

import keras

from tfswap.report.summary import Report
from tfswap.swap_options import SwapOptions
from tfswap.training.swap_run import SwapRun
from tfswap.training.swap_session import SwapSession
from tfswap.training.voice import Voice


def _count_layers(model: Any) -> int:
    """Those of models inside of it too, and of layers inside of layers those with variables."""

    def paths(outer: Any) -> Iterator[str]:
        for layer in outer.layers:
            yield layer.path or layer.name
            if hasattr(layer, "layers"):
                yield from paths(layer)

    owners = (variable.path.rpartition("/")[0] for variable in model.variables)
    return len({*paths(model), *owners})


class KerasFit:
    """One `fit` of a model under `AutoSwap`; `end` takes everything back.

    Args:
        options: Of the callback.
        model: The model.
        epochs: Where `fit` counts to; None: not known.

    Attributes:
        run: The training; None where there is none.
        report: Of it.
    """

    def __init__(self, options: SwapOptions, model: Any, epochs: int | None) -> None:
        self._options = options
        self._model = model
        self._epochs = epochs
        self._taken = ExitStack()  # what is to be given back
        self._xla_was_on = False
        self._inner: Any = None
        self._guarded: Any = None
        self.run: SwapRun | None = None
        self.report = Report()
        self._voice = Voice(self.report.notes, options.says)

    def begin(self) -> None:
        """Takes hold of devices and model; the first steps run under lazy swaps.

        Raises:
            ValueError: Keras does not run on TensorFlow; the budget or plan cannot be used.
            LibraryError: The device is not tfswap's, or there can be no file.
            DeviceBusy: Another training has the devices.
        """
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"tfswap.AutoSwap needs Keras on TensorFlow, and this process runs it on "
                f"{keras.backend.backend()!r}: set KERAS_BACKEND=tensorflow"
            )
        if self._model.run_eagerly:
            self._voice.warn(
                "the model runs eagerly (run_eagerly=True), so there is no graph to insert swaps "
                "into: AutoSwap has no effect and the budget is not enforced. Compile without "
                "run_eagerly."
            )
            return
        try:
            self._begin()
        except BaseException:
            self.end()
            raise

    def _begin(self) -> None:
        session = SwapSession(self._options, self._voice)
        self._taken.callback(self._restore)
        self._turn_xla_off()
        self._taken.callback(session.end)
        session.begin(_count_layers(self._model))
        run = SwapRun(
            session,
            self._model,
            self._voice,
            self.report,
            plan=self._options.plan,
            steps_a_call=max(int(self._model.steps_per_execution), 1),
            epochs=self._epochs,
        )
        self._taken.callback(run.end)
        run.begin()
        self._guard()
        self.run = run

    def finish(self) -> None:
        """The normal end of `fit`."""
        if self.run is not None:
            self.run.finish()
        self.end()

    def end(self) -> None:
        """Takes everything back; harmless when called again."""
        self._taken.close()

    def _turn_xla_off(self) -> None:
        """Has the model's steps run op by op."""
        if not self._model.jit_compile:
            return
        self._xla_was_on = True
        self._model.jit_compile = False
        self._model.make_train_function(force=True)
        self._voice.note(
            "XLA is off for this training: a step compiled by XLA is one opaque op, and "
            "nothing can be moved inside it"
        )

    def _guard(self) -> None:
        """Has an exception in a step known at once.

        Keras calls no callback when `fit` fails. An exception that comes from elsewhere (data,
        another callback) ends the life of `fit`'s list of callbacks, which is watched too.
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
                self._step_failed(error)
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
                weakref.finalize(owner, self.end)
                return

    def _step_failed(self, error: BaseException) -> None:
        assert self.run is not None
        self.run.step_failed(error)
        self.end()

    def _restore(self) -> None:
        """Gives the model back as it was."""
        if self._guarded is not None and self._model.train_function is self._guarded:
            self._model.train_function = None if self._xla_was_on else self._inner
        self._guarded = None
        if self._xla_was_on:
            self._model.jit_compile = True
            self._xla_was_on = False
