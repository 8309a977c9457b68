"""Options for all training in this process, without a callback.

These are equivalent::

    tfswap.options.set(budget="6GiB")
    tf.config.optimizer.set_experimental_options({"tfswap": {"budget": "6GiB"}})
    TFSWAP_BUDGET=6GiB python train.py                     (where train.py imports tfswap)
    with tfswap.options.set(budget="6GiB"): ...            (until the end of the block)

While options are set, every `fit` without an `AutoSwap` gets one, and every `tf.function` with
gradients that is called directly runs as in a `tfswap.Session`. A ``tf.compat.v1.Session`` that is
created meanwhile uses on-demand swaps or the given plan; it cannot install another one later.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Mapping
from typing import Any

from tfswap.devices.swap_options import NAMES, SwapOptions, parse_options
from tfswap.devices.swap_session import DeviceBusy
from tfswap.hooks import process_hooks
from tfswap.machine.budget import is_auto
from tfswap.report.summary import Report
from tfswap.training.function_runs import FunctionRuns

KEY = "tfswap"
"""The name of these options among TensorFlow's optimizer options."""

# This variable alone does not turn budgets on: it configures trainings that set a budget elsewhere.
_CONFIGURES_ONLY = "plan_cache"

_PREFIX, _BUILD_PREFIX = "TFSWAP_", "TFSWAP_BUILD_"

_lock = threading.Lock()
_options: dict[str, Any] | None = None
_runs: FunctionRuns | None = None


class Scope:
    """The result of `set`: a context manager that restores the previous options on exit."""

    def __init__(self, previous: dict[str, Any] | None) -> None:
        self._previous = previous

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *error: object) -> None:
        _replace(self._previous)


def set(**options: Any) -> Scope:  # noqa: A001
    """Make all training from now on run within a hard budget of device memory.

    Replaces all options set before. A running `fit` keeps the options it began with. Devices may
    still be configured: the budget is active from TensorFlow's first operation on, so that models
    are also built and loaded within it; with budget="auto" or `stream_weights=False`, from the
    first training call on.

    Args:
        **options: Options of `AutoSwap`.

    Returns:
        A context manager that restores the previous options at the end of its block.

    Raises:
        ValueError: An option is invalid; the previous options stay.
        LibraryError: tfswap's library is not loaded.
    """
    previous = get()
    _replace(dict(options))
    return Scope(previous)


def get() -> dict[str, Any] | None:
    """Return the options as they were given, or None if none are set."""
    return None if _options is None else dict(_options)


def reset() -> None:
    """Remove all options. A running `fit` keeps its budget."""
    _replace(None)


def reports() -> dict[str, Report]:
    """Return a `Report` for each `tf.function` that trains, by its name (see `AutoSwap.report`)."""
    return {} if _runs is None else _runs.reports


def session_config(config: Any = None) -> Any:
    """Return a config that makes a ``tf.compat.v1.Session`` use the current options.

    Sessions that are created while options are set use this config automatically.

    Args:
        config: A ``ConfigProto`` to start from; it is copied. Defaults to an empty one.

    Raises:
        ValueError: No options are set.
    """
    if _options is None:
        raise ValueError("no tfswap options are set: call tfswap.options.set(budget=...) first")
    return process_hooks.session_config(config, parse_options(**_options).plan)


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the options in environment variables: TFSWAP_BUDGET, TFSWAP_SPILL_DIR and so on.

    Raises:
        ValueError: A variable names no option, or its value is invalid.
    """
    known = {_PREFIX + name.upper(): name for name in NAMES}
    ours = (name for name in environment if name.startswith(_PREFIX))
    unknown = [n for n in ours if n not in known and not n.startswith(_BUILD_PREFIX)]
    if unknown:
        raise ValueError(
            f"unknown environment variable {unknown[0]}; tfswap reads {', '.join(known)}"
        )
    found = {
        name: from_text(variable, name, environment[variable])
        for variable, name in known.items()
        if variable in environment
    }
    if found.keys() == {_CONFIGURES_ONLY}:
        return {}
    if found:
        parse_options(**found)
    return found


_NONE = ("", "none")
_BOOLEANS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def from_text(variable: str, name: str, text: str) -> Any:
    """Convert the text of an option to its value.

    Args:
        variable: Where the text comes from, for error messages.
        name: The option.
        text: The value as text.

    Raises:
        ValueError: The option needs a boolean or a number, and the text is not one.
    """
    if name in ("verify", "slab", "lossy", "stream_weights"):
        allowed = {**_BOOLEANS, "auto": "auto"} if name == "stream_weights" else _BOOLEANS
        if text.lower() not in allowed:
            raise ValueError(f"{variable} is {text!r}; allowed: {', '.join(allowed)}")
        return allowed[text.lower()]
    if name == "broker" and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()] or None
    if name in ("planning_time_s", "verbose", "sections") and text.lower() not in (
        "auto",
        *_NONE,
    ):
        try:
            return float(text) if name == "planning_time_s" else int(text)
        except ValueError:
            others = "" if name == "planning_time_s" else ", 'auto', or 'none'"
            raise ValueError(f"{variable} is {text!r}; it must be a number{others}") from None
    return None if text.lower() in _NONE else text


def _replace(options: dict[str, Any] | None) -> None:
    """Install other options, or none. Invalid options change nothing."""
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
            is_fixed = isinstance(parsed.budget, Mapping) or not is_auto(parsed.budget)
            if parsed.may_stream_weights and is_fixed and parsed.broker is None:
                process_hooks.when_devices_exist(functools.partial(_stand_by, runs))


def _stand_by(runs: FunctionRuns) -> None:
    """Keep the budget between trainings, too, unless other options have been set meanwhile."""
    if runs is _runs:
        with contextlib.suppress(DeviceBusy):  # then it follows the training that has the devices
            runs.stand_by()


def _add_callback(options: SwapOptions, callbacks: list[Any]) -> None:
    """Append an `AutoSwap` to the callbacks of a `fit` that has none."""
    from tfswap.auto_swap import AutoSwap

    if not any(isinstance(callback, AutoSwap) for callback in callbacks):
        callbacks.append(AutoSwap.of(options))


def install() -> None:
    """Add these options to ``tf.config.optimizer``. Importing tfswap calls this."""
    process_hooks.install_option(_apply_own, lambda: {} if _options is None else {KEY: get()})


def _apply_own(options: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the "tfswap" entry of ``tf.config.optimizer.set_experimental_options``.

    Returns:
        The other entries.

    Raises:
        ValueError: An option is invalid.
        TypeError: The entry is not a dictionary.
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
