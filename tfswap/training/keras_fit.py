"""KerasFit: run a Keras model's `fit` under a budget."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import keras

from tfswap.cost_model.model_floor import model_floor
from tfswap.devices.model_bytes import ModelBytes
from tfswap.devices.swap_options import NO_XLA, SwapOptions
from tfswap.devices.swap_session import SwapSession
from tfswap.hooks import eager
from tfswap.hooks.batch_limit import most_examples
from tfswap.hooks.compiled_step import CompiledStep, set_jit_compile
from tfswap.hooks.defer_sigint import defer_sigint
from tfswap.hooks.keras_frames import FitCall, batches_of_fit, find_fit
from tfswap.hooks.static_step import (
    StaticStep,
    examples_of,
    sizes_are_unknown,
    why_not_static,
    without_optionals,
)
from tfswap.report.summary import Report
from tfswap.report.training_log import TrainingLog
from tfswap.step.op_floor import StepFloor
from tfswap.training.run import TrainingRun


def _count_layers(model: Any) -> int:
    """Count a model's layers, including nested models' layers and nested layers with variables."""

    def paths(outer: Any) -> Iterator[str]:
        for layer in getattr(outer, "layers", ()):  # a trainer that is one layer has none
            yield layer.path or layer.name
            yield from paths(layer)

    owners = (variable.path.rpartition("/")[0] for variable in model.variables)
    return len({*paths(model), *owners})


def _variable_bytes(model: Any) -> int:
    """Return the size of a model's variables and of its optimizer's."""
    import tensorflow as tf

    variables = [*model.variables, *getattr(model.optimizer, "variables", ())]
    return sum(
        tf.as_dtype(variable.dtype).size * math.prod(variable.shape) for variable in variables
    )


def _dequantized_bytes(model: Any) -> int:
    """Return the most bytes that a step makes of quantized weights: two float32 of each byte."""
    quantized = (variable for variable in model.variables if variable.dtype == "int8")
    return sum(2 * 4 * math.prod(variable.shape) for variable in quantized)


def _largest_output_bytes(model: Any, examples: int) -> int:
    """Return the size of the largest output of a model's layers for a batch; 0: unknown."""
    import tensorflow as tf

    largest = 0
    for layer in getattr(model, "layers", ()):
        try:
            outputs = tf.nest.flatten(layer.output)
        except (AttributeError, ValueError):  # called in code, not to make a graph of layers
            outputs = []
        for output in filter(keras.backend.is_keras_tensor, outputs):
            first, *rest = output.shape or (1,)
            shape = [first or examples, *rest]
            if None not in shape:
                largest = max(largest, tf.as_dtype(output.dtype).size * math.prod(shape))
        largest = max(largest, _largest_output_bytes(layer, examples))
    return largest


def _shortage(reason: str) -> str:
    """Return the essence of an out-of-memory error."""
    found = re.search("asks for .* while .* in use", reason)
    return found[0] if found else reason


class KerasFit:
    """Run one `fit` of a model under `AutoSwap`.

    Args:
        options: Options of the callback.
        model: The Keras model.
        epochs: The `epochs` of `fit`; None if unknown.

    Attributes:
        run: The training; None before `begin` and for a model that runs eagerly.
        report: The report of the training.
    """

    def __init__(self, options: SwapOptions, model: Any, epochs: int | None) -> None:
        self._options = options
        self._model = model
        self._epochs = epochs
        self._cleanup = ExitStack()  # restores model and devices
        self._compiled_functions: dict[str, Any] | None = None  # set while XLA is off
        self._compiled_step: CompiledStep | None = None  # set while XLA is on
        self._inner: Any = None
        self._guarded: Any = None
        self._splits_batches = options.wants_sections
        self._static_step: StaticStep | None = None
        self._fit: FitCall | None = None
        self._examples = 0  # the most of a batch; 0: unknown
        self._others_bytes = 0  # on the device beside the model when training began
        self.run: TrainingRun | None = None
        self.report = Report()
        self._log = TrainingLog(self.report.notes, options.prints_progress)

    def begin(self) -> None:
        """Acquire the devices and wrap the model's functions; the first steps swap on demand.

        Raises:
            ValueError: Keras does not run on TensorFlow; the budget or plan cannot be used.
            LibraryError: tfswap does not manage the device, or the spill file cannot be made.
            DeviceBusy: Another training has the devices.
        """
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"tfswap.AutoSwap needs Keras on TensorFlow, and this process runs it on "
                f"{keras.backend.backend()!r}: set KERAS_BACKEND=tensorflow"
            )
        if self._model.run_eagerly:
            self._log.warn(
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
        if self._splits_batches and self._model.steps_per_execution > 1:
            self._warn_of_whole_batches("loops (steps_per_execution of more than 1) are not split")
        session = SwapSession(self._options, self._log, on_release=self.end, is_over=self._is_over)
        self._cleanup.callback(self._restore)
        self._cleanup.callback(session.end)
        if self._options.broker is not None or self._options.stream_weights:
            self._build_optimizer()
        self._examples = most_examples(batches_of_fit(self._model))
        size = ModelBytes(
            _variable_bytes(self._model),
            _dequantized_bytes(self._model),
            _largest_output_bytes(self._model, self._examples),
        )
        session.begin(_count_layers(self._model), size)
        self._others_bytes = session.devices.others_bytes(size.variables)
        if self._model.jit_compile:
            self._decide_on_xla(session.devices.on_cpu)
        run = TrainingRun(
            session,
            self._model,
            self._log,
            self.report,
            plan=self._options.plan,
            steps_a_call=max(int(self._model.steps_per_execution), 1),
            epochs=self._epochs,
            splits=self._splits_batches,
            examples=self._examples,
            compiled=self._compiled_step is not None,
        )
        self._cleanup.callback(run.end)
        run.begin()
        self.run = run
        self._guard()

    def _build_optimizer(self) -> None:
        """Make the optimizer's variables, so that they count for the share and for their size.

        A step that makes them lets all of one size share one value, which cannot leave.
        """
        model = self._model
        if model.built and not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)

    def finish(self) -> None:
        """End the training after a `fit` that has not failed."""
        if self.run is not None:
            self.run.finish()
        self.end()

    def end(self) -> None:
        """Restore the model and release the devices. Further calls have no effect."""
        with defer_sigint():
            self._cleanup.close()

    def _decide_on_xla(self, on_cpu: bool) -> None:
        """Begin under XLA, or make the model's steps run without it."""
        why_not = self._why_not_xla(on_cpu)
        if not why_not:
            self._compiled_step = CompiledStep.of_training(self._model)
            return
        names = ("train_function", "test_function", "predict_function")
        self._compiled_functions = {name: getattr(self._model, name) for name in names}
        set_jit_compile(self._model, False)
        for name in names:
            setattr(self._model, name, None)  # Keras makes it again
        self._model.make_train_function()
        self._log.note(
            f"XLA is off for this training ({why_not}): a step compiled by XLA is one opaque op, "
            "and nothing can be moved inside it"
        )

    def _why_not_xla(self, on_cpu: bool) -> str:
        """Return why the training cannot begin under XLA; "" if it can."""
        options = self._options
        if options.xla == NO_XLA:
            return f"xla={NO_XLA!r}"
        if not on_cpu:
            return "on a GPU, XLA's memory does not come from tfswap's allocator"
        for name in ("plan", "save_profile"):
            if getattr(options, name) is not None:
                return f"{name} is of steps without XLA"
        if self._splits_batches:
            return "the batch is split into sections"
        if self._model.steps_per_execution > 1:
            return "steps_per_execution is more than 1"
        return why_not_static(self._model)

    def _xla_refused(self, reason: str) -> None:
        """Go on op by op with this step."""
        assert self.run is not None
        self._log.note(
            f"XLA got too little memory ({_shortage(reason)}): training goes on op by op, with "
            "swaps, from this batch on"
        )
        self.run.leave_xla()

    def _xla_refused_validation(self, reason: str) -> None:
        self._log.note(
            f"XLA got too little memory ({_shortage(reason)}): validation goes on op by op"
        )

    def _guard(self) -> None:
        """Wrap the training function, so that an exception in a step ends the training at once.

        Keras calls no callback when `fit` fails. After an exception elsewhere (in the data, or in
        another callback), `fit`'s list of callbacks is destroyed, which ends the training as well.
        If the exception, and with it the frames, is kept, the next training checks `_is_over`.
        """
        import tensorflow as tf

        inner = self._model.train_function
        self._inner = inner
        if self._compiled_step is not None:
            self._cleanup.enter_context(self._compiled_step.use(self._xla_refused))

        def train_function(iterator: Any) -> Any:
            try:
                return self._train(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                raise
            except BaseException as error:
                explained = self._step_failed(error, iterator)
                if explained is error:
                    raise
                raise explained.with_traceback(error.__traceback__) from None

        self._guarded = train_function
        self._model.train_function = train_function
        self._guard_validation()
        self._fit = find_fit(self._model, self.end)

    def _is_over(self) -> bool:
        """Return whether `fit` has ended without calling `end`; False where that is unknown."""
        return self._fit is not None and not self._fit.is_running()

    def _train(self, iterator: Any) -> Any:
        """Call the training function: under XLA, or with sections on a batch of known size."""
        if self._compiled_step is not None:
            return self._compiled_step(iterator)
        if not self._splits_batches or not self._sizes_are_unknown(iterator):
            return self._inner(iterator)
        if self._static_step is not None:
            return self._static_step(self._static_step.batch_of(iterator))
        assert self.run is not None
        problem = why_not_static(self._model)
        if problem:
            self._warn_of_whole_batches(
                f"the size of batches is not known before the step, and {problem}. Give all "
                "batches one size: dataset.batch(size, drop_remainder=True)"
            )
            self.run.leave_whole()
            return self._inner(iterator)
        model = self._model
        step = StaticStep.of(model, model.train_step, self._inner, self._log.warn)
        self._static_step = step
        data = step.batch_of(iterator)
        self.run.expect_batch(examples_of(data))
        return step(data)

    def _sizes_are_unknown(self, iterator: Any) -> bool:
        replicas = self._model.distribute_strategy.num_replicas_in_sync
        return sizes_are_unknown(iterator, replicas)

    def _guard_validation(self) -> None:
        """Make validation lose no batch under XLA, and use sections: its layers are as large."""
        model = self._model
        if self._compiled_step is not None:
            compiled = CompiledStep.of_validation(model)
            self._cleanup.enter_context(compiled.use(self._xla_refused_validation))
            self._replace_test_function(model.test_function, compiled)
        elif self._splits_batches and not why_not_static(model):
            before = model.test_function
            model.make_test_function()
            inner = model.test_function
            step = StaticStep.of(model, model.test_step, inner, self._log.warn)

            def test_function(iterator: Any) -> Any:
                if not self._splits_batches or not self._sizes_are_unknown(iterator):
                    return inner(iterator)
                return step(step.batch_of(iterator))

            self._replace_test_function(before, test_function)

    def _replace_test_function(self, before: Any, function: Any) -> None:
        model = self._model
        model.test_function = function

        def restore() -> None:
            if model.test_function is function:
                model.test_function = before

        self._cleanup.callback(restore)

    def _warn_of_whole_batches(self, why: str) -> None:
        self._splits_batches = False
        self._log.warn(f"sections={self._options.sections!r} has no effect: {why}.")

    def _step_failed(self, error: BaseException, iterator: Any) -> BaseException:
        """End the training; return the error, with the floor of the step if memory ran out."""
        assert self.run is not None
        self.end()  # finding the floor may need memory
        return self.run.step_failed(error, functools.partial(self._floor, iterator))

    def _floor(self, iterator: Any, min_bytes: int) -> StepFloor:
        """Return the floor of a step on batches of an iterator.

        Raises:
            ValueError: It cannot be known without a recording.
        """
        import tensorflow as tf

        if not isinstance(iterator, tf.data.Iterator):
            raise ValueError("batches are split among replicas")
        spec = without_optionals(iterator.element_spec)
        if isinstance(spec, tuple):
            spec = tuple(each for each in spec if each is not None)
        examples = self._examples or tf.nest.flatten(spec)[0].shape[0] or 0
        other_variable_bytes = max(0, eager.variable_bytes() - _variable_bytes(self._model))
        others_bytes = (self._others_bytes, other_variable_bytes)
        return model_floor(self._model, spec, examples, min_bytes, *others_bytes)

    def _restore(self) -> None:
        """Restore the model."""
        if self._guarded is not None and self._model.train_function is self._guarded:
            self._model.train_function = self._inner
        self._guarded = None
        self._static_step = self._compiled_step = None
        if self._compiled_functions is not None:
            set_jit_compile(self._model, True)
            for name, function in self._compiled_functions.items():
                setattr(self._model, name, function)
            self._compiled_functions = None
