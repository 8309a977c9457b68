"""A small training that does not fit its budget: whether swapping works in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfswap.io.amounts import readable_bytes
from tfswap.ops.loaded_library import LibraryError
from tfswap.state import memory_stats, reset_memory_stats

# Activations of 2 MiB each, with little to compute.
_BATCH, _WIDTH, _LAYERS = 4096, 128, 8
_STEPS = 14  # by then the plan is settled
_SHARE = 0.7


@dataclass(frozen=True)
class Trial:
    """What became of it; sizes in bytes.

    Attributes:
        device: "CPU:0", "GPU:0".
        unswapped_peak_bytes, peak_bytes: Without a budget, and within it.
        budget_bytes: That.
        problem: What went wrong, with what to do; "" if nothing did.
    """

    device: str
    unswapped_peak_bytes: int = 0
    budget_bytes: int = 0
    peak_bytes: int = 0
    problem: str = ""


def try_training() -> Trial:
    """Trains without a budget and within one, and compares the losses."""
    import tensorflow as tf

    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    try:
        return _try_on(device)
    except (ImportError, ValueError, LibraryError, tf.errors.OpError) as error:
        return Trial(device, problem=f"A small training under a budget failed: {error}")


def _try_on(device: str) -> Trial:
    from tfswap.auto_swap import AutoSwap

    unswapped, others_bytes, unswapped_peak_bytes = _trained(device)
    budget_bytes = others_bytes + int(_SHARE * (unswapped_peak_bytes - others_bytes))
    callback = AutoSwap(budget_bytes, verbose=0)
    losses, _, peak_bytes = _trained(device, callback)
    report = callback.report
    problem = ""
    if report["outcome"] != "swapped":
        why = "; ".join(report["notes"]) or "it says nothing of it"
        problem = f"A small training under a budget was not swapped ({report['outcome']}): {why}"
    elif peak_bytes > budget_bytes:
        problem = (
            f"A small training took {readable_bytes(peak_bytes)} of a budget of "
            f"{readable_bytes(budget_bytes)}: this is a bug of tfswap's"
        )
    elif losses != unswapped and _trained(device)[0] == unswapped:
        problem = "A small training had other losses under a budget: this is a bug of tfswap's"
    return Trial(device, unswapped_peak_bytes, budget_bytes, peak_bytes, problem)


def _trained(device: str, *callbacks: Any) -> tuple[list[float], int, int]:
    """Losses, what was in use before, and the peak."""
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
