"""Record a program's results from outside: numbers, weights, and memory.

Keras's and TensorFlow's classes are wrapped: results of the outermost `tf.function`s (losses,
metrics), gradients that optimizers get outside of those, and all weights that optimizers change.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.programs.hooks import wrap

FIT, OP_BY_OP, NO_TRAINING = "fit", "op by op", "no training"
"""Windows: a `fit`; all that is outside of functions; functions that train nothing. Others are
named after a function that trains."""

MemoryStats = Callable[[], dict[str, Any]]


def digest(arrays: Any) -> str:
    """Return a digest of the bytes of arrays, in their order."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(array.tobytes())
    return found.hexdigest()[:16]


def numbers_in(result: Any) -> Iterator[Any]:
    """Return the numeric arrays in a function's result."""
    import tensorflow as tf

    for leaf in tf.nest.flatten(result):
        if isinstance(leaf, tf.experimental.Optional):
            if leaf.has_value():
                yield from numbers_in(leaf.get_value())
        elif isinstance(leaf, tf.RaggedTensor | tf.SparseTensor | tf.IndexedSlices):
            yield from numbers_in(tf.nest.flatten(leaf, expand_composites=True))
        elif isinstance(leaf, tf.Tensor) and (leaf.dtype.is_floating or leaf.dtype.is_integer):
            yield leaf.numpy()


class Recorder:
    """Record one program.

    Args:
        memory: Return `tfswap.memory_stats()`; nothing without tfswap.
        reset_memory: Reset its peaks.

    Attributes:
        numbers: Results, as text with every bit, in order.
        weights: Digests of all weights, after each `fit` and at the end.
        windows: For each `fit`, each other training function, and the rest: name, steps,
            peak_bytes, the bytes that stay on the device between steps (resident_bytes), and
            whether a budget was active at each of them (capped).
        train_s: Time in the trainings among those.
        largest_bytes: The largest tensor in any of them.
        moved_bytes: Swapped bytes in total: bytes_out and bytes_in.
    """

    def __init__(self, memory: MemoryStats, reset_memory: Callable[[], None]) -> None:
        self._memory = memory
        self._forget_memory = reset_memory
        self.numbers: list[str] = []
        self.weights: list[str] = []
        self.windows: list[dict[str, Any]] = []
        self.train_s = 0.0
        self.largest_bytes = 0
        self.moved_bytes = {"bytes_out": 0, "bytes_in": 0}
        self._call: Any = None  # the outermost function
        self._fit: dict[str, Any] | None = None
        self._training: weakref.WeakSet[Any] = weakref.WeakSet()
        self._of_functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._of_rest: dict[str, dict[str, Any]] = {}
        # They stay alive in each run, so that their digest does not depend on garbage collection.
        self._variables: dict[int, Any] = {}

    def install(self) -> None:
        """Start recording, permanently."""
        import keras
        from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

        wrap(Function, "__call__", self._called)
        wrap(keras.optimizers.Optimizer, "apply", self._applied)
        wrap(keras.Model, "fit", self._fitted)

    def finish(self) -> None:
        """Finish when the program has ended."""
        self._reset_memory()
        self._note_weights("end")

    # Wrapped methods.

    def _called(self, call: Any, function: Any, *arguments: Any, **named: Any) -> Any:
        import tensorflow as tf

        if self._call is not None or not tf.executing_eagerly():
            return call(function, *arguments, **named)
        name = str(getattr(function.python_function, "__name__", "function"))
        if self._fit is None:
            self._begin_anew()
        self._call = function
        begun_s = time.perf_counter()
        try:
            result = call(function, *arguments, **named)
        finally:
            self._call = None
        trains = function in self._training
        if self._fit is not None:
            if trains:
                self._step_of(self._fit)
        elif trains:
            self.train_s += time.perf_counter() - begun_s
            if function not in self._of_functions:
                self._of_functions[function] = self._window(name)
            self._step_of(self._of_functions[function])
            self._reset_memory()
        else:
            self._step_of(self._rest(NO_TRAINING))
            self._reset_memory()
        self._note(name, list(numbers_in(result)))
        return result

    def _applied(self, apply: Any, optimizer: Any, grads: Any, *rest: Any, **named: Any) -> Any:
        import tensorflow as tf

        self._remember((rest[0] if rest else named.get("trainable_variables")) or ())
        if tf.executing_eagerly():
            self._step_of(self._rest(OP_BY_OP))
            self._note("gradients", list(numbers_in([g for g in grads if g is not None])))
        elif self._call is not None:
            self._training.add(self._call)
        result = apply(optimizer, grads, *rest, **named)
        self._remember(optimizer.variables)
        return result

    def _fitted(self, fit: Any, model: Any, *arguments: Any, **named: Any) -> Any:
        if self._fit is not None:
            return fit(model, *arguments, **named)
        self._begin_anew()
        self._fit = self._window(FIT)
        begun_s = time.perf_counter()
        try:
            result = fit(model, *arguments, **named)
        finally:
            window, self._fit = self._fit, None
            self._peak_of(window)
            self._reset_memory()
        self.train_s += time.perf_counter() - begun_s
        self._remember((*model.variables, *model.optimizer.variables))
        self._note_weights(FIT)
        return result

    # Records.

    def _window(self, name: str) -> dict[str, Any]:
        window = {"name": name, "steps": 0, "peak_bytes": 0, "resident_bytes": 0, "capped": True}
        self.windows.append(window)
        return window

    def _rest(self, name: str) -> dict[str, Any]:
        if name not in self._of_rest:
            self._of_rest[name] = self._window(name)
        return self._of_rest[name]

    def _begin_anew(self) -> None:
        """Reset what has happened since the last function outside of any."""
        if self.windows:
            self._peak_of(self._rest(OP_BY_OP))
        self._reset_memory()

    def _reset_memory(self) -> None:
        """Reset peaks; counts since the last reset are added up."""
        stats = self._memory()
        for key in self.moved_bytes:
            self.moved_bytes[key] += stats.get(key, 0)
        self._forget_memory()

    def _peak_of(self, window: dict[str, Any]) -> dict[str, Any]:
        """Record the peak since the last reset; return the statistics."""
        stats = self._memory()
        self.largest_bytes = max(self.largest_bytes, stats.get("largest_request_bytes", 0))
        window["peak_bytes"] = max(window["peak_bytes"], stats.get("peak_bytes", 0))
        return stats

    def _step_of(self, window: dict[str, Any]) -> None:
        """Record the bytes in use after a step."""
        stats = self._peak_of(window)
        window["steps"] += 1
        window["resident_bytes"] = max(window["resident_bytes"], stats.get("load_bytes", 0))
        window["capped"] = window["capped"] and stats.get("budget_bytes") is not None

    def _note(self, name: str, arrays: list[Any]) -> None:
        scalars = [float(a).hex() for a in arrays if a.size == 1 and a.dtype.kind == "f"]
        self.numbers.append(" ".join([name, *scalars, digest(arrays)]))

    def _remember(self, variables: Any) -> None:
        for variable in variables:
            self._variables.setdefault(id(variable), variable)

    def _note_weights(self, when: str) -> None:
        arrays = [each.numpy() for each in self._variables.values()]
        self.weights.append(f"{when} {len(arrays)} {digest(arrays)}")
