"""Hooks in TensorFlow and Keras that apply options to a whole process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tfswap.hooks import function_calls, keras_memory
from tfswap.hooks.function_calls import Caller
from tfswap.hooks.plan_session import with_plan
from tfswap.plan.schema import SwapPlan

_undo: list[Callable[[], None]] = []


def begin(caller: Caller, add_callback: Callable[[list[Any]], None], plan: SwapPlan | None) -> None:
    """Install the hooks.

    Args:
        caller: The caller of functions.
        add_callback: Called with the callbacks of each `fit` that begins; may append one.
        plan: The plan of each ``tf.compat.v1.Session``; None for on-demand swaps.
    """
    function_calls.begin(caller)
    _watch_fits(add_callback)
    _watch_sessions(caller, plan)
    keras_memory.begin()
    _undo.append(keras_memory.end)


def end(caller: Caller) -> None:
    """Remove the hooks. Further calls have no effect."""
    function_calls.end(caller)
    while _undo:
        _undo.pop()()


def _replace(owner: Any, name: str, wrapper: Any) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrapper))
    _undo.append(lambda: setattr(owner, name, original))


def _watch_fits(add_callback: Callable[[list[Any]], None]) -> None:
    try:
        import keras
    except ImportError:
        return
    if keras.backend.backend() != "tensorflow":
        return
    callback_list = keras.callbacks.CallbackList
    make = callback_list.__init__

    # The list chooses the thread of its callbacks when it is made, so they cannot be added later.
    def made(self: Any, callbacks: Any = None, *arguments: Any, **named: Any) -> None:
        given = keras.tree.flatten(callbacks) if callbacks else []
        add_callback(given)
        make(self, given, *arguments, **named)

    _replace(callback_list, "__init__", made)


def _watch_sessions(caller: Caller, plan: SwapPlan | None) -> None:
    from tensorflow.python.client.session import BaseSession

    make = BaseSession.__init__

    def made(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        caller.begin_if_free()
        make(self, target=target, graph=graph, config=session_config(config, plan))

    _replace(BaseSession, "__init__", made)


def session_config(config: Any, plan: SwapPlan | None) -> Any:
    """Return a copy of a ``ConfigProto`` (None: the default of sessions) with a plan in it."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    copy = config_pb2.ConfigProto()
    copy.CopyFrom(context.context().config if config is None else config)
    functions = () if plan is None else plan.functions
    with_plan(copy, SwapPlan(functions=functions, unmatched="bootstrap"), describe=True)
    return copy


def when_devices_exist(act: Callable[[], None]) -> None:
    """Call `act` now if TensorFlow has made its devices, or before its first operation."""
    from tensorflow.python.eager import context

    if context.context()._initialized:
        act()
        return
    ensure_initialized = context.Context.ensure_initialized

    @functools.wraps(ensure_initialized)
    def ensured(self: Any) -> None:
        ensure_initialized(self)
        if context.Context.ensure_initialized is ensured:
            context.Context.ensure_initialized = ensure_initialized
            act()

    context.Context.ensure_initialized = ensured


def install_option(
    take: Callable[[Mapping[str, Any]], dict[str, Any]], get: Callable[[], dict[str, Any]]
) -> None:
    """Add tfswap's options to those of ``tf.config.optimizer``, permanently.

    Args:
        take: Called with the options that a user sets; applies tfswap's and returns the others.
        get: Returns tfswap's options by their keys.
    """
    from tensorflow.python.eager.context import Context

    set_options = Context.set_optimizer_experimental_options
    get_options = Context.get_optimizer_experimental_options

    @functools.wraps(set_options)
    def set_and_take(self: Any, options: Mapping[str, Any]) -> None:
        set_options(self, take(options))

    @functools.wraps(get_options)
    def get_all(self: Any) -> dict[str, Any]:
        return {**get_options(self), **get()}

    Context.set_optimizer_experimental_options = set_and_take
    Context.get_optimizer_experimental_options = get_all
