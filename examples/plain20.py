"""Train a plain net of 20 layers inside half of the memory that it needs.

    python examples/plain20.py [--activation leaky_relu]

The data are scanned digits of 8 x 8 pixels, enlarged to 32 x 32. What leaves the device for far
memory is encoded where that makes the step shorter: ReLU leaves many zeros, leaky ReLU none. Takes
about a minute on two cores.
"""

from __future__ import annotations

if __name__ == "__main__":  # who imports the net decides for himself
    import cpu_only  # noqa: F401

import keras
from keras import layers


def plain20(classes: int = 10, activation: str = "relu") -> keras.Model:
    """ResNet-20 for images of 32 x 32 pixels without its shortcuts (He et al. 2016, section 4.2).

    Three stages of six convolutions, each with batch norm, behind one more.

    Args:
        classes: How many there are to tell apart.
        activation: Of all layers but the last: "relu", "leaky_relu" or another of Keras's.
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
