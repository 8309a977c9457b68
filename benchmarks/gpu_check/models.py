"""The models of the check, and batches of any size for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import CLASSES, TRANSFORMER, VOCABULARY, Workload, workload

BERT = "BERT-base"
_WORDS = 30522
# A batch repeats this many examples.
_DIFFERENT = 32
# A substitute if the GPU computes nothing: of cuDNN's layers, it has convolutions only.
_DENSE_WIDTH, _DENSE_LAYERS, _DENSE_ROWS = 256, 10, 64  # rows per example


def build(name: str, batch: int, image: int, fake: bool) -> Workload:
    """Return a compiled model and its batch.

    Args:
        name: Any of `benchmarks.models`, or "BERT-base".
        batch: Examples in a batch.
        image: Pixels of a side, or tokens.
        fake: Return a dense network instead.
    """
    import keras

    keras.utils.set_random_seed(1)
    if fake:
        return _dense(batch)
    if name == BERT:
        x, y = batch_of(name, batch, image)
        return Workload(bert(image), x, y)
    small = workload(name, min(batch, _DIFFERENT), image)
    return Workload(small.model, *batch_of(name, batch, image))


def batch_of(name: str, batch: int, image: int, fake: bool = False) -> tuple[Any, Any]:
    """Return inputs and targets; the same ones for the same arguments."""
    random = np.random.default_rng(1)
    few = min(batch, _DIFFERENT)
    if fake:
        batch *= _DENSE_ROWS
        x: NDArray[Any] = random.random((few, _DENSE_WIDTH), dtype=np.float32)
        y: NDArray[Any] = x[:, :4]
    elif name == BERT:
        x = random.integers(_WORDS, size=(few, image), dtype=np.int32)
        y = random.integers(2, size=few, dtype=np.int32)
    elif name == TRANSFORMER:
        x = random.integers(VOCABULARY, size=(few, image), dtype=np.int32)
        y = random.integers(VOCABULARY, size=(few, image), dtype=np.int32)
    else:
        x = random.random((few, image, image, 3), dtype=np.float32)
        y = random.integers(CLASSES, size=few, dtype=np.int32)
    return _repeated(x, batch), _repeated(y, batch)


def _repeated(values: NDArray[Any], batch: int) -> NDArray[Any]:
    return np.resize(values, (batch, *values.shape[1:]))


def bert(
    tokens: int,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    feed_forward: int = 3072,
    words: int = _WORDS,
) -> Any:
    """Build BERT (Devlin et al. 2019) with a classifier on its first token, compiled with Adam."""
    import keras
    from keras import layers as of

    ids = keras.Input((tokens,), dtype="int32")
    positions = keras.ops.expand_dims(keras.ops.arange(tokens), 0)
    x = of.Embedding(words, width)(ids) + of.Embedding(tokens, width)(positions)
    x = of.Dropout(0.1)(of.LayerNormalization()(x))
    for _ in range(layers):
        attention = of.MultiHeadAttention(heads, width // heads, dropout=0.1)(x, x)
        x = of.LayerNormalization()(x + of.Dropout(0.1)(attention))
        hidden = of.Dense(width)(of.Dense(feed_forward, activation="gelu")(x))
        x = of.LayerNormalization()(x + of.Dropout(0.1)(hidden))
    pooled = of.Dropout(0.1)(of.Dense(width, activation="tanh")(x[:, 0]))
    model = keras.Model(ids, of.Dense(2, dtype="float32")(pooled))
    model.compile(
        optimizer=keras.optimizers.Adam(1e-5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def _dense(batch: int) -> Workload:
    import keras

    x = inputs = keras.Input((_DENSE_WIDTH,))
    for _ in range(_DENSE_LAYERS):
        x = keras.layers.Dense(_DENSE_WIDTH, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    sgd = keras.optimizers.SGD(0.01, momentum=0.9)
    # With a loss scale, the GPU would decide which ops run.
    model.compile(sgd, "mse", jit_compile=False, auto_scale_loss=False)
    return Workload(model, *batch_of("", batch, 0, fake=True))
