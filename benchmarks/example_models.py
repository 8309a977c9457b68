"""Models of keras.io's example scripts, at a size that trains in seconds, with random data.

Each builder takes the side of an image, or a number of steps, and returns the model, its loss, and
the data of an example and of its target.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

CLASSES = 10
_UNITS, _VOCABULARY = 64, 2000


class Data:
    """The data of one example.

    Args:
        shape: Its shape.
        values: Number of different integers; 0 for floats from 0 to 1.
    """

    def __init__(self, *shape: int, values: int = 0) -> None:
        self.shape = shape
        self.values = values


Built = tuple[Any, str, Data, Data]


def _classifier(inputs: Any, x: Any, data: Data) -> Built:
    outputs = layers.Dense(CLASSES, activation="softmax")(x)
    return (
        keras.Model(inputs, outputs),
        "sparse_categorical_crossentropy",
        data,
        Data(values=CLASSES),
    )


def _patches(inputs: Any, size: int, units: int) -> Any:
    x = layers.Conv2D(units, size, strides=size)(inputs)
    return layers.Reshape((-1, units))(x)


def _encoder(x: Any, heads: int, units: int, hidden: int, rate: float = 0.1) -> Any:
    attended = layers.MultiHeadAttention(heads, units // heads, dropout=rate)(
        *[layers.LayerNormalization(epsilon=1e-6)(x)] * 2
    )
    x = layers.Add()([x, attended])
    y = layers.Dense(hidden, activation="gelu")(layers.LayerNormalization(epsilon=1e-6)(x))
    return layers.Add()([x, layers.Dense(units)(layers.Dropout(rate)(y))])


def vision_transformer(image: int) -> Built:
    """Build `image_classification_with_vision_transformer`."""
    inputs = keras.Input((image, image, 3))
    x = _patches(layers.RandomFlip("horizontal")(inputs), 6, _UNITS)
    x = x + layers.Embedding(x.shape[1], _UNITS)(keras.ops.arange(x.shape[1]))
    for _ in range(8):
        x = _encoder(x, 4, _UNITS, 2 * _UNITS)
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    x = layers.Dropout(0.5)(layers.Dense(512, activation="gelu")(layers.Dropout(0.5)(x)))
    return _classifier(inputs, x, Data(image, image, 3))


def mlp_mixer(image: int) -> Built:
    """Build the MLP-Mixer of `mlp_image_classification`."""
    inputs = keras.Input((image, image, 3))
    x = _patches(inputs, 8, 4 * _UNITS)
    tokens = x.shape[1]
    for _ in range(4):
        y = layers.Permute((2, 1))(layers.LayerNormalization(epsilon=1e-6)(x))
        y = layers.Dense(tokens)(layers.Dense(tokens, activation="gelu")(y))
        x = layers.Add()([x, layers.Permute((2, 1))(y)])
        y = layers.Dense(x.shape[-1], activation="gelu")(layers.LayerNormalization(epsilon=1e-6)(x))
        x = layers.Add()([x, layers.Dropout(0.2)(layers.Dense(x.shape[-1])(y))])
    return _classifier(inputs, layers.GlobalAveragePooling1D()(x), Data(image, image, 3))


def conv_mixer(image: int) -> Built:
    """Build `convmixer`."""
    inputs = keras.Input((image, image, 3))

    def activated(x: Any) -> Any:
        return layers.BatchNormalization()(layers.Activation("gelu")(x))

    x = activated(layers.Conv2D(256, 2, strides=2)(layers.Rescaling(1.0)(inputs)))
    for _ in range(8):
        y = activated(layers.DepthwiseConv2D(5, padding="same")(x))
        x = activated(layers.Conv2D(256, 1)(layers.Add()([y, x])))
    return _classifier(inputs, layers.GlobalAvgPool2D()(x), Data(image, image, 3))


def autoencoder(image: int) -> Built:
    """Build the convolutional `autoencoder`."""
    x = inputs = keras.Input((image, image, 1))
    for _ in range(2):
        x = layers.Conv2D(32, 3, activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2, padding="same")(x)
    for _ in range(2):
        x = layers.Conv2DTranspose(32, 3, strides=2, activation="relu", padding="same")(x)
    outputs = layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x)
    data = Data(*outputs.shape[1:])
    return keras.Model(inputs, outputs), "binary_crossentropy", Data(image, image, 1), data


def conv_lstm(image: int) -> Built:
    """Build `conv_lstm`: the next frames of ten."""
    x = inputs = keras.Input((10, image // 2, image // 2, 1))
    for size in (5, 3, 1):
        x = layers.ConvLSTM2D(32, size, padding="same", return_sequences=True, activation="relu")(x)
        x = layers.BatchNormalization()(x) if size > 1 else x
    outputs = layers.Conv3D(1, 3, activation="sigmoid", padding="same")(x)
    data = Data(*inputs.shape[1:])
    return keras.Model(inputs, outputs), "binary_crossentropy", data, data


def timeseries_transformer(steps: int) -> Built:
    """Build `timeseries_classification_transformer`."""
    x = inputs = keras.Input((4 * steps, 1))
    for _ in range(4):
        y = layers.MultiHeadAttention(num_heads=4, key_dim=256, dropout=0.25)(x, x)
        y = layers.LayerNormalization(epsilon=1e-6)(layers.Dropout(0.25)(y))
        x = y + x
        y = layers.Dropout(0.25)(layers.Conv1D(4, 1, activation="relu")(x))
        x = layers.LayerNormalization(epsilon=1e-6)(layers.Conv1D(1, 1)(y)) + x
    x = layers.GlobalAveragePooling1D(data_format="channels_last")(x)
    x = layers.Dropout(0.4)(layers.Dense(128, activation="relu")(x))
    return _classifier(inputs, x, Data(4 * steps, 1))


def text_transformer(steps: int) -> Built:
    """Build `text_classification_with_transformer`."""
    inputs = keras.Input((2 * steps,), dtype="int32")
    positions = keras.ops.arange(2 * steps)
    x = layers.Embedding(_VOCABULARY, _UNITS)(inputs)
    x = _encoder(x + layers.Embedding(2 * steps, _UNITS)(positions), 2, _UNITS, _UNITS)
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(x))
    return _classifier(inputs, x, Data(2 * steps, values=_VOCABULARY))


def bidirectional_lstm(steps: int) -> Built:
    """Build `bidirectional_lstm_imdb`."""
    inputs = keras.Input((2 * steps,), dtype="int32")
    x = layers.Embedding(_VOCABULARY, 2 * _UNITS)(inputs)
    x = layers.Bidirectional(layers.LSTM(_UNITS, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(_UNITS))(x)
    return _classifier(inputs, x, Data(2 * steps, values=_VOCABULARY))


def captcha(image: int) -> Built:
    """Build the convolutions and LSTMs of `captcha_ocr`, with a class instead of a text."""
    x = inputs = keras.Input((4 * image, image, 1))
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, activation="relu", padding="same")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Reshape((image, image // 4 * 64))(x)
    x = layers.Dropout(0.2)(layers.Dense(64, activation="relu")(x))
    for units in (128, 64):
        x = layers.Bidirectional(layers.LSTM(units, return_sequences=True, dropout=0.25))(x)
    return _classifier(inputs, layers.GlobalAveragePooling1D()(x), Data(4 * image, image, 1))


def super_resolution(image: int) -> Built:
    """Build `super_resolution_sub_pixel`."""
    x = inputs = keras.Input((image, image, 1))
    for filters, size in ((64, 5), (64, 3), (32, 3), (9, 3)):
        x = layers.Conv2D(filters, size, activation="relu", padding="same")(x)
    x = layers.Reshape((image, image, 3, 3))(x)
    x = layers.Permute((1, 3, 2, 4))(x)
    outputs = layers.Reshape((3 * image, 3 * image, 1))(x)
    data = Data(3 * image, 3 * image, 1)
    return keras.Model(inputs, outputs), "mean_squared_error", Data(image, image, 1), data


def volumes(image: int) -> Built:
    """Build `3D_image_classification`."""
    x = inputs = keras.Input((image // 2, image // 2, image // 4, 1))
    for filters in (64, 64, 128):
        x = layers.Conv3D(filters, 3, activation="relu", padding="same")(x)
        x = layers.BatchNormalization()(layers.MaxPool3D(2)(x))
    x = layers.Dense(512, activation="relu")(layers.GlobalAveragePooling3D()(x))
    return _classifier(inputs, layers.Dropout(0.3)(x), Data(*inputs.shape[1:]))


def point_net(points: int) -> Built:
    """Build `pointnet`."""
    inputs = keras.Input((8 * points, 3))

    def convolved(x: Any, filters: int) -> Any:
        x = layers.Conv1D(filters, 1, padding="valid")(x)
        return layers.Activation("relu")(layers.BatchNormalization(momentum=0.0)(x))

    def transformed(x: Any, features: int) -> Any:
        y = convolved(convolved(convolved(x, 32), 64), 512)
        y = layers.GlobalMaxPooling1D()(y)
        y = layers.Dense(features * features)(layers.Dense(128, activation="relu")(y))
        return layers.Dot(axes=(2, 1))([x, layers.Reshape((features, features))(y)])

    x = transformed(inputs, 3)
    x = transformed(convolved(convolved(x, 32), 32), 32)
    for filters in (32, 64, 512):
        x = convolved(x, filters)
    x = layers.Dense(256, activation="relu")(layers.GlobalMaxPooling1D()(x))
    return _classifier(inputs, layers.Dropout(0.3)(x), Data(8 * points, 3))
