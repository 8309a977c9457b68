"""Train a small decoder-only Transformer inside half of the memory that it needs.

    python examples/transformer.py [--budget 0.5] [--steps 40] [--quick]

It learns to write Python, character by character, from the source of Python's own library. It is
trained twice from the same weights: without swaps, which shows how much memory it needs, and under
`tfswap.AutoSwap` with a budget that it does not fit in. The losses of all steps are the same, bit
for bit. This takes two minutes on two cores; with `--quick`, which is smaller, 25 seconds.
"""

from __future__ import annotations

import argparse
import re
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
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
CHARACTERS = 128  # of ASCII
TOKENS, BATCH = 128, 16


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


def decoder(blocks: int, width: int, heads: int) -> keras.Model:
    """Build a language model of pre-normalized blocks, as in GPT-2.

    Args:
        blocks: Number of blocks, of attention and a hidden layer each.
        width: Width of the activations between blocks.
        heads: Heads of each attention; `width` is a multiple.
    """
    ids = keras.Input((TOKENS,), dtype="int32")
    positions = keras.ops.expand_dims(keras.ops.arange(TOKENS), 0)
    x = layers.Embedding(CHARACTERS, width)(ids) + layers.Embedding(TOKENS, width)(positions)
    for _ in range(blocks):
        normalised = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads)
        x = x + attention(normalised, normalised, use_causal_mask=True)
        hidden = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(hidden)
    return keras.Model(ids, layers.Dense(CHARACTERS)(layers.LayerNormalization()(x)))


def pieces(count: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return pieces of Python's library, [count, TOKENS], and the characters that follow each."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py"))
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    characters = np.frombuffer(source.encode("ascii", "ignore"), np.uint8).astype(np.int32)
    begins = np.random.default_rng(1).integers(len(characters) - TOKENS, size=(count, 1))
    found = characters[begins + np.arange(TOKENS + 1)]
    return found[:, :-1], found[:, 1:]


def train(
    options: argparse.Namespace, callbacks: Sequence[keras.callbacks.Callback] = ()
) -> Training:
    """Train a new model. The same options give the same losses."""
    tf.config.experimental.enable_op_determinism()
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = decoder(2, 128, 4) if options.quick else decoder(4, 256, 8)
    model.compile(
        optimizer=keras.optimizers.Adam(0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    model.optimizer.build(model.trainable_variables)  # otherwise fit traces the step twice
    x, y = pieces(BATCH * options.steps)
    losses, ends_s = [], []

    def step_ended(_: int, logs: dict[str, float]) -> None:
        losses.append(logs["loss"])
        ends_s.append(time.monotonic())

    steps = keras.callbacks.LambdaCallback(on_train_batch_end=step_ended)
    tfswap.reset_memory_stats()
    model.fit(x, y, BATCH, shuffle=False, verbose=0, callbacks=[*callbacks, steps])
    step_s = float(np.median(np.diff(ends_s[-6:])))
    return Training(losses, step_s, tfswap.memory_stats()["peak_bytes"])


def arguments(command_line: list[str] | None = None) -> argparse.Namespace:
    """Return the options of `train`, from this process's command line or another."""
    parser = argparse.ArgumentParser(
        description="Train a Transformer inside a part of the memory that it needs."
    )
    parser.add_argument(
        "--budget", default="0.5", help="such as 400MiB, or a part of what it needs (0.5)"
    )
    parser.add_argument("--steps", type=int, default=0, help="of each training (40; quick: 18)")
    parser.add_argument("--quick", action="store_true", help="a smaller model")
    options = parser.parse_args(command_line)
    options.steps = options.steps or (18 if options.quick else 40)
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
