"""Options for all that trains in this process, without a callback.

::

    tfswap.options.set(budget="6GiB")                      the same as
    tf.config.optimizer.set_experimental_options({"tfswap": {"budget": "6GiB"}})
    TFSWAP_BUDGET=6GiB python train.py                     (where train.py imports tfswap)
    with tfswap.options.set(budget="6GiB"): ...            until the end of the block

While there are any, every `fit` has an `AutoSwap` (unless it was given one), and every
`tf.function` with gradients that is called on its own runs as in a `tfswap.Session`.
``tf.compat.v1.Session``s that are made meanwhile run under lazy swaps, or the given plan, which a
session cannot change.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping
from typing import Any

from tfswap.hooks import process_hooks
from tfswap.report.summary import Report
from tfswap.training.function_runs import FunctionRuns
from tfswap.training.swap_options import NAMES, SwapOptions, parse_options

KEY = "tfswap"
"""Of these options among TensorFlow's."""

# By itself it has nothing train under a budget: it is for those that say so in another way.
_NO_WORD_OF_A_BUDGET = "plan_cache"

_ENVIRONMENT, _OF_BUILDS = "TFSWAP_", "TFSWAP_BUILD_"

_lock = threading.Lock()
_options: dict[str, Any] | None = None
_runs: FunctionRuns | None = None


class Scope:
    """What `set` answers: as a context manager, it brings back what was set before."""

    def __init__(self, before: dict[str, Any] | None) -> None:
        self._before = before

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *error: object) -> None:
        _replace(self._before)


def set(**options: Any) -> Scope:  # noqa: A001
    """Has all that trains from now on run inside a hard budget of device memory.

    What was set before is replaced, all of it. A `fit` under way keeps what it began with. Devices
    may still be configured: the budget is in force from the first training call on.

    Args:
        **options: As of `AutoSwap`.

    Returns:
        A context manager, for options that hold in a block.

    Raises:
        ValueError: An option is none of what is allowed; what was set before stays.
        LibraryError: tfswap's library is not loaded.
    """
    before = get()
    _replace(dict(options))
    return Scope(before)


def get() -> dict[str, Any] | None:
    """The options, as they were given; None if there are none."""
    return None if _options is None else dict(_options)


def reset() -> None:
    """Has nothing run under a budget any more, but for what is under way."""
    _replace(None)


def reports() -> dict[str, Report]:
    """A `Report` for each `tf.function` that trains, by its name (see `AutoSwap.report`)."""
    return {} if _runs is None else _runs.reports


def session_config(config: Any = None) -> Any:
    """A config for ``tf.compat.v1.Session``, with the plan that is in force for new ones.

    Sessions that are made while there are options have it by themselves.

    Args:
        config: A ``ConfigProto`` to begin with. Defaults to None: an empty one.

    Returns:
        The config, as another object.

    Raises:
        ValueError: There are no options.
    """
    if _options is None:
        raise ValueError("tfswap has no options: call tfswap.options.set(budget=...) first")
    return process_hooks.session_config(config, parse_options(**_options).plan)


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Options as environment variables say: TFSWAP_BUDGET, TFSWAP_SPILL_DIR and so on.

    Raises:
        ValueError: There is no option of a name, or a value is none of what is allowed.
    """
    known = {_ENVIRONMENT + name.upper(): name for name in NAMES}
    ours = (name for name in environment if name.startswith(_ENVIRONMENT))
    unknown = [n for n in ours if n not in known and not n.startswith(_OF_BUILDS)]
    if unknown:
        raise ValueError(
            f"tfswap knows no environment variable {unknown[0]}: there are {', '.join(known)}"
        )
    found = {
        name: from_text(variable, name, environment[variable])
        for variable, name in known.items()
        if variable in environment
    }
    if found.keys() == {_NO_WORD_OF_A_BUDGET}:
        return {}
    if found:
        parse_options(**found)
    return found


_NOTHING = ("", "none")
_TRUTHS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def from_text(variable: str, name: str, text: str) -> Any:
    """The value of an option that is written as text.

    Args:
        variable: What it is the value of, for errors.
        name: Of the option.
        text: The value.

    Raises:
        ValueError: It is no truth value or number where it must be one.
    """
    if name in ("verify", "slab", "lossy", "stream_weights"):
        if text.lower() not in _TRUTHS:
            raise ValueError(f"{variable} is {text!r}; allowed: {', '.join(_TRUTHS)}")
        return _TRUTHS[text.lower()]
    if name == "broker" and text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()] or None
    if name in ("planning_time_s", "verbose", "sections") and text.lower() not in (
        "auto",
        *_NOTHING,
    ):
        try:
            return float(text) if name == "planning_time_s" else int(text)
        except ValueError:
            others = "" if name == "planning_time_s" else ", 'auto', or 'none'"
            raise ValueError(f"{variable} is {text!r}; it must be a number{others}") from None
    return None if text.lower() in _NOTHING else text


def _replace(options: dict[str, Any] | None) -> None:
    """Puts other options in force, or none; if they are no good, nothing is changed."""
    global _options, _runs
    with _lock:
        parsed = None if options is None else parse_options(**options)
        runs = None if parsed is None else FunctionRuns(parsed)
        if _runs is not None:
            process_hooks.end(_runs)
            _runs.end()
        _options, _runs = options, runs
        if parsed is not None and runs is not None:
            process_hooks.begin(runs, functools.partial(_add_callback, parsed), parsed.plan)


def _add_callback(options: SwapOptions, callbacks: list[Any]) -> None:
    """Append an `AutoSwap` to the callbacks of a `fit` that has none."""
    from tfswap.auto_swap import AutoSwap

    if not any(isinstance(callback, AutoSwap) for callback in callbacks):
        callbacks.append(AutoSwap.of(options))


def install() -> None:
    """Adds these options to those of ``tf.config.optimizer``; done when tfswap is imported."""
    process_hooks.install_option(_take, lambda: {} if _options is None else {KEY: get()})


def _take(options: Mapping[str, Any]) -> dict[str, Any]:
    """Takes "tfswap" out of what ``tf.config.optimizer.set_experimental_options`` was given.

    Returns:
        The others.

    Raises:
        ValueError: An option of tfswap's is none of what is allowed.
        TypeError: They are no dictionary.
    """
    others = dict(options)
    if KEY not in others:
        return others
    ours = others.pop(KEY)
    if ours is None:
        reset()
        return others
    if not isinstance(ours, Mapping):
        raise TypeError(
            f"the optimizer option {KEY!r} is {ours!r}; it must be a dictionary such as "
            "{'budget': '6GiB'}, or None for no budget"
        )
    _replace(dict(ours))
    return others
