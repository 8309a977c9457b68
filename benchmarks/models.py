"""The models that are trained, with one random batch for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = 10

TRANSFORMER = "Transformer"
LAYERS, WIDTH, HEADS, FEED_FORWARD, VOCABULARY = 6, 512, 8, 2048, 8000


@dataclass(frozen=True)
class Workload:
    """A compiled model and the batch that it is trained on."""

    model: Any
    x: NDArray[Any]
    y: NDArray[Any]


def workload(name: str, batch: int, image: int, seed: int = 1) -> Workload:
    """A compiled model, the same weights and data for the same arguments.

    Args:
        name: Any of keras.applications, or "Transformer".
        batch: Examples in a batch.
        image: Height and width in pixels; for the Transformer, tokens in a sequence.
        seed: Of weights and data. Defaults to 1.

    Raises:
        ValueError: There is no such model.
    """
    import keras

    keras.utils.set_random_seed(seed)
    random = np.random.default_rng(seed)
    if name == TRANSFORMER:
        model = transformer(image)
        x = random.integers(VOCABULARY, size=(batch, image), dtype=np.int32)
        y = random.integers(VOCABULARY, size=(batch, image), dtype=np.int32)
    else:
        model = _application(name, image)
        x = random.random((batch, image, image, 3), dtype=np.float32)
        y = random.integers(CLASSES, size=batch, dtype=np.int32)
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.01, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=name == TRANSFORMER),
        jit_compile=False,
    )
    return Workload(model, x, y)


def _application(name: str, image: int) -> Any:
    import keras

    factory = getattr(keras.applications, name, None)
    if factory is None or not callable(factory):
        models = [n for n in dir(keras.applications) if n[0].isupper()]
        raise ValueError(f"unknown model {name!r}: allowed are {', '.join([TRANSFORMER, *models])}")
    return factory(weights=None, input_shape=(image, image, 3), classes=CLASSES)


def transformer(tokens: int) -> Any:
    """A decoder-only language model of six pre-normalised layers, as in GPT-2."""
    import keras
    from keras import layers

    ids = keras.Input((tokens,), dtype="int32")
    positions = keras.ops.expand_dims(keras.ops.arange(tokens), 0)
    x = layers.Embedding(VOCABULARY, WIDTH)(ids) + layers.Embedding(tokens, WIDTH)(positions)
    for _ in range(LAYERS):
        normalised = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        x = x + attention(normalised, normalised, use_causal_mask=True)
        hidden = layers.Dense(FEED_FORWARD, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(hidden)
    return keras.Model(ids, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))
