"""Steps that work on parts of images, when the batch is too small to be cut."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import Losses, budget_of, compiled, deterministic, trained
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
    """Return a function for the gradient of weights that a convolution multiplies by others."""

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
    """Compute the loss of each pixel, which deterministic ops cut, too."""
    labels = tf.reshape(tf.one_hot(tf.argmax(x, axis=-1), 3), [-1, 3])
    logits = tf.reshape(x * 2.0, [-1, 3])
    flat = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    return tf.reshape(flat, x.shape[:3])


def upsampled(x: tf.Tensor) -> tf.Tensor:
    return keras.ops.repeat(keras.ops.repeat(x, 2, axis=1), 2, axis=2)


def joined(x: tf.Tensor) -> tf.Tensor:
    first, second = tf.split(tf.concat([x, -x], axis=-1), 2, axis=-1)
    return tf.transpose(
        first + tf.pad(second[..., :1], [[0, 0], [0, 0], [0, 0], [2, 0]]), [0, 2, 1, 3]
    )


def padded(x: tf.Tensor) -> tf.Tensor:
    return tf.pad(x, [[0, 0], [3, 2], [1, 0], [0, 0]])


def pooled(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool2d(x, 2, 2, "VALID") ** 2 + tf.nn.avg_pool2d(x, 2, 2, "SAME")


def overlapping(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool2d(x, 3, 2, "VALID")


def global_mean(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x * x, [1, 2])


def depthwise(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.nn.depthwise_conv2d(x, weights, [1, 1, 1, 1], "SAME")


COMPUTED = {
    **CONVOLUTIONS,
    "bias": lambda x: tf.nn.relu(tf.nn.bias_add(x, filters(3))) * filters(20, 1),
    "transposed": deconvolved,
    "pool": pooled,
    "windows that overlap": overlapping,
    "padding": padded,
    "channels": lambda x: tf.nn.softmax(x) + tf.reduce_max(x, 3, keepdims=True),
    "pixels": pixels,
    "upsampled": upsampled,
    "joined": joined,
}
SUMMED = {
    "moments": normalised,
    "global mean": global_mean,
    "filter gradient": weights_of(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), 3, 3, 3, 5),
    "strided filter gradient": weights_of(lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"), 3, 3, 3, 5),
    "depthwise filter gradient": weights_of(depthwise, 3, 3, 3, 2),
    "bias gradient": weights_of(tf.nn.bias_add, 3),
    "moments, gradient": gradient(lambda x: normalised(x) ** 3),
    "global mean, gradient": gradient(lambda x: global_mean(x) ** 2),
}
# A function, and whether its result is a sum over the image.
CASES = {
    **{name: (of, False) for name, of in COMPUTED.items()},
    **{
        f"{name}, gradient": (gradient(lambda x, of=of: of(x) ** 2), False)
        for name, of in COMPUTED.items()
    },
    **{name: (of, True) for name, of in SUMMED.items()},
}


@pytest.mark.parametrize("case", CASES)
def test_ops_work_on_parts_of_an_image(lib, case):
    compute, is_sum = CASES[case]
    found, expected, nodes = in_sections(lib, compute, numbers(*IMAGE), SECTIONS)
    # Sections are joined only at the end.
    assert sum(name.endswith("/whole") for name in nodes) <= 1, nodes
    # Other image sizes use other kernels, which add the products of a window in another order.
    off = np.abs(found - expected).max() / np.abs(expected).max()
    assert off <= (1e-5 if is_sum else 2e-6)


def small_unet(size: int = 96) -> keras.Model:
    x = inputs = keras.Input((size, size, 3))
    skipped = []
    for filters_ in (8, 16):
        x = keras.layers.Conv2D(filters_, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
        skipped.append(x)
        x = keras.layers.MaxPooling2D()(x)
    for filters_ in (16, 8):
        x = keras.layers.Conv2DTranspose(filters_, 2, strides=2)(x)
        x = keras.layers.Concatenate()([skipped.pop(), x])
        x = keras.layers.Conv2D(filters_, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, keras.layers.Conv2D(1, 1)(x))


def training(size: int, callbacks: list[Any], epochs: int = 1) -> Losses:
    random = np.random.default_rng(0)
    x = random.random((4, size, size, 3), dtype=np.float32)
    y = random.random((4, size, size, 1)).round()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return trained(
        lambda: compiled(small_unet(size), loss=loss),
        callbacks,
        batch_size=1,
        data=(x, y),
        epochs=epochs,
    )


def test_an_image_net_trains_by_rows():
    size = 104  # no multiple of four at every level
    unswapped = training(size, [])
    cut = training(size, [tfswap.AutoSwap(budget="2GiB", sections=SECTIONS, verbose=0)])
    np.testing.assert_allclose(cut.losses[:1], unswapped.losses[:1], rtol=1e-6)
    np.testing.assert_allclose(cut.losses, unswapped.losses, rtol=1e-4)


@pytest.mark.slow
def test_an_image_that_fits_no_layer_trains():
    deterministic()
    size = 384
    fit = {"size": size, "epochs": 4}
    plain = training(**fit, callbacks=[])
    expected = training(**fit, callbacks=[tfswap.AutoSwap("4GiB", sections=8, verbose=0)])
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"tfswap: the memory budget"):
        training(**fit, callbacks=[tfswap.AutoSwap(budget_of(plain, 0.25), verbose=0)])
    budget = budget_of(plain, 0.25)
    found = training(**fit, callbacks=[tfswap.AutoSwap(budget, sections=8, verbose=0)])
    assert found.losses == expected.losses
    assert max(found.peaks) <= budget
