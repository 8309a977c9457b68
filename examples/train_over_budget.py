"""Train ResNet50 inside a memory budget that it does not fit in.

The data are scanned digits of 8 x 8 pixels, enlarged to 96 x 96 inside the model. First the model
is trained without swaps: its first step fails, because it needs more than the budget. Then it is
trained under the same budget with tfswap.AutoSwap. This takes two minutes on two cores.
"""

from __future__ import annotations

import time

import cpu_only  # noqa: F401  # before TensorFlow
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfswap  # before TensorFlow's first operation: it provides the device that keeps the budget

BUDGET = "600MiB"
BATCH = 32
EPOCHS = 2
STEPS_PER_EPOCH = 15


def make_model() -> keras.Model:
    """Build ResNet50 for digits of one channel."""
    digits = keras.Input((8, 8, 1))
    enlarged = keras.layers.UpSampling2D(12, interpolation="bilinear")(digits)
    images = keras.layers.Concatenate()([enlarged] * 3)
    resnet = keras.applications.ResNet50(weights=None, input_tensor=images, classes=10)
    resnet.compile(
        optimizer=keras.optimizers.Adam(learning_rate=0.001),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,
    )
    return resnet


def main() -> None:
    """Train without AutoSwap, which fails, then with it."""
    digits = load_digits()
    x = digits.images[..., np.newaxis].astype(np.float32) / 16
    y = digits.target.astype(np.int32)
    x, y = x[: BATCH * STEPS_PER_EPOCH], y[: BATCH * STEPS_PER_EPOCH]

    print(f"1. ResNet50, batch {BATCH}, inside {BUDGET}, without AutoSwap:\n", flush=True)
    keras.utils.set_random_seed(1)
    model = make_model()
    tfswap.set_budget(BUDGET)
    try:
        model.fit(x[:BATCH], y[:BATCH], batch_size=BATCH, verbose=0)
        raise SystemExit(f"The model fits {BUDGET} without swaps: there is nothing to show.")
    except tf.errors.ResourceExhaustedError as error:
        # TensorFlow puts the Python stack of the op in front of the allocator's text.
        reason = error.message.partition("tfswap: ")[2].partition("\n")[0]
        print(f"ResourceExhaustedError: {reason or error.message}\n", flush=True)
    finally:
        tfswap.set_budget(None)
    del model
    keras.backend.clear_session()

    print(f"2. The same model, batch and budget, with AutoSwap(budget={BUDGET!r}):\n", flush=True)
    keras.utils.set_random_seed(1)
    model = make_model()
    tfswap.reset_memory_stats()
    begun_s = time.monotonic()
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=EPOCHS,
        verbose=2,
        callbacks=[tfswap.AutoSwap(budget=BUDGET)],
    )
    accuracies = ", ".join(f"{accuracy:.3f}" for accuracy in history.history["accuracy"])
    peak_mib = tfswap.memory_stats()["peak_bytes"] / 2**20
    print(f"\nAccuracy of the epochs: {accuracies}, in {time.monotonic() - begun_s:.0f} s.")
    print(f"The device never held more than {peak_mib:.0f} MiB of its {BUDGET}.")


if __name__ == "__main__":
    main()
