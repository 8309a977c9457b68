"""CompiledStep: a step of a Keras model under XLA, as long as XLA gets the memory it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfswap.hooks.static_step import kept_on, one_step, without_optionals


def set_jit_compile(model: Any, value: bool) -> None:
    """Set a model's `jit_compile` without Keras's check, which fails under op determinism."""
    model._jit_compile = value


class CompiledStep:
    """One step of `fit` or `evaluate` under XLA, or op by op once XLA got no memory.

    XLA asks for all memory of a step before it computes. If it gets none, no variable has changed
    (the device keeps them from being freed), and the step runs op by op on the same batch, which
    was fetched before the call.

    Args:
        model: A model for which `why_not_static` returns "".
        step: Its `train_step` or `test_step`.
        make: Its `make_train_function` or `make_test_function`.
        name: The attribute that has the function that `make` makes.
    """

    def __init__(
        self, model: Any, step: Callable[[Any], Any], make: Callable[..., Any], name: str
    ) -> None:
        import tensorflow as tf

        self._model, self._make, self._name = model, make, name
        self._function = getattr(model, name)
        self._compiled = tf.function(one_step(model, step), jit_compile=True, reduce_retracing=True)
        self._specs: list[Any] = []
        self._op_by_op: Any = None
        self._is_refused = False
        self._when_refused: Callable[[str], None] = lambda _: None

    @classmethod
    def of_training(cls, model: Any) -> CompiledStep:
        """Return the step of a model's `train_function`, which keeps what is traced."""
        return cls._of(model, model.train_step, model.make_train_function, "train_function")

    @classmethod
    def of_validation(cls, model: Any) -> CompiledStep:
        """Return the step of a model's `test_function`, which keeps what is traced."""
        return cls._of(model, model.test_step, model.make_test_function, "test_function")

    @classmethod
    def _of(cls, model: Any, step: Any, make: Any, name: str) -> CompiledStep:
        make()
        return kept_on(getattr(model, name), cls, lambda: cls(model, step, make, name))

    @contextmanager
    def use(self, when_refused: Callable[[str], None]) -> Iterator[None]:
        """Begin with XLA; call `when_refused` with XLA's error before the step runs op by op."""
        self._is_refused, self._when_refused = False, when_refused
        try:
            yield
        finally:
            self._when_refused = lambda _: None

    def __call__(self, iterator: Any) -> Any:
        """Run a step on the iterator's next batch; return what Keras's function would."""
        import tensorflow as tf

        if self._is_refused:
            return self._op_by_op(iterator)
        if not isinstance(iterator, tf.data.Iterator):
            return self._function(iterator)
        spec = iterator.element_spec
        if spec not in self._specs:  # one graph for all batch sizes, like Keras's
            self._compiled.get_concrete_function(without_optionals(spec))
            self._specs.append(spec)
        batch = next(iterator)
        try:
            return self._compiled(without_optionals(batch))
        except tf.errors.ResourceExhaustedError as error:
            reason = error.message
        self._is_refused = True
        if self._op_by_op is None:
            self._op_by_op = self._without_xla()
        self._when_refused(reason)
        return self._op_by_op(_iterator_over(batch, spec))

    def _without_xla(self) -> Any:
        """Return Keras's function without XLA."""
        model, before = self._model, getattr(self._model, self._name)
        set_jit_compile(model, False)
        try:
            self._make(force=True)
            return getattr(model, self._name)
        finally:
            set_jit_compile(model, True)
            setattr(model, self._name, before)


def _iterator_over(batch: Any, spec: Any) -> Any:
    """Return an iterator over one batch, with the spec of the iterator that it came from."""
    import tensorflow as tf

    variant = tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(batch))
    return iter(tf.data.experimental.from_variant(variant, spec))
