"""Losses, precisions, optimizers and models of many kinds: equal losses inside a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import budget_of, compiled, convolutions, deterministic, images, trained

import tfswap
from tfswap.step.trace import StepTrace


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


def same_numbers(build, part: float = 0.7, **fit):
    """Train twice unswapped and once under a budget; return the callback."""
    plain, again = trained(build, **fit), trained(build, **fit)
    assert plain.losses == again.losses
    # The order of ready ops depends on threads, so peaks differ.
    least = min(plain, again, key=lambda each: max(each.peaks) - each.others_bytes)
    budget = budget_of(least, part)
    swap = tfswap.AutoSwap(budget=budget, verbose=0)
    swapped = trained(build, [swap], **fit)
    assert swapped.losses == plain.losses
    assert max(swapped.peaks) <= budget
    return swap


def test_partial_last_batch_and_validation():
    x, y = images(208)
    swap = same_numbers(
        lambda: compiled(convolutions()),
        part=0.55,  # at 0.62, some orders of the ops fit without swaps
        data=(x, y),
        epochs=2,
        validation_data=images(80),
    )
    assert swap.report["outcome"] == "swapped"


@pytest.mark.slow
def test_steps_per_execution():
    swap = same_numbers(
        lambda: compiled(convolutions(), steps_per_execution=4), epochs=4, part=0.75
    )
    assert swap.report["outcome"] in ("swapped", "bootstrap")


@pytest.mark.slow
def test_gradient_accumulation():
    same_numbers(
        lambda: compiled(
            convolutions(),
            optimizer=keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=4),
        ),
        epochs=2,
    )


@pytest.mark.slow
def test_adam():
    same_numbers(lambda: compiled(convolutions(), optimizer=keras.optimizers.Adam()), epochs=2)


class Kernels(keras.callbacks.Callback):
    """Count the kernels of each kind in some of the steps."""

    def __init__(self, lib, steps: Iterable[int]) -> None:
        super().__init__()
        self.lib = lib
        self.steps = set(steps)
        self.step = 0
        self.counts: dict[int, Counter[str]] = {}

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        if self.step in self.steps:
            self.lib.start_recording(0)

    def on_train_batch_end(self, batch, logs=None):
        if self.step in self.steps:
            trace = StepTrace.from_bytes(self.lib.stop_recording(0))
            # Skip tfswap's copies and clones of ops that only change a shape; ops with other names
            # belong to the dataset.
            ours = ("_Copy", "Reshape", "Squeeze", "Identity")
            kinds = ((trace.names[op["name"]], trace.names[op["type"]]) for op in trace.ops)
            self.counts[self.step] = Counter(
                kind
                for name, kind in kinds
                if name.startswith("StatefulPartitionedCall/") and not kind.startswith(ours)
            )


@pytest.mark.slow
def test_no_op_is_fused_differently(lib):
    """Run oneDNN's layout pass after tfswap's: ops that it fuses round differently."""

    def build():
        x = inputs = keras.Input((48, 48, 3))
        for _ in range(5):
            x = keras.layers.ZeroPadding2D(1)(x)
            x = keras.layers.Conv2D(24, 3, activation="relu")(x)
            x = keras.layers.BatchNormalization()(x)
        x = keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x))
        return compiled(keras.Model(inputs, x))

    kernels = Kernels(lib, [2])
    plain = trained(build, [kernels], epochs=2)
    # (Without addresses: those would record some of the same steps.)
    swap = tfswap.AutoSwap(budget=budget_of(plain, 0.7), slab=False, verbose=0)
    under_swaps = Kernels(lib, [2, 14])  # on-demand swaps, then planned ones
    swapped = trained(build, [swap, under_swaps], epochs=2)
    assert under_swaps.counts[2] == kernels.counts[2]
    assert under_swaps.counts[14] == kernels.counts[2]
    assert swapped.losses == plain.losses
    assert swap.report["outcome"] == "swapped"


def mixed(policy: str, **options) -> keras.Model:
    """Build a model of that policy; clearing the session, as `trained` does, would end it."""
    keras.mixed_precision.set_global_policy(policy)
    try:
        model = compiled(convolutions(**options))
        assert model.layers[1].compute_dtype == policy.removeprefix("mixed_")
        return model
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_mixed_precision():
    same_numbers(lambda: mixed("mixed_bfloat16", filters=32, depth=4), part=0.8, epochs=2)


@pytest.mark.slow
def test_loss_scaling():
    same_numbers(lambda: mixed("mixed_float16", filters=32, depth=4), epochs=2, part=0.8)


def test_eager_training_is_warned_about_and_unchanged():
    build = lambda: compiled(convolutions(depth=2), run_eagerly=True)  # noqa: E731
    plain = trained(build)
    swap = tfswap.AutoSwap(budget="1MiB", verbose=0)
    with pytest.warns(UserWarning, match="the model runs eagerly"):
        swapped = trained(build, [swap])
    assert swapped.losses == plain.losses
    assert swap.report["outcome"] == "no effect"


def test_lstm():
    def build():
        x = inputs = keras.Input((32, 64))
        for _ in range(5):
            x = keras.layers.Dense(512, activation="tanh")(x)
        # Tensors inside the loops stay on the device: they are the smaller part here.
        x = keras.layers.Dense(32)(x)
        x = keras.layers.LSTM(32, return_sequences=True)(x)
        x = keras.layers.LSTM(16)(x)
        return compiled(keras.Model(inputs, keras.layers.Dense(4)(x)))

    random = np.random.default_rng(0)
    data = (random.random((2048, 32, 64), dtype=np.float32), random.integers(0, 4, 2048))
    # The first steps have no plan's order (loops are not predicted): products of weights' gradients
    # that run late, as on a busy machine, hold the outputs of up to two more layers.
    same_numbers(build, part=0.85, data=data, batch_size=256)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [keras.layers.Conv2D(16, 1, activation="relu") for _ in range(8)]
        self.head = keras.layers.Dense(4)

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return self.head(keras.ops.mean(x, axis=(1, 2)))


@pytest.mark.slow
def test_a_subclassed_model():
    swap = same_numbers(lambda: compiled(Subclassed()), part=0.6, epochs=2)
    assert swap.report["outcome"] == "swapped"


class OwnStep(Subclassed):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True)) * 2.0
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def test_a_custom_train_step():
    # At 0.6, some orders of the ops fit without swaps.
    swap = same_numbers(lambda: compiled(OwnStep()), part=0.5, epochs=2)
    assert swap.report["outcome"] == "swapped"


def test_a_trainer_that_is_one_layer():
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    class OneLayer(TensorFlowTrainer, keras.layers.Dense):
        def __init__(self):
            keras.layers.Dense.__init__(self, 3)
            TensorFlowTrainer.__init__(self)

    def train(callbacks):
        keras.utils.set_random_seed(0)
        model = OneLayer()
        model.compile("sgd", "mse")
        x = np.ones((64, 4), np.float32)
        return model.fit(x, x[:, :3], verbose=0, callbacks=callbacks).history["loss"]

    assert train([tfswap.AutoSwap("1GiB", verbose=0)]) == train([])
