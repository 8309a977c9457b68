"""Gradients of oneDNN's maximum poolings read a workspace: what poolings read and make leaves."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import Losses, budget_of, compiled, deterministic, trained
from planned_functions import run

import tfswap
from tfswap.plan.schema import SwapPlan
from tfswap.step.graph import Node, StepGraph
from tfswap.traces.timeline_file import load_profile

SIDE = 16
LAZY = SwapPlan(unmatched="bootstrap", min_bytes=0)


@pytest.fixture(scope="module", autouse=True)
def determinism():
    deterministic()


@pytest.fixture(scope="module", autouse=True)
def one_dnn():
    from tensorflow.python.util import _pywrap_util_port

    if not _pywrap_util_port.IsMklEnabled():
        pytest.skip("TensorFlow does not use oneDNN on this machine")


def pooled(lib, ksize, dtype=tf.float32) -> tuple[Node, StepGraph]:
    """Return the gradient of a pooling in a function that the pass has rewritten, and its graph.

    Many values are equal: which of them is the maximum is up to the pooling.
    """
    random = np.random.default_rng(5)
    x = tf.constant(random.integers(0, 3, (4, SIDE, SIDE, 8)), dtype)

    @tf.function
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.max_pool2d(x * 2.0, ksize, ksize, "SAME")
            width = y.shape[-1]
            y = tf.reshape(y, [-1, width])
            for _ in range(4):
                y = tf.nn.relu(tf.matmul(y, tf.ones([width, width], dtype))) / 8.0
            loss = tf.reduce_sum(y * y)
        return loss, tape.gradient(loss, x)

    expected = [value.numpy() for value in f(x)]
    result, record = run(lib, LAZY, f, x)
    assert record["outcome"] == "bootstrapped", record["reason"]
    for value, wanted in zip(result, expected, strict=True):
        assert np.array_equal(value.numpy(), wanted)
    graph = StepGraph.parse(lib.describe(record["fingerprint"]))
    return next(node for node in graph.nodes.values() if node.op == "MaxPoolGrad"), graph


@pytest.mark.parametrize("ksize", [2, 3])
def test_a_gradient_reads_shapes(lib, ksize):
    gradient, graph = pooled(lib, ksize)
    pooling = next(node for node in graph.nodes.values() if node.op == "MaxPool")
    assert pooling.producer
    assert len(gradient.inputs) == 1
    assert {pooling.name, pooling.inputs[0][0]} <= set(gradient.controls)


def test_gradients_of_other_types_read_tensors(lib):
    gradient, _ = pooled(lib, 2, dtype=tf.float64)
    assert len(gradient.inputs) == 3


def net() -> keras.Model:
    x = inputs = keras.Input((64, 64, 3))
    for filters in (16, 32, 32):
        x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = keras.layers.MaxPooling2D(3, 2, padding="same")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return compiled(keras.Model(inputs, keras.layers.Dense(4)(x)))


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    # Of few values, so that maxima are equal.
    return random.integers(0, 3, (128, 64, 64, 3)).astype("f"), random.integers(0, 4, 128)


def test_what_poolings_read_and_make_leaves(tmp_path):
    def train(budget: int | None = None, save_profile=None) -> Losses:
        options = {"verbose": 0, "save_profile": save_profile}
        swap = [] if budget is None else [tfswap.AutoSwap(budget=budget, **options)]
        return trained(net, swap, data=data(), epochs=3)

    unswapped = train()
    path = tmp_path / "step.profile"
    swapped = train(budget_of(unswapped, 0.75), path)
    assert swapped.losses == unswapped.losses
    profile = load_profile(path)
    gone = {
        absence.tensor.partition("/MaxPool")[0].rpartition("/")[2]
        for absence in profile.timeline.absences
        if "/MaxPool" in absence.tensor
        and any("gradient_tape" in name for name in absence.consumers)
    }
    assert len(gone) >= 2  # those that the next convolution's gradient reads
    users = [name for name in profile.timeline.op_names if "MaxPoolGrad" in name]
    assert users
