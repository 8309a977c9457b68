"""Small models whose activations outweigh their weights, and a function that trains them."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfswap

MIB = 1 << 20


def convolutions(filters: int = 16, depth: int = 8, size: int = 48) -> keras.Model:
    """Build a chain of convolutions; 48 px and 16 filters give 4.5 MiB per activation at batch 32.

    The backward pass of a convolution needs up to 15 MiB of workspace whatever the size:
    activations must outweigh that.
    """
    x = inputs = keras.Input((size, size, 3))
    for _ in range(depth):
        x = keras.layers.Conv2D(filters, 1, activation="relu")(x)
        x = keras.layers.BatchNormalization()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(4)(x))


def images(count: int = 256, size: int = 48) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.random((count, size, size, 3), dtype=np.float32), random.integers(0, 4, count)


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    settings: dict[str, Any] = {
        "optimizer": keras.optimizers.SGD(0.05, momentum=0.9),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "jit_compile": False,
    }
    model.compile(**{**settings, **options})
    return model


class Losses(keras.callbacks.Callback):
    """Record the loss after every call of the training function, and the device's peak until then.

    Attributes:
        losses: After each call.
        peaks: Of the device until then, in bytes.
        others_bytes: Bytes in use before the model was built.
    """

    def __init__(self) -> None:
        super().__init__()
        self.others_bytes = others_bytes()
        self.losses: list[float] = []
        self.peaks: list[int] = []

    def on_train_begin(self, logs: Any = None) -> None:
        tfswap.reset_memory_stats()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        self.peaks.append(tfswap.memory_stats()["peak_bytes"])


def trained(
    build: Callable[[], keras.Model],
    callbacks: list[keras.callbacks.Callback] | None = None,
    batch_size: int = 32,
    data: tuple[np.ndarray, np.ndarray] | None = None,
    **fit: Any,
) -> Losses:
    """Train a freshly built model with fixed seeds, without shuffling."""
    losses = Losses()  # measures what is in use before there is a model
    keras.utils.set_random_seed(7)
    model = build()
    x, y = images() if data is None else data
    model.fit(
        x,
        y,
        batch_size=batch_size,
        shuffle=False,
        verbose=0,
        callbacks=[*(callbacks or []), losses],
        **fit,
    )
    return losses


def others_bytes() -> int:
    """Return the bytes in use without a model: Keras and TensorFlow keep some variables.

    Threads of an earlier training may still hold some, so repeat until the number is stable.
    """
    keras.utils.clear_session()
    before = -1
    while (now := _left_in_use()) != before:
        before = now
        time.sleep(0.05)
    return now


def _left_in_use() -> int:
    gc.collect()
    return tfswap.memory_stats()["bytes_in_use"]


@contextlib.contextmanager
def emptied_variables() -> Iterator[None]:
    """Empty the variables that are made meanwhile: TensorFlow keeps those of trained models."""
    before = {id(handle): handle for handle in _handles()}
    yield
    for handle in _handles():
        data = getattr(handle, "_handle_data", None)
        if id(handle) in before or data is None:
            continue
        for value in data.shape_and_type:  # none if it is another resource
            if (tf.TensorShape(value.shape).num_elements() or 0) > 1000:
                nothing = tf.zeros([], tf.dtypes.as_dtype(value.dtype))
                tf.raw_ops.AssignVariableOp(resource=handle, value=nothing)


def _handles() -> list[tf.Tensor]:
    eager = tf.__internal__.EagerTensor
    found = [known for known in gc.get_objects() if isinstance(known, eager)]
    return [handle for handle in found if handle.dtype == tf.resource]


def unmovable_bytes() -> int:
    """Return the bytes in use that stay under a budget: values of dead models' variables leave."""
    others_bytes()
    with tfswap.Session(budget=MIB, stream_weights=True, verbose=0):
        return tfswap.memory_stats()["bytes_in_use"]


def budget_of(unswapped: Losses, part: float) -> int:
    """Return a budget: a part of what an unswapped training needed, plus what is in use now."""
    return others_bytes() + int((max(unswapped.peaks) - unswapped.others_bytes) * part)


def deterministic() -> None:
    tf.config.experimental.enable_op_determinism()
