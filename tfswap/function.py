"""swap and Session: custom training loops under a memory budget."""

from __future__ import annotations

import atexit
import functools
import threading
import weakref
from typing import Any

from tfswap.hooks import function_calls
from tfswap.hooks.eager import without_xla
from tfswap.report.summary import Report
from tfswap.training.function_runs import FunctionRuns
from tfswap.training.swap_options import SwapOptions, parse_options

_HOW = "@tfswap.swap(budget='6GiB')\n    @tf.function\n    def train_step(images, labels): ..."


def swap(function: Any = None, /, **options: Any) -> Any:
    """Has a `tf.function` that trains run inside a hard budget of device memory.

    It does for a custom loop's step what `AutoSwap` does for `fit`: the first calls run under lazy
    swaps, two are profiled, a plan is made, pushed and checked, and last addresses are planned. The
    function must hold the whole step, gradients and update: the graph has nothing to swap
    otherwise. Functions with the same options share a budget. It is in force from the first call
    of one of them until `release`, and gives way to others (a `fit` under `AutoSwap`) between
    calls. While one thread is in such a call, the calls of other threads run under on-demand swaps.

    Args:
        function: The `tf.function`; left out where `swap` is used with options.
        **options: As of `AutoSwap`.

    Returns:
        A `SwappedFunction`, to be called as the function.

    Raises:
        TypeError: It is no `tf.function`.
        ValueError: An option is none of what is allowed.

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
    """A `tf.function` that runs under a budget; see `swap`. All else about it is as before."""

    def __init__(self, function: Any, options: SwapOptions) -> None:
        if not hasattr(function, "get_concrete_function") or not hasattr(function, "_clone"):
            raise TypeError(
                f"tfswap.swap needs a tf.function, and {function!r} is none: put @tf.function "
                f"below it, as in\n\n    {_HOW}"
            )
        self._function = without_xla(function)
        self._options = options
        self._runs: FunctionRuns | None = None  # from the first call on
        self._of_instances: weakref.WeakKeyDictionary[Any, SwappedFunction] = (
            weakref.WeakKeyDictionary()
        )
        functools.update_wrapper(self, function.python_function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        function = self._function
        call = functools.partial(function, *args, **kwargs)
        if not tf.executing_eagerly():  # in a graph it is part of another function
            return call()
        if self._runs is None:
            self._runs = _runs_of(self._options)
        return function_calls.call_through(self._runs, function, call)

    def __get__(self, instance: Any, owner: Any = None) -> SwappedFunction:
        # As a method: each instance has a function of its own.
        if instance is None:
            return self
        bound = self._of_instances.get(instance)
        if bound is None:
            bound = SwappedFunction(self._function.__get__(instance, owner), self._options)
            self._of_instances[instance] = bound
        return bound

    def __getattr__(self, name: str) -> Any:
        if name == "_function":
            raise AttributeError(name)
        return getattr(self._function, name)

    @property
    def report(self) -> Report:
        """What was measured and foretold: see `AutoSwap.report`."""
        return Report() if self._runs is None else self._runs.report_of(self._function)

    def release(self) -> None:
        """Takes the budget back, until the next call of a function with the same options."""
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
    """A budget for every `tf.function` that trains while it is entered.

    For loops of several functions (a GAN's two steps), also of code that cannot be decorated. Each
    function has a plan of its own. Those without gradients run under lazy swaps.

    Args:
        **options: As of `AutoSwap`.

    Attributes:
        reports: A `Report` for each function that trains, by its name.

    Raises:
        ValueError: An option is none of what is allowed.
        LibraryError: When entered: the device is not tfswap's.

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

    def __enter__(self) -> Session:
        if self._runs is not None:
            self.close()
        runs = FunctionRuns(self._options)
        runs.begin()
        self._runs = runs
        function_calls.begin(runs)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes everything back; harmless when called again. The reports stay."""
        if self._runs is not None:
            function_calls.end(self._runs)
            self._runs.end()

    @property
    def reports(self) -> dict[str, Report]:
        """A `Report` for each function that trains, by its name (see `AutoSwap.report`)."""
        return {} if self._runs is None else self._runs.reports
