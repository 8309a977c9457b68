"""How many examples a batch of `fit` has, where its graph will not say."""

from __future__ import annotations

from typing import Any


def examples_of_fit(epoch_iterator: Any) -> int:
    """What Keras's iterator of an epoch says of its batches; 0: nothing.

    Args:
        epoch_iterator: Keras's ``EpochIterator``. It is not part of Keras's public interface: what
            is not as expected tells nothing.
    """
    adapter = getattr(epoch_iterator, "data_adapter", None)
    examples = getattr(adapter, "batch_size", None)
    if isinstance(examples, int):
        return examples
    return _examples_of_dataset(getattr(adapter, "_dataset", None))


def _examples_of_dataset(dataset: Any) -> int:
    """Of the last stage of a pipeline that makes batches."""
    import tensorflow as tf

    while isinstance(dataset, tf.data.Dataset):
        examples = getattr(dataset, "_batch_size", None)
        if examples is not None:
            known = tf.get_static_value(examples)
            return 0 if known is None else int(known)
        before = dataset._inputs()
        dataset = before[0] if len(before) == 1 else None
    return 0
