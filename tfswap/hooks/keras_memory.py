"""Hooks that make Keras need less of the device's memory between steps, and two for TensorFlow.

Random initializers run as functions, whose ops reuse one buffer: eagerly, each of their ops (random
numbers, times a standard deviation, plus a mean) has a buffer of the variable's size, and all exist
at once. A value that is larger than the budget is made beside it. And ``predict`` collects its
outputs in NumPy's memory, not on the device.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tfswap.hooks import checkpoint_reads, eager, keras_checkpoints, replica_values
from tfswap.ops import library

# A function is not worth its trace (some 10 ms) for smaller variables.
_MIN_ELEMENTS = 1 << 20
_CPU = 0

# The functions of `evaluate` that were made since the hooks are there.
_op_by_op: weakref.WeakSet[Any] = weakref.WeakSet()
_callers = 0
_undo: list[Callable[[], None]] = []


def begin() -> None:
    """Install the hooks, until `end` was called as often as `begin`."""
    global _callers
    _callers += 1
    if _undo:
        return
    _undo.extend((replica_values.begin(), checkpoint_reads.begin()))
    try:
        import keras
    except ImportError:
        return
    if keras.backend.backend() != "tensorflow":
        return
    from keras.src import backend
    from keras.src.backend.tensorflow import trainer

    _wrap(backend.Variable, "_initialize_with_initializer", _initialized)
    _wrap(trainer.TensorFlowTrainer, "make_predict_function", _made)
    _wrap(trainer.TensorFlowTrainer, "make_test_function", _made_for_tests)
    _wrap(trainer, "potentially_ragged_concat", _concatenated)
    _wrap(trainer, "convert_to_np_if_not_ragged", _as_array)
    for replacement in keras_checkpoints.replacements():
        _wrap(*replacement)


def end() -> None:
    """Remove the hooks if this ends the last use of them."""
    global _callers
    _callers -= 1
    while _undo and _callers == 0:
        _undo.pop()()


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function by ``wrapper(function, ...)``, if this version of Keras has it."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return wrapper(original, *arguments, **named)

    setattr(owner, name, wrapped)
    _undo.append(functools.partial(setattr, owner, name, original))


def _initialized(initialize: Any, variable: Any, initializer: Any) -> None:
    import tensorflow as tf

    repeats = isinstance(getattr(initializer, "seed", 0), int)
    if _reuses_memory(initializer, variable._shape):
        initializer = functools.partial(_as_function, initializer)
    try:
        initialize(variable, initializer)
        return
    except tf.errors.ResourceExhaustedError:
        if not repeats or not library.load().streams_variables(_CPU):
            raise
    # A value that does not fit the budget is made beside it, and leaves at once: its rows may be
    # all that is needed (cc/kernels/row_ops.cc).
    runtime = library.load()
    budget_bytes = runtime.memory_stats(_CPU)["budget_bytes"]
    size_bytes = int(np.prod(variable._shape)) * tf.as_dtype(variable._dtype).size
    runtime.set_budget(_CPU, budget_bytes + size_bytes)
    try:
        initialize(variable, initializer)
        tf.raw_ops.VarIsInitializedOp(resource=variable._value.handle)  # so that it can leave
    finally:
        runtime.set_budget(_CPU, budget_bytes)
        runtime.make_room(_CPU)


def _reuses_memory(initializer: Any, shape: tuple[int, ...]) -> bool:
    """Return whether an initializer has no state, and its ops can pass one buffer on."""
    import keras

    known = keras.initializers
    kinds = (known.RandomNormal, known.TruncatedNormal, known.RandomUniform, known.VarianceScaling)
    is_known = isinstance(initializer, kinds) and type(initializer).__module__.startswith("keras.")
    return bool(is_known and isinstance(initializer.seed, int) and np.prod(shape) >= _MIN_ELEMENTS)


def _as_function(initializer: Any, shape: tuple[int, ...], dtype: Any = None) -> Any:
    import tensorflow as tf

    function = tf.function(lambda: initializer(shape, dtype=dtype), autograph=False)
    with _without_grappler():  # the same ops as without the function
        return function.get_concrete_function().inference_fn()  # no call that a session sees


@contextmanager
def _without_grappler() -> Iterator[None]:
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    eager = context.context()
    before = eager.function_call_options
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    eager.function_call_options = context.FunctionCallOptions(
        executor_type=before.executor_type, config_proto=config
    )
    try:
        yield
    finally:
        eager.function_call_options = before


def _is_dense(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, tf.Tensor) and value.dtype != tf.string


class _OnHost:
    """A model's `predict_function` with outputs in NumPy's memory, while the hooks are wanted."""

    def __init__(self, inner: Callable[[Any], Any]) -> None:
        self._inner = inner

    def __call__(self, data: Any) -> Any:
        from keras import tree

        return tree.map_structure(self._copied, self._inner(data))

    @staticmethod
    def _copied(output: Any) -> Any:
        import tensorflow as tf

        # The model keeps the function when the hooks are gone.
        return tf.constant(output.numpy().copy()) if _callers and _is_dense(output) else output


def _made(make: Any, model: Any, force: bool = False) -> None:
    is_ours = isinstance(model.predict_function, _OnHost)
    make(model, force or (not is_ours and _uses_xla(model)))
    if not isinstance(model.predict_function, _OnHost):
        model.predict_function = _OnHost(model.predict_function)


def _made_for_tests(make: Any, model: Any, force: bool = False) -> None:
    before = model.test_function
    make(model, force or (before not in _op_by_op and _uses_xla(model)))
    if model.test_function is not before:
        _op_by_op.add(model.test_function)


def _uses_xla(model: Any) -> bool:
    """Return whether Keras's functions were traced with XLA; not under `function_calls`."""
    return eager.has_gpu() and bool(model.jit_compile)


def _concatenated(concatenate: Any, tensors: list[Any]) -> Any:
    is_dense = all(_is_dense(each) and each.shape.rank for each in tensors)
    if len(tensors) == 1 or not is_dense or len({tuple(each.shape[1:]) for each in tensors}) > 1:
        return concatenate(tensors)
    return np.concatenate([each.numpy() for each in tensors])


def _as_array(convert: Any, output: Any) -> Any:
    return output if isinstance(output, np.ndarray) else convert(output)
