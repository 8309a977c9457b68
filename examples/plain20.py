"""Train a plain net of 20 layers inside half of the memory that it needs.

    python examples/plain20.py [--activation leaky_relu]

The data are scanned digits of 8 x 8 pixels, enlarged to 32 x 32. What leaves the device for far
memory is encoded where that makes the step shorter: ReLU leaves many zeros, leaky ReLU none. Takes
about a minute on two cores.
"""

from __future__ import annotations

import argparse
import os

if __name__ == "__main__":  # who imports the net decides for himself
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # the budget is one of the CPU device

import keras
from keras import layers

BUDGET = "97MiB"
BATCH = 128
EPOCHS = 3
STEPS = 14


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


def main() -> None:
    """Trains, and says what was moved."""
    from digits import train  # beside this file

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--activation", choices=("relu", "leaky_relu"), default="relu")
    activation = parser.parse_args().activation
    keras.utils.set_random_seed(1)
    net = plain20(10, activation)
    train(net, BUDGET, batch=BATCH, steps=STEPS, epochs=EPOCHS, learning_rate=0.05)


if __name__ == "__main__":
    main()
