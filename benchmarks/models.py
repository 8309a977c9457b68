"""The trained models, with one random batch for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
_UNITS = 128  # of recurrent layers

TRANSFORMER = "Transformer"
UNET, PUBLISHED_UNET = "U-Net", "U-Net64"
RECURRENT = ("LSTM", "GRU", "RecurrentTransformer")
HUB = "hub:"
HUB_MODELS = ("hub:gemma", "hub:llama3", "hub:gpt2", "hub:bert")
# By name, the function in benchmarks/example_models.py.
EXAMPLES = {
    "ViT": "vision_transformer",
    "MLP-Mixer": "mlp_mixer",
    "ConvMixer": "conv_mixer",
    "Autoencoder": "autoencoder",
    "ConvLSTM": "conv_lstm",
    "TimeSeriesTransformer": "timeseries_transformer",
    "TextTransformer": "text_transformer",
    "BidirectionalLSTM": "bidirectional_lstm",
    "CaptchaOCR": "captcha",
    "SuperResolution": "super_resolution",
    "Conv3D": "volumes",
    "PointNet": "point_net",
}
LAYERS, WIDTH, HEADS, FEED_FORWARD, VOCABULARY = 6, 512, 8, 2048, 8000


@dataclass(frozen=True)
class Workload:
    """A compiled model and its training batch."""

    model: Any
    x: Any
    y: NDArray[Any]


def workload(name: str, batch: int, image: int, seed: int = 1) -> Workload:
    """Return a compiled model and batch, the same ones for the same arguments.

    Args:
        name: Any of keras.applications; "Transformer"; "U-Net", with 16 filters and batch norm, or
            "U-Net64", with 64 and none, as published; one of `RECURRENT`; one of
            `EXAMPLES`; "hub:" and a model of KerasHub.
        batch: Examples in a batch.
        image: Height and width in pixels; tokens of a sequence, or its time steps.
        seed: Seed of weights and data. Defaults to 1.

    Raises:
        ValueError: There is no such model.
    """
    import keras

    keras.utils.set_random_seed(seed)
    if name.startswith(HUB):
        return _of_hub(name.removeprefix(HUB), batch, image)
    random = np.random.default_rng(seed)
    if name in EXAMPLES:
        return _example(name, batch, image, random)
    if name == TRANSFORMER:
        model = transformer(image)
        x = random.integers(VOCABULARY, size=(batch, image), dtype=np.int32)
        y = random.integers(VOCABULARY, size=(batch, image), dtype=np.int32)
    elif name in RECURRENT:
        model = _recurrent(name, image)
        x = random.random((batch, image, _UNITS), dtype=np.float32)
        y = random.integers(CLASSES, size=batch, dtype=np.int32)
    elif name in (UNET, PUBLISHED_UNET):
        model = _unet(name, image)
        x = random.random((batch, image, image, 1), dtype=np.float32)
        y = (random.random(x.shape) < 0.25).astype(np.float32)
    else:
        model = _application(name, image)
        x = random.random((batch, image, image, 3), dtype=np.float32)
        y = random.integers(CLASSES, size=batch, dtype=np.int32)
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.01, momentum=0.9),
        loss=_loss(name),
        jit_compile=False,
    )
    return Workload(model, x, y)


def _example(name: str, batch: int, image: int, random: np.random.Generator) -> Workload:
    import keras

    from benchmarks import example_models

    model, loss, *data = getattr(example_models, EXAMPLES[name])(image)
    x, y = (
        random.integers(part.values, size=(batch, *part.shape), dtype=np.int32)
        if part.values
        else random.random((batch, *part.shape), dtype=np.float32)
        for part in data
    )
    model.compile(optimizer=keras.optimizers.Adam(0.001), loss=loss, jit_compile=False)
    return Workload(model, x, y)


def _of_hub(name: str, batch: int, tokens: int) -> Workload:
    from benchmarks.large_weights import hub_models

    size = hub_models.Size(4, 128, 4000, batch, tokens, 512)
    return Workload(hub_models.build(name, "all", size), *hub_models.data(name, size, 1))


def _loss(name: str) -> Any:
    from keras import losses

    if name in (UNET, PUBLISHED_UNET):
        return losses.BinaryCrossentropy(from_logits=True)  # for each pixel
    return losses.SparseCategoricalCrossentropy(from_logits=name in (TRANSFORMER, *RECURRENT))


def _recurrent(name: str, steps: int) -> Any:
    """Build two recurrent layers; in the Transformer, with attention over the states of each."""
    import keras
    from keras import layers

    x = inputs = keras.Input((steps, _UNITS))
    for _ in range(2):
        layer = layers.GRU if name == "GRU" else layers.LSTM
        x = layer(_UNITS, return_sequences=True)(x)
        if name == "RecurrentTransformer":
            attended = layers.MultiHeadAttention(4, _UNITS // 4)(x, x)
            x = layers.LayerNormalization()(x + attended)
    return keras.Model(inputs, layers.Dense(CLASSES)(x[:, -1]))


def _unet(name: str, image: int) -> Any:
    from examples.unet import unet

    published = name == PUBLISHED_UNET
    return unet(image, filters=64 if published else 16, batch_norm=not published)


def _application(name: str, image: int) -> Any:
    import keras

    factory = getattr(keras.applications, name, None)
    if factory is None or not callable(factory):
        ours = (TRANSFORMER, UNET, PUBLISHED_UNET, *RECURRENT)
        models = [n for n in dir(keras.applications) if n[0].isupper()]
        raise ValueError(f"unknown model {name!r}: allowed are {', '.join([*ours, *models])}")
    return factory(weights=None, input_shape=(image, image, 3), classes=CLASSES)


def transformer(
    tokens: int,
    depth: int = LAYERS,
    width: int = WIDTH,
    heads: int = HEADS,
    feed_forward: int = FEED_FORWARD,
    vocabulary: int = VOCABULARY,
) -> Any:
    """Build a decoder-only language model of pre-normalized layers, as GPT-2."""
    import keras
    from keras import layers

    ids = keras.Input((tokens,), dtype="int32")
    positions = keras.ops.expand_dims(keras.ops.arange(tokens), 0)
    x = layers.Embedding(vocabulary, width)(ids) + layers.Embedding(tokens, width)(positions)
    for _ in range(depth):
        normalised = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads)
        x = x + attention(normalised, normalised, use_causal_mask=True)
        hidden = layers.Dense(feed_forward, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(hidden)
    return keras.Model(ids, layers.Dense(vocabulary)(layers.LayerNormalization()(x)))


def squeezenet(image: int, classes: int = 1000, activation: str = "relu") -> Any:
    """Build SqueezeNet 1.1 (Iandola et al. 2016; 1.1 pools earlier, with less computation)."""
    import keras
    from keras import layers

    def fire(x: Any, squeezed: int, expanded: int) -> Any:
        x = layers.Conv2D(squeezed, 1, activation=activation)(x)
        return layers.Concatenate()(
            [
                layers.Conv2D(expanded, 1, activation=activation)(x),
                layers.Conv2D(expanded, 3, padding="same", activation=activation)(x),
            ]
        )

    x = inputs = keras.Input((image, image, 3))
    x = layers.Conv2D(64, 3, strides=2, activation=activation)(x)
    for stage in ((16, 16), (32, 32), (48, 48, 64, 64)):
        x = layers.MaxPooling2D(3, 2)(x)
        for squeezed in stage:
            x = fire(x, squeezed, 4 * squeezed)
    x = layers.Conv2D(classes, 1, activation=activation)(layers.Dropout(0.5)(x))
    x = layers.Softmax()(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x, name="squeezenet")


def with_activation(model: Any, activation: str) -> Any:
    """Return a model with new weights and another activation in place of each kind of ReLU."""
    import keras
    from keras import layers

    def other(layer: Any) -> Any:
        config = layer.get_config()
        if isinstance(layer, layers.ReLU):
            return layers.Activation(activation, name=layer.name)
        if config.get("activation") in ("relu", "relu6"):
            config["activation"] = activation
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=other)


# Convolutions of a stage, by the net's depth (Simonyan and Zisserman 2015, table 1).
_VGG_STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
# Blocks of a stage, by the net's depth (He et al. 2016, table 1); from 50 on they are bottlenecks.
_RESNET_STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def cifar_vgg(depth: int, classes: int = 10) -> Any:
    """Build VGG for 32 px with batch norm after each convolution and one hidden layer of 512."""
    import keras
    from keras import layers

    x = inputs = keras.Input((32, 32, 3))
    for filters, convolutions in zip((64, 128, 256, 512, 512), _VGG_STAGES[depth], strict=True):
        for _ in range(convolutions):
            x = layers.Conv2D(filters, 3, padding="same")(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(512)(layers.Flatten()(x))
    x = layers.ReLU()(layers.BatchNormalization()(x))
    outputs = layers.Dense(classes, activation="softmax")(x)
    return keras.Model(inputs, outputs, name=f"cifar_vgg{depth}")


def cifar_resnet(depth: int, classes: int = 10) -> Any:
    """Build ResNet for 32 px: ImageNet's blocks after one convolution without stride."""
    import keras
    from keras import layers

    def convolution(x: Any, filters: int, size: int, stride: int = 1) -> Any:
        x = layers.Conv2D(filters, size, strides=stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    bottleneck = depth >= 50
    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolution(inputs, 64, 3))
    for stage, (filters, blocks) in enumerate(
        zip((64, 128, 256, 512), _RESNET_STAGES[depth], strict=True)
    ):
        width = 4 * filters if bottleneck else filters
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            as_it_is = stride == 1 and x.shape[-1] == width
            shortcut = x if as_it_is else convolution(x, width, 1, stride)
            if bottleneck:
                x = layers.ReLU()(convolution(x, filters, 1))
                x = layers.ReLU()(convolution(x, filters, 3, stride))
                x = convolution(x, width, 1)
            else:
                x = layers.ReLU()(convolution(x, filters, 3, stride))
                x = convolution(x, width, 3)
            x = layers.ReLU()(layers.Add()([x, shortcut]))
    x = layers.Dense(classes, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x, name=f"cifar_resnet{depth}")
