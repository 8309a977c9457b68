"""Read TensorFlow's checkpoints, also those of SavedModels, variable by variable.

TensorFlow reads all tensors of a checkpoint with one op, and assigns them then.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any


def begin() -> Callable[[], None]:
    """Read variable by variable from now on; return what ends that."""
    from tensorflow.python.checkpoint.functional_saver import MultiDeviceSaver

    restore = MultiDeviceSaver.restore

    @functools.wraps(restore)
    def restore_one_by_one(self: Any, file_prefix: Any, options: Any = None) -> Any:
        import tensorflow as tf

        parts = _parts(self) if tf.executing_eagerly() else []
        restored = {}
        for part in parts:
            restored.update(restore(part, file_prefix, options))
        return restored if parts else restore(self, file_prefix, options)

    MultiDeviceSaver.restore = restore_one_by_one
    return functools.partial(setattr, MultiDeviceSaver, "restore", restore)


def _parts(saver: Any) -> list[Any]:
    """Return a saver for each of the objects of a saver; none where its insides are others."""
    try:
        ((task, tensors),) = saver._shardable_tensors_by_task.items()
        functions, registered = saver._keys_to_restore_fn, saver._registered_savers
        by_function: dict[Any, list[Any]] = {}
        for tensor in tensors:
            key = (tensor.checkpoint_key, tensor.slice_spec)
            by_function.setdefault(functions[key], []).append(tensor)
    except (AttributeError, KeyError, TypeError, ValueError):
        return []
    groups = list(by_function.values()) or [[]]
    parts = [copy.copy(saver) for _ in groups]
    for part, group in zip(parts, groups, strict=True):
        part._shardable_tensors_by_task = {task: group}
        part._registered_savers = registered if part is parts[-1] else {}
    return parts
