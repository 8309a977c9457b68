"""Check that swapping works here, with a small training that exceeds its budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfswap.io.amounts import readable_bytes
from tfswap.state import memory_stats, reset_memory_stats

# Activations of 2 MiB each, with little computation.
_BATCH, _WIDTH, _LAYERS = 4096, 128, 8
_STEPS = 14  # enough for the plan to be corrected
_BUDGET_FRACTION = 0.7

_REPORT = "please report it with the output of `tfswap doctor --verbose`"


@dataclass(frozen=True)
class Trial:
    """The outcome of the training; sizes in bytes.

    Attributes:
        device: "CPU:0" or "GPU:0".
        unswapped_peak_bytes, peak_bytes: Peak without and with the budget.
        budget_bytes: The budget.
        problem: What failed, with the remedy; "" on success.
    """

    device: str
    unswapped_peak_bytes: int = 0
    budget_bytes: int = 0
    peak_bytes: int = 0
    problem: str = ""


def try_training() -> Trial:
    """Train without and with a budget, and compare the losses."""
    import tensorflow as tf

    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    try:
        return _try_on(device)
    except Exception as error:  # a doctor reports whatever it is
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return Trial(device, problem=f"A small training under a budget failed ({_REPORT}): {what}")


def _try_on(device: str) -> Trial:
    from tfswap import options
    from tfswap.auto_swap import AutoSwap

    options.reset()  # a budget in the environment is for other trainings
    unswapped, others_bytes, unswapped_peak_bytes = _train(device)
    budget_bytes = others_bytes + int(_BUDGET_FRACTION * (unswapped_peak_bytes - others_bytes))
    callback = AutoSwap(budget_bytes, verbose=0)
    losses, _, peak_bytes = _train(device, callback)
    report = callback.report
    problem = ""
    if report["outcome"] != "swapped":
        why = "; ".join(report["notes"]) or "no reason is known"
        problem = (
            f"A small training under a budget was not swapped ({report['outcome']}; {_REPORT}): "
            f"{why}"
        )
    elif peak_bytes > budget_bytes:
        problem = (
            f"A small training used {readable_bytes(peak_bytes)} of a budget of "
            f"{readable_bytes(budget_bytes)}: this is a bug in tfswap; {_REPORT}"
        )
    elif losses != unswapped and _train(device)[0] == unswapped:
        problem = (
            "A small training had different losses under a budget: this is a bug in tfswap; "
            f"{_REPORT}"
        )
    return Trial(device, unswapped_peak_bytes, budget_bytes, peak_bytes, problem)


def _train(device: str, *callbacks: Any) -> tuple[list[float], int, int]:
    """Train; return the losses, the bytes in use before, and the peak bytes."""
    import keras
    import numpy as np

    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    dense = [keras.layers.Dense(_WIDTH, activation="relu") for _ in range(_LAYERS)]
    model = keras.Sequential([keras.layers.Input((_WIDTH,)), *dense, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(1).random((_BATCH, _WIDTH), dtype=np.float32)
    y = x.sum(axis=1, keepdims=True)
    before = memory_stats(device)["bytes_in_use"]
    reset_memory_stats(device)
    history = model.fit(
        x, y, batch_size=_BATCH, epochs=_STEPS, verbose=0, callbacks=list(callbacks)
    )
    return history.history["loss"], before, memory_stats(device)["peak_bytes"]
