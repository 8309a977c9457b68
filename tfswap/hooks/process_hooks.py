"""What makes options hold in a whole process: hooks in TensorFlow and Keras, while there are any.

One of the users of private interfaces (see `plan_session.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tfswap.hooks import function_calls
from tfswap.hooks.plan_session import with_plan
from tfswap.plan.schema import SwapPlan
from tfswap.training.function_runs import FunctionRuns
from tfswap.training.swap_options import SwapOptions

_undo: list[Callable[[], None]] = []


def begin(runs: FunctionRuns, options: SwapOptions) -> None:
    """Has functions called through `runs`, fits have a callback, and sessions a plan."""
    function_calls.begin(runs)
    _watch_fits(options)
    _watch_sessions(runs, options.plan)


def end(runs: FunctionRuns) -> None:
    """Takes the hooks out; harmless when called again."""
    function_calls.end(runs)
    while _undo:
        _undo.pop()()


def _replace(owner: Any, name: str, wrapper: Any) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrapper))
    _undo.append(lambda: setattr(owner, name, original))


def _watch_fits(options: SwapOptions) -> None:
    try:
        import keras
    except ImportError:
        return  # then nobody fits
    if keras.backend.backend() != "tensorflow":
        return
    from tfswap.auto_swap import AutoSwap

    callback_list = keras.callbacks.CallbackList
    make = callback_list.__init__

    # Not later: the list decides when it is made in which thread callbacks are called.
    def made(self: Any, callbacks: Any = None, *arguments: Any, **named: Any) -> None:
        given = keras.tree.flatten(callbacks) if callbacks else []
        if not any(isinstance(callback, AutoSwap) for callback in given):
            given.append(AutoSwap.of(options))
        make(self, given, *arguments, **named)

    _replace(callback_list, "__init__", made)


def _watch_sessions(runs: FunctionRuns, plan: SwapPlan | None) -> None:
    from tensorflow.python.client.session import BaseSession

    make = BaseSession.__init__

    def made(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        runs.begin_if_free()
        make(self, target=target, graph=graph, config=session_config(config, plan))

    _replace(BaseSession, "__init__", made)


def session_config(config: Any, plan: SwapPlan | None) -> Any:
    """A copy of a ``ConfigProto`` (None: of what sessions have by default) with a plan in it."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    copy = config_pb2.ConfigProto()
    copy.CopyFrom(context.context().config if config is None else config)
    functions = () if plan is None else plan.functions
    with_plan(copy, SwapPlan(functions=functions, unmatched="bootstrap"), describe=True)
    return copy


def install_option(
    take: Callable[[Mapping[str, Any]], dict[str, Any]], get: Callable[[], dict[str, Any]]
) -> None:
    """Adds ours to the options of ``tf.config.optimizer``, for good.

    Args:
        take: Is given what a user sets, takes ours and answers the others.
        get: Answers ours, by their keys.
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
