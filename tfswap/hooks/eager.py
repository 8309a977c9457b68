"""Functions of TensorFlow's eager runtime that have no public interface."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

from tfswap.hooks import replica_values


def touch_variables() -> None:
    """Run an op on every existing variable, so that the library registers it.

    Variables are found by their handles: graphs may keep those of models that are gone. Replicas
    get values of their own.
    """
    import tensorflow as tf
    from tensorflow.python.distribute.values import DistributedVariable

    eager = tf.__internal__.EagerTensor
    for known in gc.get_objects():
        if isinstance(known, DistributedVariable):
            replica_values.separate(known)
        elif isinstance(known, eager) and known.dtype == tf.resource:
            tf.raw_ops.VarIsInitializedOp(resource=known)  # False for other resources


def variable_bytes() -> int:
    """Return the size of all existing variables of known shapes, also of those in graphs alone."""
    import tensorflow as tf

    eager = tf.__internal__.EagerTensor
    total = 0
    for known in gc.get_objects():
        if not isinstance(known, eager) or known.dtype != tf.resource:
            continue
        held = getattr(known, "_handle_data", None)
        for value in [] if held is None else held.shape_and_type:
            count = tf.TensorShape(value.shape).num_elements() or 0
            total += tf.dtypes.as_dtype(value.dtype).size * count
    return total


def wait_for(devices: Iterable[str]) -> None:
    """Wait until these devices have finished their work."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    for device in devices:
        with tf.device(device):  # a worker sees other workers' devices too
            tf.raw_ops.SyncDevice()
    context.async_wait()


def tape_is_recording() -> bool:
    """Return whether a ``tf.GradientTape`` records this thread's eager ops."""
    from tensorflow.python.eager import record

    return bool(record.could_possibly_record())


def has_gpu() -> bool:
    """Return whether TensorFlow may use a GPU."""
    import tensorflow as tf

    return bool(tf.config.get_visible_devices("GPU"))


def without_xla(function: Any) -> Any:
    """Return a `tf.function`, or if XLA compiles it, a clone that runs op by op."""
    if not getattr(function, "_jit_compile", None):
        return function
    clone = function._clone(None)
    clone._jit_compile = False
    return clone
