"""Models and data for the tests of sections."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
from models import Losses, compiled, images

import tfswap


def straight(depth: int = 6, filters: int = 16, size: int = 48) -> keras.Model:
    """Build a net of independent examples: each needs ``2 * depth`` activations of 144 KiB."""
    x = inputs = keras.Input((size, size, 3))
    for _ in range(depth):
        x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(4)(x))


def built(model: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
    """Compile with a loss that deterministic ops compute in sections (not the sparse one)."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    return lambda: compiled(model(), loss=loss)


def data() -> tuple[np.ndarray, np.ndarray]:
    x, y = images(256)
    return x, keras.utils.to_categorical(y, 4)


def alike(cut: Losses, whole: Losses) -> None:
    """Compare losses: the first differs by its rounding; training amplifies that of gradients."""
    found = cut.losses[: len(whole.losses)]
    np.testing.assert_allclose(found[:1], whole.losses[:1], rtol=1e-6)
    np.testing.assert_allclose(found, whole.losses, rtol=1e-4)


def wide() -> keras.Model:
    """Build a net with layers whose input and output are 36 MiB each for 64 examples."""
    x = inputs = keras.Input((48, 48, 3))
    for _ in range(2):
        x = keras.layers.Conv2D(64, 3, padding="same", activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(4)(x))


def uneven() -> tuple[np.ndarray, np.ndarray]:
    """Return four batches of 48 and one of 20; Keras does not know their sizes beforehand."""
    x, y = images(212)
    return x, keras.utils.to_categorical(y, 4)


def records_since(known: set[str]) -> list[dict]:
    return [r for r in tfswap.status()["functions"] if r["fingerprint"] not in known]


def known() -> set[str]:
    return {record["fingerprint"] for record in tfswap.status()["functions"]}
