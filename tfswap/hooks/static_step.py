"""StaticStep: one step of a model, traced for each size of batch that comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

# Sizes of batches that have a graph each. Where ever new ones come (sentences, say), tracing would
# take longer than training.
_MOST_SIZES = 8
_KEPT = "_tfswap_static_step"


def sizes_are_unknown(iterator: Any, replicas: int = 1) -> bool:
    """Whether a graph that reads the iterator would not know how large its batches are.

    Args:
        iterator: What Keras gives a training function.
        replicas: That the batches are for.
    """
    import tensorflow as tf

    if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
        return False
    specs = tf.nest.flatten(iterator.element_spec, expand_composites=replicas > 1)
    return any(isinstance(s, tf.TensorSpec) and not s.shape.is_fully_defined() for s in specs)


def why_not_static(model: Any) -> str:
    """Why steps of a model cannot be called on data of known sizes; "" if they can."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        return f"batches are shared out to {replicas} replicas, in parts of any size"
    for name in ("make_train_function", "make_test_function"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            return f"the model has a {name} of its own, which takes batches of any size"
    return ""


def examples_of(data: Any) -> int:
    """How many examples a batch has: the length of its largest tensor; 0 if it has none."""
    import tensorflow as tf

    tensors = [t for t in tf.nest.flatten(data) if isinstance(t, tf.Tensor) and t.shape.rank]
    largest = max(tensors, key=lambda t: t.shape.num_elements(), default=None)
    return 0 if largest is None else int(largest.shape[0])


class StaticStep:
    """What Keras's functions do in one step of `fit` or `evaluate`, but on data that are there.

    A batch taken from an iterator inside of the graph has the iterator's shape, in which the number
    of examples is unknown if the last batch is smaller. One that is handed over has its own.

    Args:
        model: Of `why_not_static` "".
        step: Its `train_step` or `test_step`.
        warn: Warns of something.
    """

    def __init__(self, model: Any, step: Callable[[Any], Any], warn: Callable[[str], None]) -> None:
        import tensorflow as tf

        self._warn = warn
        self._sizes: set[tuple[Any, ...]] = set()
        self._has_warned = False
        strategy = model.distribute_strategy

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def one_step_on_data(data: Any) -> Any:
            # Of one replica: the mean over replicas is what it says.
            outputs = strategy.run(step, args=(data,))
            return tf.nest.map_structure(
                lambda each: strategy.experimental_local_results(each)[0], outputs
            )

        compiled = model.jit_compile
        self._of_a_size = tf.function(one_step_on_data, jit_compile=compiled)
        self._of_any = tf.function(one_step_on_data, jit_compile=compiled, reduce_retracing=True)

    @classmethod
    def of(
        cls,
        model: Any,
        step: Callable[[Any], Any],
        function: Any,
        warn: Callable[[str], None],
    ) -> StaticStep:
        """The one that goes with Keras's function for a step: later fits need not trace again."""
        known = getattr(function, _KEPT, None)
        if not isinstance(known, StaticStep):
            known = cls(model, step, warn)
            setattr(function, _KEPT, known)
        known._warn = warn
        return known

    def batch_of(self, iterator: Any) -> Any:
        """The next batch.

        Raises:
            StopIteration: There is none.
        """
        import tensorflow as tf

        return tf.nest.map_structure(
            lambda each: None if isinstance(each, tf.experimental.Optional) else each,
            next(iterator),
        )

    def __call__(self, data: Any) -> Any:
        """Works on a batch; answers what Keras's function would."""
        import tensorflow as tf

        sizes = tuple(
            tuple(t.shape) if isinstance(t, tf.Tensor) else None for t in tf.nest.flatten(data)
        )
        if sizes in self._sizes or len(self._sizes) < _MOST_SIZES:
            self._sizes.add(sizes)
            return self._of_a_size(data)
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"there are batches of more than {_MOST_SIZES} sizes: further ones are not cut "
                "into sections. Pad them to a few sizes."
            )
        return self._of_any(data)
