"""Load scanned digits, and train nets for larger images with three channels on them.

Data: scikit-learn's copy of the test set of the UCI ML hand-written digits, 1,797 images of 8 x 8
pixels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import keras
import numpy as np
from keras import layers
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import tfswap  # before TensorFlow's first operation: it provides the device that keeps the budget


def digits(count: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return the first images, [count, 8, 8, 1] in -1..1 (black is not 0), and their labels."""
    scanned = load_digits()
    x = scanned.images[:count, :, :, np.newaxis].astype(np.float32) / 8 - 1
    return x, scanned.target[:count].astype(np.int32)


def for_digits(net: keras.Model) -> keras.Model:
    """Put layers in front of a net that enlarge digits to its images, on the device."""
    scanned = keras.Input((8, 8, 1))
    enlarged = layers.UpSampling2D(net.input_shape[1] // 8, interpolation="bilinear")(scanned)
    return keras.Model(scanned, net(layers.Concatenate()([enlarged] * 3)))


def main(
    build: Callable[[str], keras.Model],
    budget: str,
    batch: int,
    steps: int,
    epochs: int,
    learning_rate: float,
) -> None:
    """Train inside a budget, and print what was moved.

    Args:
        build: Builds the net with the activation of the command line, "relu" or "leaky_relu", for
            images with three channels whose sides are multiples of 8.
        budget: Budget of the device's memory, in the forms of `tfswap.AutoSwap`.
        batch: Examples in a batch.
        steps: Steps in an epoch.
        epochs: Number of epochs.
        learning_rate: Learning rate of SGD with momentum.
    """
    parser = argparse.ArgumentParser(description="Train a net inside less memory than it needs.")
    parser.add_argument("--activation", choices=("relu", "leaky_relu"), default="relu")
    activation = parser.parse_args().activation
    keras.utils.set_random_seed(1)
    net = build(activation)
    model = for_digits(net)
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,
    )
    print(f"{net.name} on digits, batch {batch}, inside {budget}:", flush=True)
    x, y = digits(batch * steps)
    swap = tfswap.AutoSwap(budget=budget, codec="auto")
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=2, callbacks=[swap])

    stats = tfswap.memory_stats()
    peak_mib, encoded_mib, kept_mib = (
        stats[key] / 2**20
        for key in ("peak_bytes", "far_compressed_bytes_out", "far_compressed_kept_bytes_out")
    )
    print(f"\nThe device never held more than {peak_mib:.0f} MiB of its {budget}.")
    print(f"In all steps, {encoded_mib:.0f} MiB left it encoded, as {kept_mib:.0f} MiB.")
