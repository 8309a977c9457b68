"""Steps that work on parts of images, where the batch is too small to be cut."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import budget_of, compiled, deterministic, trained
from sectioned import filters, gradient, in_sections, numbers

import tfswap

SECTIONS = 4
IMAGE = (1, 38, 20, 3)


def convolution(strides: int, padding: object, size: int = 3, dilations: int = 1) -> object:
    return lambda x: tf.nn.conv2d(x, filters(size, size, 3, 5), strides, padding, None, dilations)


EXPLICIT = [[0, 0], [2, 1], [0, 1], [0, 0]]

CONVOLUTIONS = {
    "same": convolution(1, "SAME"),
    "valid": convolution(1, "VALID"),
    "explicit": convolution(1, EXPLICIT),
    "strided same": convolution(2, "SAME"),
    "strided valid": convolution(2, "VALID", 5),
    "rows between windows": convolution(2, "VALID", 1),
    "far between": convolution(3, "SAME", 2),
    "dilated": convolution(1, "SAME", 3, 2),
    "depthwise": lambda x: tf.nn.depthwise_conv2d(x, filters(3, 3, 3, 2), [1, 2, 2, 1], "SAME"),
}


def weights_of(of: object, *shape: int) -> object:
    """The gradient of weights that a convolution multiplies with its own."""

    def computed(x: tf.Tensor) -> tf.Tensor:
        weights = numbers(*shape, seed=2)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            made = of(x, weights) ** 2
        return tape.gradient(made, weights)

    return computed


def deconvolved(x: tf.Tensor) -> tf.Tensor:
    _, rows, columns, _ = x.shape
    shape = [1, 2 * rows, 2 * columns, 5]
    return tf.nn.conv2d_transpose(x, filters(3, 3, 5, 3), shape, 2, "SAME")


def normalised(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [0, 1, 2], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 0.1) * filters(3)


def pixels(x: tf.Tensor) -> tf.Tensor:
    """The loss of each pixel, and its gradient."""
    labels = tf.argmax(x, axis=-1)
    logits = tf.reshape(x * 2.0, [-1, 3])
    flat = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), logits)
    return tf.reshape(flat, x.shape[:3])


def upsampled(x: tf.Tensor) -> tf.Tensor:
    return keras.ops.repeat(keras.ops.repeat(x, 2, axis=1), 2, axis=2)


def joined(x: tf.Tensor) -> tf.Tensor:
    first, second = tf.split(tf.concat([x, -x], axis=-1), 2, axis=-1)
    return tf.transpose(
        first + tf.pad(second[..., :1], [[0, 0], [0, 0], [0, 0], [2, 0]]), [0, 2, 1, 3]
    )


# What is computed, and whether it is a sum over the image.
CASES = {
    **{name: (of, False) for name, of in CONVOLUTIONS.items()},
    **{f"{name}, gradient": (gradient(lambda x, of=of: of(x) ** 2), False) for name, of in CONVOLUTIONS.items()},
    "filter gradient": (weights_of(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), 3, 3, 3, 5), True),
    "strided filter gradient": (
        weights_of(lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"), 3, 3, 3, 5),
        True,
    ),
    "depthwise filter gradient": (
        weights_of(lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"), 3, 3, 3, 2),
        True,
    ),
    "bias": (lambda x: tf.nn.relu(tf.nn.bias_add(x, filters(3))) * filters(20, 1), False),
    "bias gradient": (weights_of(lambda x, b: tf.nn.bias_add(x, b), 3), True),
    "transposed": (deconvolved, False),
    "transposed, gradient": (gradient(lambda x: deconvolved(x) ** 2), False),
    "pool": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID") + tf.nn.avg_pool2d(x, 2, 2, "SAME"), False),
    "pool, gradient": (
        gradient(lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID") ** 2 + tf.nn.avg_pool2d(x, 2, 2, "SAME")),
        False,
    ),
    "windows that overlap": (lambda x: tf.nn.max_pool2d(x, 3, 2, "VALID"), False),
    "windows that overlap, gradient": (gradient(lambda x: tf.nn.max_pool2d(x, 3, 2, "VALID") ** 2), False),
    "padding": (lambda x: tf.pad(x, [[0, 0], [3, 2], [1, 0], [0, 0]]), False),
    "padding, gradient": (gradient(lambda x: tf.pad(x, [[0, 0], [3, 2], [1, 0], [0, 0]]) ** 2), False),
    "moments": (normalised, True),
    "moments, gradient": (gradient(lambda x: normalised(x) ** 3), True),
    "global mean": (lambda x: tf.reduce_mean(x * x, [1, 2]), True),
    "global mean, gradient": (gradient(lambda x: tf.reduce_mean(x * x, [1, 2]) ** 2), True),
    "channels": (lambda x: tf.nn.softmax(x) + tf.reduce_max(x, 3, keepdims=True), False),
    "pixels": (pixels, False),
    "pixels, gradient": (gradient(pixels), False),
    "upsampled": (upsampled, False),
    "upsampled, gradient": (gradient(lambda x: upsampled(x) ** 2), False),
    "joined": (joined, False),
    "joined, gradient": (gradient(lambda x: joined(x) ** 2), False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_ops_work_on_parts_of_an_image(lib, case):
    compute, is_sum = CASES[case]
    found, expected, nodes = in_sections(lib, compute, numbers(*IMAGE), SECTIONS)
    # Nothing is put together before the end.
    assert sum(name.endswith("/whole") for name in nodes) <= 1, nodes
    # Windows' products are added in another order where another size of image has other kernels.
    off = np.abs(found - expected).max() / np.abs(expected).max()
    assert off <= (1e-5 if is_sum else 2e-6)
