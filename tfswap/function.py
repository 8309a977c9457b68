"""swap and Session: train custom loops under a memory budget."""

from __future__ import annotations

import atexit
import functools
import threading
import weakref
from contextlib import ExitStack
from typing import Any

from tfswap.devices.swap_options import SwapOptions, parse_options
from tfswap.hooks import function_calls, keras_memory
from tfswap.hooks.eager import without_xla
from tfswap.report.summary import Report
from tfswap.training.function_runs import FunctionRuns

_EXAMPLE = "@tfswap.swap(budget='6GiB')\n    @tf.function\n    def train_step(images, labels): ..."


def swap(function: Any = None, /, **options: Any) -> Any:
    """Make a `tf.function` that trains run within a hard device memory budget.

    `swap` does for a custom training step what `AutoSwap` does for `fit`: the first calls swap on
    demand, two calls are profiled, a plan is made, installed and checked, and finally addresses
    are planned. The function must contain the whole step, gradients and update; otherwise its
    graph has nothing to swap.

    Functions with equal options share one budget. It is active from the first call of one of them
    until `release`, and is suspended between calls while another training (a `fit` under
    `AutoSwap`) runs. While one thread is in such a call, calls of other threads swap on demand
    only.

    Args:
        function: The `tf.function`; omitted where `swap` is used with options.
        **options: Options of `AutoSwap`.

    Returns:
        A `SwappedFunction`, which is called like the function.

    Raises:
        TypeError: `function` is not a `tf.function`.
        ValueError: An option is invalid.
        RuntimeError: At a call, if another training is under way in this process; train several
            functions under one `tfswap.Session`, or in processes that share a device by
            `tfswap broker`.

    Example:
    >>> import tensorflow as tf, tfswap
    >>> weights = tf.Variable(tf.ones([4, 1]))
    >>> @tfswap.swap(budget="200MiB", verbose=0)
    ... @tf.function
    ... def train_step(inputs):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_sum((inputs @ weights) ** 2)
    ...     weights.assign_sub(0.01 * tape.gradient(loss, weights))
    ...     return loss
    >>> float(train_step(tf.ones([2, 4])))
    32.0
    """
    parsed = parse_options(**options)
    if function is None:
        return lambda decorated: SwappedFunction(decorated, parsed)
    return SwappedFunction(function, parsed)


class SwappedFunction:
    """A `tf.function` that runs under a budget; see `swap`. It behaves like the original."""

    def __init__(self, function: Any, options: SwapOptions) -> None:
        if not hasattr(function, "get_concrete_function") or not hasattr(function, "_clone"):
            raise TypeError(
                f"tfswap.swap needs a tf.function; got {function!r}. Put @tf.function below it, as "
                f"in\n\n    {_EXAMPLE}"
            )
        self._function = without_xla(function)
        self._options = options
        self._runs: FunctionRuns | None = None  # set by the first call
        self._bound: weakref.WeakKeyDictionary[Any, SwappedFunction] = weakref.WeakKeyDictionary()
        functools.update_wrapper(self, function.python_function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        function = self._function
        call = functools.partial(function, *args, **kwargs)
        if not tf.executing_eagerly():  # it is inlined into another function
            return call()
        if self._runs is None:
            self._runs = _runs_of(self._options)
        return function_calls.call_through(self._runs, function, call)

    def __get__(self, instance: Any, owner: Any = None) -> SwappedFunction:
        # Used as a method: each instance gets its own function.
        if instance is None:
            return self
        bound = self._bound.get(instance)
        if bound is None:
            bound = SwappedFunction(self._function.__get__(instance, owner), self._options)
            self._bound[instance] = bound
        return bound

    def __getattr__(self, name: str) -> Any:
        if name == "_function":
            raise AttributeError(name)
        return getattr(self._function, name)

    @property
    def report(self) -> Report:
        """Measurements and predictions; see `AutoSwap.report`."""
        return Report() if self._runs is None else self._runs.report_of(self._function)

    def release(self) -> None:
        """Remove the budget until the next call of a function with equal options."""
        (self._runs or _runs_of(self._options)).end()


_lock = threading.Lock()
_known: list[tuple[SwapOptions, FunctionRuns]] = []


def _runs_of(options: SwapOptions) -> FunctionRuns:
    """Return the runs of all functions with these options."""
    with _lock:
        for known, runs in _known:
            if known == options:
                return runs
        runs = FunctionRuns(options, certain=True)
        _known.append((options, runs))
        return runs


@atexit.register
def _end_all() -> None:
    for _, runs in _known:
        runs.end()


class Session:
    """Run every `tf.function` that trains within the block under one budget.

    For training loops with several functions, such as the two steps of a GAN, and for code that
    cannot be decorated. Each function gets its own plan. Functions without gradients swap on
    demand.

    Args:
        **options: Options of `AutoSwap`.

    Raises:
        ValueError: An option is invalid.
        LibraryError: On entry, if the device is not tfswap's.
        RuntimeError: On entry, if another training is under way in this process.

    Example:
    >>> import tensorflow as tf, tfswap
    >>> weights = tf.Variable(tf.ones([4, 1]))
    >>> @tf.function
    ... def train_step(inputs):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_sum((inputs @ weights) ** 2)
    ...     weights.assign_sub(0.01 * tape.gradient(loss, weights))
    ...     return loss
    >>> with tfswap.Session(budget="200MiB", verbose=0) as session:
    ...     for _ in range(3):
    ...         loss = train_step(tf.ones([2, 4]))
    >>> list(session.reports)
    ['train_step']
    """

    def __init__(self, **options: Any) -> None:
        self._options = parse_options(**options)
        self._runs: FunctionRuns | None = None
        self._on_close = ExitStack()

    def __enter__(self) -> Session:
        self.close()
        runs = FunctionRuns(self._options)
        try:
            if self._options.may_stream_weights:
                runs.stand_by()
            else:
                runs.begin()
        except BaseException:
            runs.end()
            raise
        self._runs = runs
        self._on_close.callback(runs.end)
        function_calls.begin(runs)
        self._on_close.callback(function_calls.end, runs)
        keras_memory.begin()
        self._on_close.callback(keras_memory.end)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the budget and keep the reports. Further calls have no effect."""
        self._on_close.close()

    @property
    def reports(self) -> dict[str, Report]:
        """Return a `Report` for each function that trains, by its name (see `AutoSwap.report`)."""
        return {} if self._runs is None else self._runs.reports
