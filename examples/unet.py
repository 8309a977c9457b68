"""Train a U-Net on large images inside two thirds of the memory that it needs.

    python examples/unet.py [--image 1024] [--batch 1] [--budget 0.65] [--steps 16] [--quick]

Memory limits the size of images in segmentation: a U-Net keeps its first, largest activations until
its last layers have read them again. This one finds discs of random shades in noise. It is trained
twice from the same weights: without swaps, which shows how much memory it needs, and under
`tfswap.AutoSwap` with a budget that it does not fit in. The losses of all steps are the same, bit
for bit. This takes two minutes on two cores; with `--quick`, on smaller images and with fewer
levels, 25 seconds.

Much less than half of the memory is not enough: on a CPU, the gradient of one convolution takes a
workspace of nine times its input, a third of the peak.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

if __name__ == "__main__":  # not where only the net is imported
    import cpu_only  # noqa: F401

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from numpy.typing import NDArray

import tfswap  # before TensorFlow's first operation: it provides the device that keeps the budget

MIB = 1 << 20
IMAGES = 4  # for each example of a batch


class Training(NamedTuple):
    """The result of a training.

    Attributes:
        losses: The mean loss so far, after each step.
        step_s: Duration of a step at the end, when everything is planned.
        peak_bytes: Peak memory of the device in any step.
    """

    losses: list[float]
    step_s: float
    peak_bytes: int

    def __str__(self) -> str:
        return f"peak {self.peak_bytes / MIB:.1f} MiB, {self.step_s:.2f} s a step"


def unet(image: int, filters: int = 8, depth: int = 4, batch_norm: bool = True) -> keras.Model:
    """Build a U-Net (Ronneberger et al. 2015) with padded convolutions and batch norm.

    Args:
        image: Height and width in pixels, a multiple of 2 to the power of `depth`.
        filters: Filters of the first two convolutions, which have the largest activations.
        depth: How often height and width are halved.
        batch_norm: Whether batch norm follows each convolution; the published net has none.
    """

    def convolved(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
        # Without batch norm, only He's initialization keeps the variance of activations.
        weights = "glorot_uniform" if batch_norm else "he_normal"
        for _ in range(2):
            x = layers.Conv2D(
                filters, 3, padding="same", use_bias=not batch_norm, kernel_initializer=weights
            )(x)
            x = layers.ReLU()(layers.BatchNormalization()(x) if batch_norm else x)
        return x

    x = inputs = keras.Input((image, image, 1))
    skipped = []
    for level in range(depth):
        x = convolved(x, filters << level)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = convolved(x, filters << depth)
    for level in reversed(range(depth)):
        x = layers.Conv2DTranspose(filters << level, 2, strides=2)(x)
        x = convolved(layers.Concatenate()([skipped[level], x]), filters << level)
    return keras.Model(inputs, layers.Conv2D(1, 1)(x))


def discs(count: int, image: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return noisy images with twelve random discs each, [count, image, image, 1], and masks."""
    random = np.random.default_rng(1)
    rows, columns = np.ogrid[:image, :image]
    x = random.normal(0, 0.3, (count, image, image)).astype(np.float32)
    y = np.zeros_like(x)
    for number in range(count):
        for row, column in random.integers(image, size=(12, 2)):
            radius = random.uniform(0.02, 0.1) * image
            inside = (rows - row) ** 2 + (columns - column) ** 2 < radius**2
            x[number][inside] += random.uniform(0.3, 1)
            y[number][inside] = 1
    return x[..., np.newaxis], y[..., np.newaxis]


def train(
    options: argparse.Namespace, callbacks: Sequence[keras.callbacks.Callback] = ()
) -> Training:
    """Train a new model. The same options give the same losses."""
    tf.config.experimental.enable_op_determinism()
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = unet(options.image, depth=2 if options.quick else 4)
    model.compile(
        optimizer=keras.optimizers.Adam(0.002),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=False,
    )
    model.optimizer.build(model.trainable_variables)  # otherwise fit traces the step twice
    x, y = discs(IMAGES * options.batch, options.image)
    losses, ends_s = [], []

    def step_ended(_: int, logs: dict[str, float]) -> None:
        losses.append(logs["loss"])
        ends_s.append(time.monotonic())

    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(options.batch).repeat()
    steps = keras.callbacks.LambdaCallback(on_train_batch_end=step_ended)
    tfswap.reset_memory_stats()
    model.fit(
        data, steps_per_epoch=options.steps, shuffle=False, verbose=0, callbacks=[*callbacks, steps]
    )
    step_s = float(np.median(np.diff(ends_s[-6:])))
    return Training(losses, step_s, tfswap.memory_stats()["peak_bytes"])


def arguments(command_line: list[str] | None = None) -> argparse.Namespace:
    """Return the options of `train`, from this process's command line or another."""
    parser = argparse.ArgumentParser(
        description="Train a U-Net inside a part of the memory that it needs."
    )
    parser.add_argument("--image", type=int, default=0, help="pixels (1024; quick: 256)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--budget", default="0.65", help="such as 400MiB, or a part of what it needs (0.65)"
    )
    parser.add_argument("--steps", type=int, default=0, help="of each training (16; quick: 18)")
    parser.add_argument("--quick", action="store_true", help="smaller images, fewer levels")
    options = parser.parse_args(command_line)
    options.image = options.image or (256 if options.quick else 1024)
    options.steps = options.steps or (18 if options.quick else 16)
    return options


def budget_of(text: str, unswapped_peak_bytes: int) -> int | str:
    """Return a budget for AutoSwap: plain numbers up to 1 are parts of the unswapped peak."""
    is_part = re.fullmatch(r"[01]?\.\d+|1", text)
    return int(float(text) * unswapped_peak_bytes) if is_part else text


def main() -> None:
    """Train without swaps, then inside the budget."""
    options = arguments()
    unswapped = train(options)
    print(f"Without tfswap: {unswapped}.", flush=True)
    swap = tfswap.AutoSwap(budget=budget_of(options.budget, unswapped.peak_bytes))
    swapped = train(options, [swap])
    budget_bytes = swap.report["budget_bytes"]
    print(f"\nWith a budget of {budget_bytes / MIB:.1f} MiB: {swapped}.")
    if swapped.peak_bytes > budget_bytes:
        raise SystemExit("The device held more than its budget.")
    if swapped.losses != unswapped.losses:
        raise SystemExit("Losses differ.")
    print(
        f"The losses of all {options.steps} steps are the same, bit for bit: "
        f"{swapped.losses[0]:.3f} after the first step, {swapped.losses[-1]:.3f} in the mean."
    )


if __name__ == "__main__":
    main()
