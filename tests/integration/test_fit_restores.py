"""Check that `fit` under a budget restores the model, the session and other threads."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, Losses, budget_of, compiled, convolutions, deterministic, images, trained

import tfswap


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    first = trained(lambda: compiled(convolutions()), epochs=2)
    assert first.losses == trained(lambda: compiled(convolutions()), epochs=2).losses
    return first


def test_everything_is_restored(unswapped):
    from tensorflow.python.eager import context

    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
    trained(lambda: compiled(convolutions()), [swap])
    rewrite = context.context().function_call_options.config_proto_serialized
    assert b"tfswap" not in (rewrite() if callable(rewrite) else rewrite)
    stats = tfswap.memory_stats()
    assert stats["budget_bytes"] is None and stats["host_limit_bytes"] is None
    assert stats["host_bytes_in_use"] == stats["host_bytes_cached"] == 0
    assert not tfswap.status()["plan_in_force"]


def test_the_iterator_ends_with_fit(unswapped):
    """Its threads end with it; a forked process that collected it would join threads it lacks."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    gc.collect()
    gc.disable()
    try:
        swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
        trained(lambda: compiled(convolutions()), [swap])
        assert not any(isinstance(each, OwnedIterator) for each in gc.get_objects())
    finally:
        gc.enable()


class _Boom(keras.callbacks.Callback):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            raise self.error("boom")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_everything_is_restored_after_an_exception(unswapped, error):
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
    with pytest.raises(error, match="boom"):
        trained(lambda: compiled(convolutions()), [swap, _Boom(error)])
    gc.collect()
    assert tfswap.memory_stats()["budget_bytes"] is None
    assert not tfswap.status()["plan_in_force"]


def test_a_failing_step_restores_everything_at_once(unswapped, lib):
    class Fault(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 6:
                lib.set_faults("copy-in-fails")

    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.5), verbose=0)
    with pytest.raises(tf.errors.InternalError, match="injected fault"):
        trained(lambda: compiled(convolutions()), [swap, Fault()])
    assert tfswap.memory_stats()["budget_bytes"] is None
    lib.set_faults("")
    again = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
    swapped = trained(lambda: compiled(convolutions()), [again], epochs=2)
    assert swapped.losses == unswapped.losses


def test_a_replaced_model_holds_none_of_the_budget(unswapped):
    """The model is part of a reference cycle, so its weights stay until Python collects it."""
    budget = budget_of(unswapped, 0.6)
    replaced = [keras.Sequential([keras.Input((1 << 10,)), keras.layers.Dense(16 << 10)])]
    assert tfswap.memory_stats()["bytes_in_use"] > 64 * MIB
    model = compiled(convolutions())
    x, y = images()
    gc.disable()
    try:
        replaced.clear()
        assert tfswap.memory_stats()["bytes_in_use"] > 64 * MIB
        swap = tfswap.AutoSwap(budget=budget, verbose=0)
        model.fit(x, y, batch_size=32, verbose=0, callbacks=[swap])
    finally:
        gc.enable()
    assert tfswap.memory_stats()["bytes_in_use"] < 64 * MIB
    assert swap.report["outcome"] == "swapped"


def test_survives_set_experimental_options(unswapped):
    class Meddle(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                tf.config.optimizer.set_experimental_options({"debug_stripper": True})

    budget = budget_of(unswapped, 0.6)
    try:
        swap = tfswap.AutoSwap(budget=budget, verbose=0)
        swapped = trained(lambda: compiled(convolutions()), [swap, Meddle()], epochs=2)
    finally:
        tf.config.optimizer.set_experimental_options({"debug_stripper": False})
    assert swapped.losses == unswapped.losses
    assert max(swapped.peaks) <= budget
    assert any("installed again" in note for note in swap.report["notes"])


def test_other_threads_are_not_affected(unswapped):
    seen: list[str] = []

    @tf.function
    def other(x):
        for _ in range(12):
            x = tf.nn.relu(x) + 1.0
        return x

    class Elsewhere(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                before = len(tfswap.status()["functions"])
                thread = threading.Thread(target=lambda: other(tf.ones([4])))
                thread.start()
                thread.join()
                seen.append(str(len(tfswap.status()["functions"]) - before))

    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
    trained(lambda: compiled(convolutions()), [swap, Elsewhere()])
    assert seen == ["0"]


def test_saved_models_and_checkpoints_are_those_of_an_unswapped_training(unswapped, tmp_path):
    def fit(folder: Path, **options) -> Losses:
        def build() -> keras.Model:
            if not options.get("go_on"):
                return compiled(convolutions())
            return keras.models.load_model(folder / "1.keras")

        callbacks = [
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras"),
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
        ]
        if "budget" in options:
            callbacks.append(tfswap.AutoSwap(budget=options["budget"], verbose=0))
        return trained(build, callbacks, epochs=1 if options.get("go_on") else 2)

    plain, swapped = tmp_path / "plain", tmp_path / "swapped"
    for folder in (plain, swapped):
        folder.mkdir()
    fit(plain)
    fit(swapped, budget=budget_of(unswapped, 0.6))
    for epoch in (1, 2):
        one, other = (keras.models.load_model(each / f"{epoch}.keras") for each in (plain, swapped))
        assert same(one.get_weights(), other.get_weights())
        assert same(one.optimizer.variables, other.optimizer.variables)
        other.load_weights(plain / f"{epoch}.weights.h5")
        one.load_weights(swapped / f"{epoch}.weights.h5")
        assert same(one.get_weights(), other.get_weights())
    # A model saved under swapping continues without it, and vice versa.
    budget = budget_of(unswapped, 0.6)
    went_on = fit(plain, go_on=True, budget=budget)
    assert went_on.losses == fit(swapped, go_on=True).losses
    assert max(went_on.peaks) <= budget


def same(some, others) -> bool:
    return len(some) == len(others) and all(
        np.array_equal(np.asarray(one), np.asarray(other))
        for one, other in zip(some, others, strict=True)
    )


@pytest.mark.slow
def test_two_models_in_turn(unswapped):
    other = trained(lambda: compiled(convolutions(filters=12, depth=6)), epochs=2)
    swap = tfswap.AutoSwap(budget=budget_of(other, 0.7), verbose=0)
    first = trained(lambda: compiled(convolutions(filters=12, depth=6)), [swap], epochs=2)
    assert first.losses == other.losses
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
    second = trained(lambda: compiled(convolutions()), [swap], epochs=2)
    assert second.losses == unswapped.losses


def test_one_callback_for_two_fits(unswapped):
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), verbose=0)
    for _ in range(2):
        swapped = trained(lambda: compiled(convolutions()), [swap], epochs=2)
        assert swapped.losses == unswapped.losses
        assert swap.report["outcome"] == "swapped"
