"""Train a GAN in a custom loop inside a part of the memory that it needs.

    python examples/custom_loop.py [--budget 0.7] [--steps 30] [--quick]

There is no `fit` and no callback here, but a loop that calls `tf.function`s. It is written in both
common ways: with a function for the discriminator's step and another for the generator's, which
share the budget of a `tfswap.Session`, and with one function for the whole step, decorated with
`tfswap.swap`. Each also runs without tfswap, which shows how much memory it needs; the losses are
the same, bit for bit. This takes a minute on two cores; with `--quick` 20 seconds.

The data are scanned digits of 8 x 8 pixels.
"""

from __future__ import annotations

import argparse
import gc
import re
import time
from collections.abc import Callable
from typing import NamedTuple

import cpu_only  # noqa: F401  # before TensorFlow
import keras
import numpy as np
import tensorflow as tf
from digits import digits  # beside this file
from keras import layers
from numpy.typing import NDArray

import tfswap  # before TensorFlow's first operation: it provides the device that keeps the budget

MIB = 1 << 20
NOISE, PIXELS = 64, 64
HIDDEN_LAYERS, WIDTH = 3, 256

Batches = list[tuple[NDArray[np.float32], NDArray[np.float32]]]


class Gan:
    """A generator of digits, and a discriminator between generated and scanned ones.

    Both have dense layers, as the first GANs did (Goodfellow et al. 2014).
    """

    def __init__(self) -> None:
        keras.utils.set_random_seed(1)
        x = noise = keras.Input((NOISE,))
        for _ in range(HIDDEN_LAYERS):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Dense(WIDTH)(x)))
        self.generator = keras.Model(noise, layers.Dense(PIXELS, activation="tanh")(x))

        x = seen = keras.Input((PIXELS,))
        for _ in range(HIDDEN_LAYERS):
            x = layers.LeakyReLU()(layers.Dense(WIDTH)(x))
        self.discriminator = keras.Model(seen, layers.Dense(1)(x))

        self._loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self._optimizers = {}
        for model in (self.generator, self.discriminator):
            optimizer = keras.optimizers.Adam(0.0002, beta_1=0.5)
            optimizer.build(model.trainable_variables)
            self._optimizers[model] = optimizer

    def train_discriminator(self, real: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """Train to tell real from generated images; return the loss."""
        made = self.generator(noise, training=True)
        images = tf.concat([real, made], axis=0)
        are_real = tf.concat([tf.ones_like(real[:, :1]), tf.zeros_like(made[:, :1])], axis=0)
        with tf.GradientTape() as tape:
            loss = self._loss(are_real, self.discriminator(images, training=True))
        self._apply(self.discriminator, tape, loss)
        return loss

    def train_generator(self, noise: tf.Tensor) -> tf.Tensor:
        """Train to make images that the discriminator takes for real; return the loss."""
        with tf.GradientTape() as tape:
            of_made = self.discriminator(self.generator(noise, training=True), training=True)
            loss = self._loss(tf.ones_like(of_made), of_made)
        self._apply(self.generator, tape, loss)
        return loss

    def train(self, real: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Train both, one after the other; return both losses."""
        return self.train_discriminator(real, noise), self.train_generator(noise)

    def _apply(self, model: keras.Model, tape: tf.GradientTape, loss: tf.Tensor) -> None:
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        self._optimizers[model].apply(gradients, variables)


class Training(NamedTuple):
    """The result of a training.

    Attributes:
        losses: Losses of the discriminator and of the generator, for each step.
        step_s: Duration of a step at the end, when everything is planned.
        peak_bytes: Peak memory of the device in any step.
        budget_bytes: The active budget; None if there was none.
    """

    losses: list[tuple[float, float]]
    step_s: float
    peak_bytes: int
    budget_bytes: int | None

    def __str__(self) -> str:
        return f"peak {self.peak_bytes / MIB:.1f} MiB, {self.step_s:.2f} s a step"


def run(
    step: Callable[[NDArray[np.float32], NDArray[np.float32]], tuple[tf.Tensor, tf.Tensor]],
    batches: Batches,
) -> Training:
    """Call a step with each batch."""
    losses, ends_s = [], []
    tfswap.reset_memory_stats()
    for real, noise in batches:
        of_discriminator, of_generator = step(real, noise)
        losses.append((float(of_discriminator), float(of_generator)))
        ends_s.append(time.monotonic())
    step_s = float(np.median(np.diff(ends_s[-6:])))
    stats = tfswap.memory_stats()
    return Training(losses, step_s, stats["peak_bytes"], stats["budget_bytes"])


def two_functions(batches: Batches) -> Training:
    """Run a loop that calls two functions in turns, without tfswap."""
    gan = Gan()

    @tf.function
    def discriminator_step(real: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        return gan.train_discriminator(real, noise)

    @tf.function
    def generator_step(noise: tf.Tensor) -> tf.Tensor:
        return gan.train_generator(noise)

    return run(
        lambda real, noise: (discriminator_step(real, noise), generator_step(noise)), batches
    )


def two_functions_swapped(batches: Batches, budget: str) -> Training:
    """Run the same loop, unchanged, inside a budget."""
    with tfswap.Session(budget=budget, verbose=0) as session:
        training = two_functions(batches)
    for name, report in session.reports.items():
        print(f"{name}:\n{report}")
    return training


def one_function(batches: Batches) -> Training:
    """Run a loop that calls one function."""
    return run(tf.function(Gan().train), batches)


def one_function_swapped(batches: Batches, budget: str) -> Training:
    """Run the same loop with a decorated function."""
    gan = Gan()

    @tfswap.swap(budget=budget, verbose=0)
    @tf.function
    def train_step(real: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return gan.train(real, noise)

    training = run(train_step, batches)
    print(train_step.report)
    train_step.release()  # the budget, which otherwise stays active until the process ends
    return training


def compare(
    unswapped_loop: Callable[[Batches], Training],
    swapped_loop: Callable[[Batches, str], Training],
    batches: Batches,
    budget: str,
) -> None:
    """Run a loop without tfswap, then inside a budget, and compare.

    Args:
        unswapped_loop: The loop without tfswap.
        swapped_loop: The same loop inside the budget that it is given.
        batches: Batches for both.
        budget: Such as "90MiB", or a part of what the loop needs without tfswap, "0.7".
    """
    unswapped = unswapped_loop(batches)
    print(f"Without tfswap: {unswapped}.", flush=True)
    keras.utils.clear_session()
    gc.collect()
    if re.fullmatch(r"[01]?\.\d+|1", budget):
        budget = str(int(float(budget) * unswapped.peak_bytes))
    swapped = swapped_loop(batches, budget)
    print(f"With a budget of {swapped.budget_bytes / MIB:.1f} MiB: {swapped}.")
    if swapped.peak_bytes > swapped.budget_bytes:
        raise SystemExit("The device held more than its budget.")
    if swapped.losses != unswapped.losses:
        raise SystemExit("Losses differ.")
    of_discriminator, of_generator = swapped.losses[-1]
    print(
        f"The losses of all {len(batches)} steps are the same, bit for bit. In the last:\n"
        f"{of_discriminator:.3f} of the discriminator, {of_generator:.3f} of the generator.\n",
        flush=True,
    )


def main() -> None:
    """Run both loops, each without and with tfswap."""
    parser = argparse.ArgumentParser(
        description="Train a GAN inside a part of the memory that it needs."
    )
    parser.add_argument(
        "--budget", default="0.7", help="such as 90MiB, or a part of what it needs (0.7)"
    )
    parser.add_argument("--steps", type=int, default=0, help="of each training (30; quick: 18)")
    parser.add_argument("--quick", action="store_true", help="smaller batches, fewer steps")
    options = parser.parse_args()
    batch = 2048 if options.quick else 4096
    steps = options.steps or (18 if options.quick else 30)

    tf.config.experimental.enable_op_determinism()
    random = np.random.default_rng(1)
    scanned = digits(1024)[0].reshape(-1, PIXELS)
    batches = [
        (random.choice(scanned, batch), random.normal(size=(batch, NOISE)).astype(np.float32))
        for _ in range(steps)
    ]
    print("1. Two functions, and a tfswap.Session around their loop:\n", flush=True)
    compare(two_functions, two_functions_swapped, batches, options.budget)
    print("2. One function, with @tfswap.swap:\n", flush=True)
    compare(one_function, one_function_swapped, batches, options.budget)


if __name__ == "__main__":
    main()
