"""Models whose weights exceed the budget, from their first allocation to their predictions."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
from models import MIB, compiled, deterministic, unmovable_bytes

import tfswap

WIDTH = 1024  # 4 MiB for a layer's kernel


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


def frozen_stack() -> keras.Model:
    """Return 56 MiB of frozen weights, used by the forward and the backward part."""
    x = inputs = keras.Input((WIDTH,))
    x = keras.layers.Dense(WIDTH, activation="gelu")(x)
    for _ in range(14):
        x = keras.layers.Dense(WIDTH, activation="gelu", use_bias=False)(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    for layer in model.layers[2:-1]:
        layer.trainable = False
    return model


def fine_tuned(**options) -> tuple[list[float], np.ndarray, dict[str, int]]:
    """Build, train, and predict; return losses, predictions and memory statistics."""
    random = np.random.default_rng(3)
    x, y = random.random((64, WIDTH), dtype=np.float32), random.integers(0, 4, 64)
    with tfswap.options.set(verbose=0, **options) if options else contextlib.nullcontext():
        tfswap.reset_memory_stats()
        keras.utils.set_random_seed(7)
        model = compiled(frozen_stack())
        losses = [model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history["loss"][0]]
        losses.append(model.evaluate(x, y, batch_size=8, verbose=0))
        predicted = model.predict(x, batch_size=8, verbose=0)
        stats = tfswap.memory_stats()
    # The values come back when the options end.
    assert all(np.isfinite(weight.numpy()).all() for weight in model.weights)
    return losses, predicted, stats


def test_a_model_larger_than_the_budget_is_built_trained_and_used_within_it(tmp_path):
    losses, predicted, _ = fine_tuned()
    for options in ({}, {"spill_dir": tmp_path, "host_limit": 8 * MIB}):
        budget = unmovable_bytes() + 24 * MIB
        found, again, stats = fine_tuned(budget=budget, **options)
        assert found == losses
        np.testing.assert_array_equal(again, predicted)
        assert stats["peak_bytes"] <= budget
        assert bool(options) == (stats["far_file_bytes_out"] > 0)
        assert tfswap.memory_stats()["budget_bytes"] is None


def test_a_training_inside_of_a_session_leaves_weights_away():
    random = np.random.default_rng(3)
    x, y = random.random((64, WIDTH), dtype=np.float32), random.integers(0, 4, 64)
    budget = unmovable_bytes() + 24 * MIB
    options = {"budget": budget, "verbose": 0}
    with tfswap.Session(**options):
        tfswap.reset_memory_stats()
        model = compiled(frozen_stack())
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[tfswap.AutoSwap(**options)])
        model.predict(x, batch_size=8, verbose=0)
        assert tfswap.memory_stats()["peak_bytes"] <= budget
        assert tfswap.memory_stats()["budget_bytes"] == budget
    assert tfswap.memory_stats()["budget_bytes"] is None


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomNormal(stddev=0.02),
        keras.initializers.TruncatedNormal(mean=1.0),
        keras.initializers.RandomUniform(-1, 3),
        keras.initializers.GlorotUniform(),
        keras.initializers.HeNormal(),
        keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(5)),
        keras.initializers.Orthogonal(),
    ],
    ids=lambda initializer: type(initializer).__name__,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_initial_values_are_the_same(initializer, dtype):
    if isinstance(initializer, keras.initializers.Orthogonal) and dtype != "float32":
        pytest.skip("TensorFlow has no such op")

    def initial():
        copy = initializer.__class__.from_config(initializer.get_config())
        return keras.Variable(copy, shape=(WIDTH, WIDTH), dtype=dtype).numpy()

    keras.utils.set_random_seed(3)
    expected = initial()
    with tfswap.options.set(budget=unmovable_bytes() + 64 * MIB, verbose=0):
        keras.utils.set_random_seed(3)
        np.testing.assert_array_equal(initial(), expected)


@pytest.mark.parametrize("of", [tfswap.options.set, tfswap.Session])
def test_a_large_variable_is_initialised_in_its_own_size(of):
    budget = unmovable_bytes() + 36 * MIB
    with of(budget=budget, verbose=0):
        tfswap.reset_memory_stats()
        for _ in range(3):
            layer = keras.layers.Embedding(8 * WIDTH, WIDTH)  # 32 MiB
            layer.build()
        assert tfswap.memory_stats()["peak_bytes"] <= budget


def test_predictions_are_collected_outside_of_the_budget():
    inputs = keras.Input((WIDTH,))
    wide = keras.layers.Dense(16 * WIDTH)(inputs)
    model = keras.Model(inputs, {"wide": wide, "sum": keras.ops.sum(wide, axis=-1)})
    x = np.random.default_rng(1).random((190, WIDTH), dtype=np.float32)  # the last batch is smaller
    expected = model.predict(x, batch_size=16, verbose=0)
    alone = model.predict(x[:16], batch_size=16, verbose=0)  # one batch is not concatenated
    budget = unmovable_bytes() + 70 * MIB  # of 64 for the weights and 12 for the outputs
    with tfswap.options.set(budget=budget, verbose=0):
        found = model.predict(x, batch_size=16, verbose=0)
        again = model.predict(x[:16], batch_size=16, verbose=0)
    for name in ("wide", "sum"):
        np.testing.assert_array_equal(found[name], expected[name])
        np.testing.assert_array_equal(again[name], alone[name])
        assert isinstance(found[name], np.ndarray)
    np.testing.assert_array_equal(model.predict(x, batch_size=16, verbose=0)["sum"], found["sum"])


def test_all_weights_are_trained_with_weight_decay_in_half_of_their_size():
    """Gradients, both moments and the decay are of one variable at a time."""

    def losses():
        keras.utils.set_random_seed(7)
        x = inputs = keras.Input((WIDTH,))
        for _ in range(16):
            x = keras.layers.Dense(WIDTH, activation="gelu")(x)
        model = keras.Model(inputs, keras.layers.Dense(4)(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=False)
        random = np.random.default_rng(3)
        x, y = random.random((64, WIDTH), dtype=np.float32), random.integers(0, 4, 64)
        return model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]

    expected = losses()
    budget = unmovable_bytes() + 32 * MIB  # 64 MiB of weights, 128 of moments, 64 of gradients
    with tfswap.options.set(budget=budget, verbose=0):
        tfswap.reset_memory_stats()
        assert losses() == expected
        assert tfswap.memory_stats()["peak_bytes"] <= budget
