"""Embedding tables, of which a step needs the rows of its batch only."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, compiled, deterministic, emptied_variables, unmovable_bytes

import tfswap

ROWS, WIDTH = 8 * 1024, 1024  # 32 MiB
RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, ROWS, (32, 16))
Y = RANDOM.integers(0, 4, 32)


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


def classifier(trainable: bool) -> keras.Model:
    inputs = keras.Input((16,), dtype="int32")
    table = keras.layers.Embedding(ROWS, WIDTH, name="table")
    table.trainable = trainable
    x = keras.layers.GlobalAveragePooling1D()(table(inputs))
    x = keras.layers.Dense(256, activation="gelu")(x)
    return compiled(keras.Model(inputs, keras.layers.Dense(4)(x)))


@functools.cache
def unswapped() -> tuple[list[float], np.ndarray]:
    with emptied_variables():
        return trained()


def trained(trainable: bool = False) -> tuple[list[float], np.ndarray]:
    keras.utils.set_random_seed(5)
    model = classifier(trainable)
    fit = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return fit.history["loss"], model.predict(X, batch_size=8, verbose=0)


@pytest.mark.parametrize("host_limit", [2 * MIB, 512 * MIB], ids=["file", "host"])
def test_a_table_larger_than_the_budget_is_trained_with(tmp_path, host_limit):
    losses, predictions = unswapped()
    budget = unmovable_bytes() + 24 * MIB
    options = {"spill_dir": tmp_path, "host_limit": host_limit, "verbose": 0}
    with tfswap.options.set(budget=budget, stream_weights=True, **options):
        keras.utils.set_random_seed(5)
        tfswap.reset_memory_stats()
        model = classifier(trainable=False)  # the table is initialised beside the budget
        assert tfswap.memory_stats()["peak_bytes"] <= budget + 33 * MIB
        tfswap.reset_memory_stats()
        fit = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        predicted = model.predict(X, batch_size=8, verbose=0)
        stats = tfswap.memory_stats()
    assert fit.history["loss"] == losses
    np.testing.assert_array_equal(predicted, predictions)
    # Rows of 8 x 16 words in each of 12 batches; from the file, the MiB that each is in.
    most = {"far_host_bytes_in": 6 * MIB, "far_file_bytes_in": 12 * 32 * MIB}
    for tier, most_bytes in most.items():
        assert (0 < stats[tier] <= most_bytes) == (("host" in tier) == (host_limit > 2 * MIB))
    assert stats["peak_bytes"] <= stats["budget_bytes"]


def test_a_trained_table_has_the_same_losses():
    losses, predictions = trained(trainable=True)
    with tfswap.options.set(budget=unmovable_bytes() + 160 * MIB, stream_weights=True, verbose=0):
        found, predicted = trained(trainable=True)
    assert found == losses
    np.testing.assert_array_equal(predicted, predictions)


@pytest.fixture
def away(tmp_path):
    """Run a function on a variable that has left the device."""

    def run(value: np.ndarray, function, host: bool = True):
        options = {"spill_dir": tmp_path, "host_limit": 64 * MIB if host else 1, "verbose": 0}
        with tfswap.options.set(
            budget=unmovable_bytes() + 12 * MIB, stream_weights=True, **options
        ):
            variable = tf.Variable(tf.identity(value))
            ballast = [tf.Variable(tf.ones((2, MIB))) for _ in range(2)]  # 8 MiB each
            del ballast
            tfswap.reset_memory_stats()
            return function(variable), tfswap.memory_stats()

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "bool"])
@pytest.mark.parametrize("index_type", ["int32", "int64"])
@pytest.mark.parametrize("host", [True, False], ids=["host", "file"])
def test_rows_are_those_of_tensorflow(away, dtype, index_type, host):
    value = tf.cast(RANDOM.integers(0, 100, (300, 11, 1023)), dtype).numpy()
    indices = RANDOM.integers(0, 300, (5, 7)).astype(index_type)

    def gathered(variable):
        @tf.function
        def rows(at):
            both = [tf.gather(variable, at), tf.nn.embedding_lookup(variable, at)]
            return [*both, tf.gather(variable, at[0, 0]), tf.gather(variable, at[:0])]

        return rows(tf.constant(indices))

    found, _ = away(value, gathered, host)
    for each in found[:2]:
        np.testing.assert_array_equal(each, value[indices])
    np.testing.assert_array_equal(found[2], value[indices[0, 0]])
    assert found[3].shape == (0, 7, 11, 1023)


def test_an_index_out_of_range_is_tensorflows_error(away):
    def gathered(variable):
        @tf.function
        def rows(at):
            return tf.gather(variable, at) + 1.0

        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"indices\[1\] = 9 is not in \[0, 9"
        ):
            rows(tf.constant([3, 9]))
        return rows(tf.constant([3, 8]))

    away(np.ones((9, MIB // 4), np.float32), gathered)


def test_rows_are_read_before_and_after_assignments(away):
    value = RANDOM.random((9, MIB // 4), dtype=np.float32)

    def gathered(variable):
        @tf.function
        def rows(at):
            before = tf.gather(variable, at)
            variable.assign(variable + 1.0)
            middle = tf.gather(variable, at)
            variable.scatter_update(tf.IndexedSlices(tf.zeros_like(middle), at))
            return before, middle, tf.gather(variable, at)

        return rows(tf.constant([8, 2]))

    expected = gathered(tf.Variable(value))
    with tfswap.options.set(budget=unmovable_bytes() + 40 * MIB, stream_weights=True, verbose=0):
        found = gathered(tf.Variable(value))
    for each, of in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each, of)


def test_a_table_with_further_readers_is_read(away):
    value = RANDOM.random((256, 4096), dtype=np.float32)

    def tied(variable):
        @tf.function
        def logits(at):
            return tf.matmul(tf.gather(variable, at), variable, transpose_b=True)

        return logits(tf.constant([8, 2]))

    expected = tied(tf.Variable(value))
    np.testing.assert_array_equal(away(value, tied)[0], expected)
