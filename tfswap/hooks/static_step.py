"""StaticStep: one step of a Keras model, traced once for each batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras

# Batch sizes that get a graph each. With more (sentences, say), tracing would dominate.
_MAX_SIZES = 8

_Step = TypeVar("_Step")


def kept_on(function: Any, kind: type[_Step], make: Callable[[], _Step]) -> _Step:
    """Return the step kept with Keras's `function`; make it if there is none of this kind."""
    name = f"_tfswap_{kind.__name__}"
    known = getattr(function, name, None)
    if not isinstance(known, kind):
        known = make()
        setattr(function, name, known)
    return known


def sizes_are_unknown(iterator: Any, replicas: int = 1) -> bool:
    """Return whether a graph that reads `iterator` would not know its batch size.

    Args:
        iterator: The iterator that Keras passes to a training function.
        replicas: Number of replicas that share a batch.
    """
    import tensorflow as tf

    if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
        return False
    specs = tf.nest.flatten(iterator.element_spec, expand_composites=replicas > 1)
    return any(isinstance(s, tf.TensorSpec) and not s.shape.is_fully_defined() for s in specs)


def why_not_static(model: Any) -> str:
    """Return why a model cannot be called on data of known sizes; "" if it can."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        return f"batches are split among {replicas} replicas, into parts of any size"
    for name in ("make_train_function", "make_test_function"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            return f"the model overrides {name}, which takes batches of any size"
    return ""


def one_step(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return Keras's function of one batch, for a `tf.function` to trace.

    Args:
        model: A model for which `why_not_static` returns "".
        step: Its `train_step` or `test_step`.
    """
    import tensorflow as tf

    strategy = model.distribute_strategy

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def one_step_on_data(data: Any) -> Any:
        # One replica: its result is the mean over replicas.
        outputs = strategy.run(step, args=(data,))
        return tf.nest.map_structure(
            lambda each: strategy.experimental_local_results(each)[0], outputs
        )

    return one_step_on_data  # type: ignore[no-any-return]


def without_optionals(data: Any) -> Any:
    """Return a batch, or its spec, with None for what Keras packs into an `Optional`."""
    import tensorflow as tf

    kinds = (tf.experimental.Optional, tf.OptionalSpec)
    return tf.nest.map_structure(lambda each: None if isinstance(each, kinds) else each, data)


def examples_of(data: Any) -> int:
    """Return the number of examples of a batch: the length of its largest tensor, or 0."""
    import tensorflow as tf

    tensors = [t for t in tf.nest.flatten(data) if isinstance(t, tf.Tensor) and t.shape.rank]
    largest = max(tensors, key=lambda t: t.shape.num_elements(), default=None)
    return 0 if largest is None else int(largest.shape[0])


class StaticStep:
    """One step of `fit` or `evaluate` on a batch that was fetched before the call.

    A batch that the graph takes from an iterator has the iterator's shape, whose batch size is
    unknown if the last batch is smaller. A batch passed as an argument has its own shape.

    Args:
        model: A model for which `why_not_static` returns "".
        step: Its `train_step` or `test_step`.
        warn: Prints and keeps a warning.
    """

    def __init__(self, model: Any, step: Callable[[Any], Any], warn: Callable[[str], None]) -> None:
        import tensorflow as tf

        self._warn = warn
        self._sizes: set[tuple[Any, ...]] = set()
        self._has_warned = False
        function = one_step(model, step)
        self._of_a_size = tf.function(function)
        self._of_any = tf.function(function, reduce_retracing=True)

    @classmethod
    def of(
        cls,
        model: Any,
        step: Callable[[Any], Any],
        function: Any,
        warn: Callable[[str], None],
    ) -> StaticStep:
        """Return the step kept with Keras's `function`, so that later fits need not trace again."""
        known = kept_on(function, cls, lambda: cls(model, step, warn))
        known._warn = warn
        return known

    def batch_of(self, iterator: Any) -> Any:
        """Return the next batch, or raise StopIteration."""
        return without_optionals(next(iterator))

    def __call__(self, data: Any) -> Any:
        """Run the step on a batch; return what Keras's function would."""
        import tensorflow as tf

        sizes = tuple(
            tuple(t.shape) if isinstance(t, tf.Tensor) else None for t in tf.nest.flatten(data)
        )
        if sizes in self._sizes or len(self._sizes) < _MAX_SIZES:
            self._sizes.add(sizes)
            return self._of_a_size(data)
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"there are batches of more than {_MAX_SIZES} sizes: further ones are not split "
                "into sections. Pad them to a few sizes."
            )
        return self._of_any(data)
