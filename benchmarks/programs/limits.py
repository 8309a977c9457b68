"""Limit the data that programs use, without changing them.

An environment variable of Keras limits epochs. Its other one, for batches, makes batches
larger if a program leaves their size to Keras, so batches are counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from benchmarks.programs.hooks import wrap


class BatchLimit:
    """Limit batches: in an epoch, in a validation, from a program's own iterator.

    Predictions are not limited, since programs rely on their number.

    Args:
        batches: The limit.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._loops: list[str] = []

    def install(self) -> None:
        """Activate the limit."""
        import keras
        from tensorflow.python.data.ops.iterator_ops import OwnedIterator

        for name in ("fit", "evaluate", "predict"):
            wrap(keras.Model, name, self._loop)
        wrap(keras.src.trainers.epoch_iterator.EpochIterator, "_enumerate_iterator", self._steps)
        wrap(OwnedIterator, "__next__", self._next)

    def _loop(self, loop: Any, *arguments: Any, **named: Any) -> Any:
        self._loops.append(loop.__name__)
        try:
            return loop(*arguments, **named)
        finally:
            self._loops.pop()

    def _steps(self, steps: Any, epoch: Any) -> Iterator[Any]:
        predicts = self._loops[-1:] == ["predict"]
        return steps(epoch) if predicts else islice(steps(epoch), self._batches)

    def _next(self, take: Any, iterator: Any) -> Any:
        import tensorflow as tf

        if tf.executing_eagerly() and not self._loops:
            iterator.taken_batches = getattr(iterator, "taken_batches", 0) + 1
            if iterator.taken_batches > self._batches:
                raise StopIteration
        return take(iterator)
