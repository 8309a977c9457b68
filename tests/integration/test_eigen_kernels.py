"""Trainings with Eigen's kernels, which TensorFlow takes on CPUs without VNNI.

Their convolutions have larger workspaces, and no later pass fuses ops.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, compiled, deterministic, others_bytes

import tfswap

TESTS = (
    "test_eigen_kernels.py::test_a_plan_is_applied_when_batches_have_grown",
    "test_ways_to_train.py::test_a_custom_train_step",
)


def dropouts() -> keras.Model:
    x = inputs = keras.Input((24, 24, 8))
    for _ in range(4):
        x = keras.layers.Conv2D(32, 3, padding="same", activation="relu")(x)
        x = keras.layers.Dropout(0.1)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return compiled(keras.Model(inputs, keras.layers.Dense(4)(x)))


def growing() -> tf.data.Dataset:
    random = np.random.default_rng(0)
    x, y = random.random((80, 24, 24, 8), dtype=np.float32), random.integers(0, 4, 80)

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for size in (16, 16, 16, 80, 16, 80, 80, 80, 80, 80):
            yield x[:size], y[:size]

    signature = (tf.TensorSpec((None, 24, 24, 8)), tf.TensorSpec((None,), tf.int64))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def losses(callbacks: list[keras.callbacks.Callback]) -> list[float]:
    keras.utils.set_random_seed(3)
    return dropouts().fit(growing(), verbose=0, callbacks=callbacks).history["loss"]


def test_a_plan_is_applied_when_batches_have_grown():
    deterministic()
    expected = losses([])
    swap = tfswap.AutoSwap(others_bytes() + 60 * MIB, verbose=0)
    assert losses([swap]) == expected
    assert not [note for note in swap.report["notes"] if "not applied" in note]


@pytest.mark.parametrize("test", TESTS)
def test_with_eigens_kernels(test: str):
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", test],
        cwd=Path(__file__).parent,
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
