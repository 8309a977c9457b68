"""A pytest plugin: add `tfswap.AutoSwap` to every `fit`, within the budget of the environment."""

from __future__ import annotations

import os
from typing import Any

BUDGET = os.environ.get("KERAS_TESTS_BUDGET")


def _install(budget: str) -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    import tfswap

    inner = TensorFlowTrainer.fit

    def fit(self: Any, *args: Any, callbacks: Any = None, **options: Any) -> Any:
        swap = tfswap.AutoSwap(budget=budget, verbose=0)
        if hasattr(callbacks, "append") and not isinstance(callbacks, list):
            callbacks.append(swap)  # a CallbackList
        elif isinstance(callbacks, list | tuple):
            callbacks = [*callbacks, swap]
        else:
            callbacks = [swap] if callbacks is None else [callbacks, swap]
        return inner(self, *args, callbacks=callbacks, **options)

    TensorFlowTrainer.fit = fit


if BUDGET:
    _install(BUDGET)
