"""Run a training script until one of its steps is profiled, and write the profile to a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfswap.activation import activate
from tfswap.commands import script
from tfswap.machine import budget as budgets


class _Profiled(BaseException):
    """Ends the script once the profile is written; handlers of `Exception` do not catch it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--out", type=Path, default=Path("step.profile"), help="the profile's file (step.profile)"
    )
    parser.add_argument(
        "--budget",
        default="auto",
        help="device memory budget while profiling; may be less than the step needs (auto)",
    )
    script.add_arguments(parser, "a training script that calls model.fit; runs unchanged")


def run(options: argparse.Namespace) -> int:
    """Run the script up to the profile and return 0, or print an error and return 1."""
    try:
        budgets.check(options.budget, "--budget")
        script.check(options.script)
        done = _run_script(options)
    except ValueError as error:
        print(f"tfswap profile: {error}", file=sys.stderr)
        return 1
    if not done:
        print(
            f"tfswap profile: {options.script} ended before a step was profiled: it must call "
            "model.fit, not eagerly, for at least four batches",
            file=sys.stderr,
        )
        return 1
    print(
        f"{options.out}: use it with tfswap simulate {options.out}, or tfswap plan {options.out} "
        "--budget ..."
    )
    return 0


def _run_script(options: argparse.Namespace) -> bool:
    """Return whether a profile was written."""
    import tfswap

    activate()
    undo = _make_fit_profile(tfswap.AutoSwap, options)
    try:
        script.run_script(options.script, options.arguments)
    except _Profiled:
        return True
    finally:
        undo()
    return False


def _make_fit_profile(auto_swap: type[Any], options: argparse.Namespace) -> Callable[[], None]:
    """Make `keras.Model.fit` profile a step and stop. Return a function that undoes this."""
    import keras

    class StopOnceProfiled(keras.callbacks.Callback):
        def __init__(self, swap: Any) -> None:
            super().__init__()
            self._swap = swap

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self._swap.report["unswapped_peak_bytes"] is not None:
                raise _Profiled

    fit = keras.Model.fit

    def profiled_fit(model: Any, *arguments: Any, **named: Any) -> Any:
        swap = auto_swap(budget=options.budget, save_profile=options.out, verbose=0)
        callbacks = named.pop("callbacks", None) or []
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = callbacks.callbacks
        others = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        kept = [c for c in others if not isinstance(c, auto_swap)]
        return fit(model, *arguments, callbacks=[*kept, swap, StopOnceProfiled(swap)], **named)

    keras.Model.fit = profiled_fit

    def undo() -> None:
        keras.Model.fit = fit

    return undo
