"""Give the variables of each replica memory of their own.

A `tf.distribute` strategy copies the first replica's value to the others. Between logical CPU
devices, such a copy shares the buffer: it counts for one device, and can leave neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

# Set on the first replica's variable.
_IS_SEPARATE = "_tfswap_is_separate"


def begin() -> Callable[[], None]:
    """Separate the values of variables that are made from now on; return what ends that."""
    from tensorflow.python.distribute.mirrored_strategy import MirroredExtended as Extended

    name = "_get_variable_creator_initial_value"
    original = getattr(Extended, name, None)
    if original is None:
        return lambda: None

    @functools.wraps(original)
    def initial_value(
        self: Any, replica_id: int, device: str, primary_var: Any, **named: Any
    ) -> Any:
        value = original(self, replica_id, device, primary_var, **named)
        if replica_id == 0 or not callable(value) or not _is_cpu(device):
            return value
        setattr(primary_var, _IS_SEPARATE, True)
        return lambda: _copied(value(), device)

    setattr(Extended, name, initial_value)
    return functools.partial(setattr, Extended, name, original)


def separate(variable: Any) -> None:
    """Separate the values of a variable of several replicas that exists already."""
    import tensorflow as tf

    first, *others = variable.values
    if getattr(first, _IS_SEPARATE, False) or not tf.executing_eagerly():
        return
    for other in others:
        if _is_cpu(other.device):
            other.assign(_copied(other.read_value(), other.device))
    setattr(first, _IS_SEPARATE, True)


def _copied(value: Any, device: str) -> Any:
    import tensorflow as tf

    with tf.device(device):
        return tf.raw_ops.DeepCopy(x=value)


def _is_cpu(device: str) -> bool:
    import tensorflow as tf

    return bool(tf.DeviceSpec.from_string(device).device_type == "CPU")
