"""Train AlexNet inside less memory than it needs.

    python examples/alexnet.py [--activation leaky_relu]

The data are scanned digits of 8 x 8 pixels, enlarged to 128 x 128. Tensors in far memory are
encoded where that makes the step shorter: ReLU leaves many zeros, leaky ReLU none. This takes about
a minute on two cores.
"""

from __future__ import annotations

if __name__ == "__main__":  # not where only the net is imported
    import cpu_only  # noqa: F401

import keras
from keras import layers


def alexnet(
    image: int = 224, classes: int = 1000, activation: str = "relu", hidden: int = 4096
) -> keras.Model:
    """Build AlexNet as in "One weird trick" (Krizhevsky 2014), which benchmarks commonly use.

    It differs from the first AlexNet (2012): one column, fewer filters, no local response
    normalization. Pooling overlaps in both.

    Args:
        image: Height and width in pixels, at least 64.
        classes: Number of classes.
        activation: Activation of all layers but the last: "relu", "leaky_relu" or another of Keras.
        hidden: Units of each of the two hidden layers.
    """
    x = inputs = keras.Input((image, image, 3))
    x = layers.ZeroPadding2D(2)(x)
    x = layers.Conv2D(64, 11, strides=4, activation=activation)(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Conv2D(192, 5, padding="same", activation=activation)(x)
    x = layers.MaxPooling2D(3, 2)(x)
    for filters in (384, 256, 256):
        x = layers.Conv2D(filters, 3, padding="same", activation=activation)(x)
    x = layers.Flatten()(layers.MaxPooling2D(3, 2)(x))
    for _ in range(2):
        x = layers.Dense(hidden, activation=activation)(layers.Dropout(0.5)(x))
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(x), name="alexnet")


if __name__ == "__main__":
    from digits import main  # beside this file

    main(
        lambda activation: alexnet(128, 10, activation, hidden=512),
        budget="98MiB",
        batch=64,
        steps=8,
        epochs=4,
        learning_rate=0.01,
    )
