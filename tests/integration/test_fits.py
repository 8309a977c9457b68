"""A model that clearly fits the budget runs as TensorFlow's own graph, until it no longer fits."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import (
    MIB,
    Losses,
    budget_of,
    compiled,
    convolutions,
    deterministic,
    images,
    others_bytes,
    trained,
)

import tfswap

AMPLE = 4 << 30


@pytest.fixture(autouse=True)
def repeats():
    deterministic()


def build() -> keras.Model:
    return compiled(convolutions())


def records(lib) -> list[dict]:
    """Return what the pass noted about the training function's graphs since the last clearing."""
    return [each for each in lib.pass_records() if "multi_step_on_iterator" in each["function"]]


def stepped(model: keras.Model, sizes: list[int], callbacks: list) -> Losses:
    """Train on batches of these sizes, which are unknown before each step."""
    x, y = images()
    losses = Losses()

    def batches():
        for size in sizes:
            yield x[:size], y[:size]

    spec = (tf.TensorSpec((None, 48, 48, 3)), tf.TensorSpec((None,), tf.int64))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    model.fit(data, verbose=0, callbacks=[*callbacks, losses])
    return losses


def test_the_graph_is_optimised_once_and_stays_as_it_is(lib):
    unswapped = trained(build)
    lib.clear_pass_records()
    swap = tfswap.AutoSwap(budget=AMPLE, verbose=0)
    losses = trained(build, [swap])
    assert losses.losses == unswapped.losses
    (record,) = records(lib)
    assert (record["outcome"], record["times"], record["swaps"]) == ("left", 1, 0)
    assert record["most_bytes"] > max(losses.peaks) - losses.others_bytes
    assert swap.report.outcome == "fits" and swap.report.plan is None
    assert 0 < swap.report.unswapped_peak_bytes <= swap.report.measured_peak_bytes
    assert swap.report.unswapped_step_s == swap.report.step_s
    assert "the model fits" in swap.report.summary()


@pytest.mark.parametrize("last", ["arrays", "dataset"])
def test_a_smaller_last_batch_changes_nothing(lib, last):
    x, y = images(80)
    lib.clear_pass_records()
    keras.utils.set_random_seed(7)
    data = (x, y, 32) if last == "arrays" else (tf.data.Dataset.from_tensor_slices((x, y)),)
    if last == "dataset":
        data = (data[0].batch(32).prefetch(2),)
    callback = tfswap.AutoSwap(budget=AMPLE, verbose=0)
    build().fit(*data, epochs=2, verbose=0, callbacks=[callback])
    (record,) = records(lib)
    assert (record["outcome"], record["times"]) == ("left", 1)


def test_what_fits_by_less_than_its_bound_is_left_after_the_first_step(lib):
    unswapped = trained(build)
    lib.clear_pass_records()
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 1.5), verbose=0)
    losses = trained(build, [swap])
    assert losses.losses == unswapped.losses
    (record,) = records(lib)
    assert (record["outcome"], record["times"], record["swaps"]) == ("left", 2, 0)
    assert swap.report.outcome == "fits"


def test_batches_that_may_grow_keep_their_on_demand_swaps(lib):
    sizes = [8] * 6 + [64] * 6
    keras.utils.set_random_seed(7)
    unswapped = stepped(build(), sizes, [])
    budget = budget_of(unswapped, 0.7)
    lib.clear_pass_records()
    keras.utils.set_random_seed(7)
    swap = tfswap.AutoSwap(budget=budget, verbose=0)
    losses = stepped(build(), sizes, [swap])
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget
    assert any("near the budget" in note for note in swap.report.notes)


def test_a_longer_sequence_is_swapped_without_a_failed_step():
    sizes = (24,) * 5 + (64,) * 5

    def losses_of(budget: int | None) -> list[float]:
        others = others_bytes()
        keras.utils.set_random_seed(7)
        model = convolutions(size=None)
        optimizer = keras.optimizers.SGD(0.05)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        data = {size: tuple(map(tf.constant, images(32, size))) for size in set(sizes)}

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        optimizer.build(model.trainable_variables)
        if budget is not None:
            step = tfswap.swap(step, budget=others + budget, verbose=0)
        tfswap.reset_memory_stats()
        found = [float(step(*data[size])) for size in sizes]
        peaks.append(tfswap.memory_stats()["peak_bytes"] - others)
        return found

    peaks: list[int] = []
    unswapped = losses_of(None)
    budget = int(0.8 * peaks[0])
    assert losses_of(budget) == unswapped
    assert peaks[1] <= budget


def test_a_model_that_fitted_is_looked_at_again_when_less_is_free(lib):
    keras.utils.set_random_seed(7)
    model = build()
    x, y = images()
    fit = {"batch_size": 32, "shuffle": False, "verbose": 0}
    model.fit(x, y, callbacks=[tfswap.AutoSwap(budget=AMPLE, verbose=0)], **fit)
    record = max(records(lib), key=lambda each: each["serial"])
    assert record["outcome"] == "left"
    most_bytes = record["most_bytes"]
    held_mib = int((0.8 * AMPLE - most_bytes / 2) / MIB)
    held = tf.zeros((held_mib, MIB // 4))  # so much that the bound is not below the budget
    swap = tfswap.AutoSwap(budget=AMPLE, verbose=0)
    model.fit(x, y, callbacks=[swap], **fit)
    latest = max(records(lib), key=lambda each: each["serial"])
    assert latest["serial"] > record["serial"] and latest["label"] != record["label"]
    assert latest["outcome"] != "left" or latest["times"] > 1  # not by the bound alone
    assert swap.report.notes or swap.report.outcome == "fits"
    assert np.asarray(held[0, 0]) == 0


def test_functions_that_are_traced_under_a_plan_get_tensorflows_passes(lib):
    """`evaluate` in the middle of a training rounds like without tfswap."""
    x, y = images(64)

    class Evaluate(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.losses: list[float] = []

        def on_epoch_end(self, epoch, logs=None):
            self.losses.append(self.model.evaluate(x, y, batch_size=16, verbose=0))

    plain, within = Evaluate(), Evaluate()
    unswapped = trained(build, [plain], epochs=2)
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.7), verbose=0)
    trained(build, [within, swap], epochs=2)
    assert within.losses == plain.losses
