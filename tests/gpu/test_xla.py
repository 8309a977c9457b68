"""XLA under a session on a GPU: Keras' functions and one's own run op by op."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfswap

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")

MIB = 1 << 20


@pytest.fixture
def budget(number: int) -> int:
    return tfswap.memory_stats("GPU:0")["bytes_in_use"] + 64 * MIB


def test_predict_and_evaluate_run_without_xla(budget: int) -> None:
    inputs = keras.Input((64,))
    model = keras.Model(inputs, keras.layers.Dense(64, use_bias=False)(inputs))
    model.compile(loss="mse", jit_compile=True)
    x = np.ones((8, 64), np.float32)
    with tfswap.Session(budget=budget, verbose=0):
        assert model.predict(x, verbose=0).shape == (8, 64)
        model.evaluate(x, x, verbose=0)
    assert model.jit_compile


def test_a_function_runs_without_xla(budget: int) -> None:
    weights = tf.Variable(tf.ones([64, 64]))

    @tf.function(jit_compile=True)
    def product(x: tf.Tensor) -> Any:
        return tf.matmul(x, weights)

    with tfswap.Session(budget=budget, verbose=0):
        assert product(tf.ones([8, 64])).shape == (8, 64)
