"""Find out how many examples a batch can have whose size is not known before the step."""

from __future__ import annotations

from typing import Any

# Datasets whose elements are those of their input, by class name.
_SAME_ELEMENTS = (
    *("_OptionsDataset", "_PrefetchDataset", "_RepeatDataset", "_ShardDataset", "_ShuffleDataset"),
    *("_SkipDataset", "_TakeDataset", "CacheDataset"),
)
_BATCHES = ("_BatchDataset", "_ParallelBatchDataset")
_MAX_DATASETS = 64


def most_examples(adapter: Any) -> int:
    """Return the most examples that a batch can have; 0: unknown.

    Args:
        adapter: The data adapter that Keras takes batches from.
    """
    if type(adapter).__name__ == "ArrayDataAdapter":
        return int(adapter.batch_size or 0)
    if type(adapter).__name__ == "TFDatasetAdapter":
        return most_of_dataset(adapter._dataset)
    return 0


def most_of_dataset(dataset: Any) -> int:
    """Return the most examples that an element of a `tf.data.Dataset` can have; 0: unknown."""
    import tensorflow as tf

    for _ in range(_MAX_DATASETS):
        kind = type(dataset).__name__
        if kind in _BATCHES:
            return int(tf.get_static_value(dataset._batch_size) or 0)
        if kind not in _SAME_ELEMENTS:
            return 0
        dataset = dataset._input_dataset
    return 0
