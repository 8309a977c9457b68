"""Intercept calls of `tf.function`s in this process."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from tfswap.hooks import eager


class Caller(Protocol):
    """The interface that intercepted calls go through."""

    def call(self, function: Any, name: str, call: Callable[[], Any]) -> Any:
        """Call a function with `call()` and return its result."""

    def begin_if_free(self) -> None:
        """Install the budget, unless another training has the devices."""

    def note(self, text: str) -> None:
        """Report what is done."""

    def warn_once(self, text: str) -> None:
        """Warn unless this text has been a warning already."""


# Callers with the threads that they began in. A call goes through the last caller of its thread, or
# if there is none through the last of all. A bound function's calls go through its own caller.
_callers: list[tuple[threading.Thread, Caller]] = []
_bound: weakref.WeakKeyDictionary[Any, Caller] = weakref.WeakKeyDictionary()
_originals: list[tuple[Any, str, Any]] = []


def begin(caller: Caller) -> None:
    """Send calls from outside of any function through `caller` from now on."""
    _callers.append((threading.current_thread(), caller))
    _install()


def end(caller: Caller) -> None:
    """Stop sending calls through `caller`. Further calls have no effect."""
    _callers[:] = [each for each in _callers if each[1] is not caller]
    if not _callers and not len(_bound):
        while _originals:
            owner, name, original = _originals.pop()
            setattr(owner, name, original)


def _caller() -> Caller | None:
    """Return the caller for this thread's calls."""
    callers = list(_callers)
    own = [each for thread, each in callers if thread is threading.current_thread()]
    return own[-1] if own else callers[-1][1] if callers else None


def bind(function: Any, caller: Caller) -> None:
    """Send calls of one function through `caller` for the function's lifetime."""
    _bound[function] = caller
    _install()


def traces_of(function: Any) -> int:
    """Return how many graphs a function has."""
    count = getattr(function, "experimental_get_tracing_count", None)
    return 1 if count is None else int(count())


def only_graph(function: Any) -> Any:
    """Return the concrete function of a function that has one graph; None if it has more."""
    every = getattr(function, "_list_all_concrete_functions", None)
    known = [] if every is None else every()
    return known[0] if len(known) == 1 else None


def call_through(caller: Caller, function: Any, call: Callable[[], Any]) -> Any:
    """Call a function through `caller`; if that is impossible, warn and call it directly."""
    name, problem = _name_of(function), _why_not(function)
    if problem:
        caller.warn_once(f"nothing is swapped in {name}: {problem}")
        return call()
    return caller.call(function, name, call)


def _name_of(function: Any) -> str:
    """Return the name of a function in messages."""
    python_function = getattr(function, "python_function", None)
    name = getattr(python_function, "__name__", None) or getattr(function, "name", None)
    if isinstance(name, bytes):
        name = name.decode()
    return str(name or "a tf.function")


def _why_not(function: Any) -> str:
    """Return why calls of a function cannot be managed; "" if they can."""
    import tensorflow as tf

    if tf.config.functions_run_eagerly():
        return (
            "functions run eagerly (tf.config.run_functions_eagerly), op by op: there is no graph "
            "to insert swaps into"
        )
    if getattr(function, "_jit_compile", None):
        return (
            "it is compiled by XLA (jit_compile=True), so it is one opaque op, and nothing can be "
            "moved inside it: leave jit_compile out"
        )
    return ""


def _for_device(function: Any, caller: Caller) -> Any:
    """Return a function, or if a GPU would run it under XLA, its clone that runs op by op."""
    if not getattr(function, "_jit_compile", None) or not eager.has_gpu():
        return function
    clone = getattr(function, "_tfswap_op_by_op", None)
    if clone is None:
        caller.note(
            f"XLA is off for {_name_of(function)}: on a GPU, XLA's memory does not come from "
            "tfswap's allocator"
        )
        clone = function._tfswap_op_by_op = eager.without_xla(function)
    return clone


def _install() -> None:
    """Install the hooks. Further calls have no effect."""
    if _originals:
        return
    import tensorflow as tf
    from tensorflow.python.eager.backprop import GradientTape
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    def through(call_function: Any) -> Any:
        @functools.wraps(call_function)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            caller = _bound.get(self) or _caller()
            if caller is not None:
                self = _for_device(self, caller)
            if caller is None or not tf.executing_eagerly():
                return call_function(self, *args, **kwargs)
            return call_through(
                caller, self, functools.partial(call_function, self, *args, **kwargs)
            )

        return called

    gradient = GradientTape.gradient

    @functools.wraps(gradient)
    def derived(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller = _caller()
        if caller is not None and tf.executing_eagerly():
            caller.begin_if_free()
            caller.warn_once(
                "a tf.GradientTape outside of any tf.function computes gradients op by op: there "
                "is no graph to insert swaps into, so nothing is swapped; the budget is kept all "
                "the same. Put the step into a tf.function"
            )
        return gradient(self, *args, **kwargs)

    for owner, name, wrapper in (
        (Function, "__call__", through(Function.__call__)),
        (ConcreteFunction, "__call__", through(ConcreteFunction.__call__)),
        (GradientTape, "gradient", derived),
    ):
        _originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, wrapper)
