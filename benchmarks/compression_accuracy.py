"""Measure the effect of lossy far memory on a training: exact and lossy, from the same seed.

    python -m benchmarks.compression --accuracy --activations leaky_relu --links 0.25 [--epochs 8]

Plain20 learns digits inside about half of what it needs, over an emulated link, once with all bits
and once with `AutoSwap(lossy=True)`; the last fifth of the digits is for validation. Each
training is a process of its own. One JSON line for each activation and link. Keys: model activation
epochs rate_top rate_bottom exact_loss lossy_loss exact_accuracy lossy_accuracy
worst_relative_error. Losses and accuracies are those of the validation after the last epoch. Rates
and error are null where nothing was kept lossily: the link is too fast for the codecs.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import Any

MODEL = "Plain20"
KEYS = (
    "model activation epochs rate_top rate_bottom exact_loss lossy_loss exact_accuracy "
    "lossy_accuracy worst_relative_error"
).split()

_DIGITS, _BATCH = 1797, 32
_VALIDATION_SPLIT = 0.2
_LEARNING_RATE = 0.02
# Deterministic ops need more memory than those of `examples/plain20.py`.
_BUDGET = "40MiB"


@dataclass(frozen=True)
class Training:
    """One of the two trainings.

    Attributes:
        activation: Activation of all layers.
        link_gb_s: Speed of the emulated link.
        epochs: Number of epochs.
        lossy: Whether lossy codecs may be used.
    """

    activation: str
    link_gb_s: float
    epochs: int
    lossy: bool


@dataclass(frozen=True)
class Outcome:
    """The result; rates in percent, None without lossy tensors.

    Attributes:
        loss, accuracy: Those of the validation after the last epoch.
        rate_top, rate_bottom: Range of the rate.
        worst_relative_error: The largest of all tensors and epochs.
    """

    loss: float
    accuracy: float
    rate_top: int | None = None
    rate_bottom: int | None = None
    worst_relative_error: float | None = None


def train(training: Training) -> Outcome:
    """Train in this process."""
    import keras
    import tensorflow as tf

    import tfswap
    from examples.digits import digits, for_digits
    from examples.plain20 import plain20

    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    model = for_digits(plain20(10, training.activation))
    model.compile(
        optimizer=keras.optimizers.SGD(_LEARNING_RATE, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,
    )
    swap = tfswap.AutoSwap(
        budget=_BUDGET,
        link_bandwidth=training.link_gb_s * 1e9,
        lossy=training.lossy,
        verbose=0,
    )
    x, y = digits(_DIGITS)
    history = model.fit(
        x,
        y,
        batch_size=_BATCH,
        epochs=training.epochs,
        validation_split=_VALIDATION_SPLIT,
        verbose=0,
        callbacks=[swap],
    ).history
    loss, accuracy = history["val_loss"][-1], history["val_accuracy"][-1]
    use = swap.report.lossy
    if use is None:
        return Outcome(loss, accuracy)
    return Outcome(loss, accuracy, use.top, use.bottom, use.worst_relative_error)


def compare(activation: str, link_gb_s: float, epochs: int) -> dict[str, Any]:
    """Run both trainings; return their line."""
    trainings = [Training(activation, link_gb_s, epochs, lossy) for lossy in (False, True)]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        exact, lossy = pool.map(train, trainings, chunksize=1)
    return line(trainings[1], exact, lossy)


def line(training: Training, exact: Outcome, lossy: Outcome) -> dict[str, Any]:
    """Return the values of KEYS."""
    return {
        "model": MODEL,
        "activation": training.activation,
        "epochs": training.epochs,
        "rate_top": lossy.rate_top,
        "rate_bottom": lossy.rate_bottom,
        "exact_loss": exact.loss,
        "lossy_loss": lossy.loss,
        "exact_accuracy": exact.accuracy,
        "lossy_accuracy": lossy.accuracy,
        "worst_relative_error": lossy.worst_relative_error,
    }
