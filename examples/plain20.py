"""Train a plain net of 20 layers inside half of the memory that it needs.

    python examples/plain20.py [--activation leaky_relu]

The data are scanned digits of 8 x 8 pixels, enlarged to 32 x 32. Tensors in far memory are
encoded where that makes the step shorter: ReLU leaves many zeros, leaky ReLU none. This takes about
a minute on two cores.
"""

from __future__ import annotations

if __name__ == "__main__":  # not where only the net is imported
    import cpu_only  # noqa: F401

import keras
from keras import layers


def plain20(classes: int = 10, activation: str = "relu") -> keras.Model:
    """Build ResNet-20 for 32 x 32 images without its shortcuts (He et al. 2016, section 4.2).

    One convolution, then three stages of six, each convolution with batch norm.

    Args:
        classes: Number of classes.
        activation: Activation of all layers but the last: "relu", "leaky_relu" or another of Keras.
    """
    strides = [1] + [1] * 6 + [2] + [1] * 5 + [2] + [1] * 5
    filters = [16] * 7 + [32] * 6 + [64] * 6
    x = inputs = keras.Input((32, 32, 3))
    for wide, stride in zip(filters, strides, strict=True):
        x = layers.Conv2D(wide, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.Activation(activation)(layers.BatchNormalization()(x))
    x = layers.Dense(classes, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x, name="plain20")


if __name__ == "__main__":
    from digits import main  # beside this file

    main(
        lambda activation: plain20(10, activation),
        budget="97MiB",
        batch=128,
        steps=14,
        epochs=3,
        learning_rate=0.05,
    )
