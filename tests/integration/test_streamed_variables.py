"""Weights that exceed the budget: away while unused, correct for every reader."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, budget_of, compiled, deterministic, others_bytes, trained

import tfswap
from tfswap.plan.schema import TensorSwap

LAYERS, WIDTH = 10, 1024  # 4 MiB per layer
BUDGET = 14 * MIB


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


class Stack(tf.Module):
    """Dense layers in sequence."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(1)
        values = random.standard_normal((LAYERS, WIDTH, WIDTH), dtype=np.float32) / 32
        self.weights = [tf.Variable(value) for value in values]
        self.bias = tf.Variable(tf.ones([WIDTH]))

    @tf.function(input_signature=[tf.TensorSpec([None, WIDTH])])
    def serve(self, x):
        for weight in self.weights:
            x = tf.nn.relu(tf.matmul(x, weight) + self.bias)
        return x


def inputs(batch: int = 8) -> tf.Tensor:
    return tf.constant(np.random.default_rng(2).random((batch, WIDTH), dtype=np.float32))


def changed(stack) -> None:
    stack.weights[2].assign(stack.weights[2] * 2)
    stack.weights[5].assign_add(tf.ones([WIDTH, WIDTH]))


@dataclass
class Saved:
    """A saved model with 40 MiB of weights.

    Attributes:
        path: Where the model is saved.
        outputs: Its outputs for `inputs`.
        changed_outputs: Its outputs after `changed`.
        values: The values of its weights.
    """

    path: str
    outputs: np.ndarray
    changed_outputs: np.ndarray
    values: list[np.ndarray]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    stack = Stack()
    path = os.fspath(tmp_path_factory.mktemp("models") / "stack")
    tf.saved_model.save(stack, path)
    outputs = stack.serve(inputs()).numpy().copy()
    values = [weight.numpy().copy() for weight in stack.weights]
    changed(stack)
    return Saved(path, outputs, stack.serve(inputs()).numpy().copy(), values)


@pytest.fixture
def served(saved, lib):
    """Return the model in 14 MiB more, after each weight has left once; and the budget."""
    budget = others_bytes() + BUDGET
    loaded = tfswap.saved_model.load(saved.path, budget=budget, verbose=0)
    assert np.array_equal(loaded.serve(inputs()), saved.outputs)
    lib.set_budget(0, MIB)
    lib.make_room(0)
    lib.set_budget(0, budget)
    for _ in range(2):
        assert np.array_equal(loaded.serve(inputs()), saved.outputs)
    tfswap.reset_memory_stats()
    yield loaded, budget
    del loaded
    gc.collect()


def test_a_model_whose_weights_exceed_the_budget(saved, served):
    loaded, budget = served
    for _ in range(5):
        assert np.array_equal(loaded.serve(inputs()), saved.outputs)
    stats = tfswap.memory_stats()
    assert stats["budget_bytes"] == budget and stats["peak_bytes"] <= budget
    # Unmodified weights leave without a copy.
    assert stats["bytes_in"] >= 5 * (LAYERS * 4 * MIB - BUDGET) and stats["bytes_out"] == 0
    records = tfswap.status()["functions"]
    assert records[-1]["outcome"] == "bootstrapped"


def test_readers_outside_of_a_step_see_the_right_value(saved, served, tmp_path):
    loaded, budget = served
    for weight, value in zip(loaded.weights, saved.values, strict=True):
        assert np.array_equal(weight.numpy(), value)
    path = tf.train.Checkpoint(weight=loaded.weights[3]).save(os.fspath(tmp_path / "point"))
    reader = tf.train.load_checkpoint(path)
    assert np.array_equal(reader.get_tensor("weight/.ATTRIBUTES/VARIABLE_VALUE"), saved.values[3])
    assert np.array_equal(loaded.serve(inputs()), saved.outputs)
    assert tfswap.memory_stats()["peak_bytes"] <= budget


def test_written_values_are_read_later(saved, served):
    loaded, budget = served
    changed(loaded)
    for _ in range(3):  # they leave by copies
        assert np.array_equal(loaded.serve(inputs()), saved.changed_outputs)
    stats = tfswap.memory_stats()
    assert stats["bytes_out"] >= 4 * MIB and stats["peak_bytes"] <= budget
    assert np.array_equal(loaded.weights[2].numpy(), saved.values[2] * 2)


def test_all_weights_return_when_the_budget_is_lifted(saved):
    before = others_bytes()
    loaded = tf.saved_model.load(saved.path)
    with tfswap.Session(budget=before + BUDGET, stream_weights=True, verbose=0):
        assert np.array_equal(loaded.serve(inputs()), saved.outputs)
        assert tfswap.memory_stats()["bytes_in_use"] <= before + BUDGET
    stats = tfswap.memory_stats()
    # Something else of some KiB may have ended meanwhile; a weight has 4 MiB.
    assert stats["bytes_in_use"] >= before + LAYERS * 4 * MIB - MIB
    assert stats["budget_bytes"] is None
    assert stats["host_bytes_in_use"] == 0
    for weight, value in zip(loaded.weights, saved.values, strict=True):
        assert np.array_equal(weight.numpy(), value)


def test_deleted_variables_release_their_copies(saved):
    budget = others_bytes() + BUDGET
    loaded = tfswap.saved_model.load(saved.path, budget=budget, verbose=0)
    assert np.array_equal(loaded.serve(inputs()), saved.outputs)
    assert tfswap.memory_stats()["host_bytes_in_use"] >= LAYERS * 4 * MIB - BUDGET
    del loaded
    gc.collect()
    assert tfswap.memory_stats()["host_bytes_in_use"] == 0


def test_a_keras_model_that_predicts(tmp_path):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers])
    x = inputs(64).numpy()
    expected = model.predict(x, verbose=0)
    others = tfswap.memory_stats()["bytes_in_use"] - LAYERS * 4 * MIB
    with tfswap.Session(budget=others + BUDGET, stream_weights=True, verbose=0):
        found = model.predict(x, verbose=0)
        model.predict(x, verbose=0)
        tfswap.reset_memory_stats()
        model.predict(x, verbose=0)
        stats = tfswap.memory_stats()
        assert stats["peak_bytes"] <= stats["budget_bytes"]
        model.save(tmp_path / "model.keras")
    assert np.array_equal(found, expected)
    again = keras.models.load_model(tmp_path / "model.keras")
    assert np.array_equal(again.predict(x, verbose=0), expected)


UNITS, BATCH, STEPS = 1024, 32, 26


def perceptron():
    """Build three layers whose weights take 4 MiB each, as do both Adam slots of each."""
    dense = [keras.layers.Dense(UNITS, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((UNITS,)), *dense, keras.layers.Dense(10)])
    return compiled(model, optimizer=keras.optimizers.Adam(1e-3))


class Weights(keras.callbacks.Callback):
    """Read all weights when they are saved, during the training, and after the last step."""

    def __init__(self, path) -> None:
        super().__init__()
        self.path = path
        self.read: list[np.ndarray] = []

    def on_epoch_end(self, epoch, logs=None) -> None:
        if epoch == STEPS // 2:
            self.model.save(self.path)
        if epoch in (STEPS // 2, STEPS - 1):
            self.read += [value.copy() for value in self.model.get_weights()]


def trained_perceptron(path, *callbacks):
    random = np.random.default_rng(0)
    data = random.random((BATCH, UNITS), dtype=np.float32), random.integers(0, 10, BATCH)
    weights = Weights(path)
    losses = trained(perceptron, [*callbacks, weights], batch_size=BATCH, data=data, epochs=STEPS)
    return losses, weights


def test_the_weights_that_leave_suffice_for_a_smaller_budget(lib):
    """Values in the slab share pages with others, which stay when the values leave.

    An assigned momentum is in the slab.
    """
    random = np.random.default_rng(0)
    units = 1000  # a size at which weights end within a page
    data = random.random((BATCH, units), dtype=np.float32), random.integers(0, units, BATCH)
    swap = tfswap.AutoSwap(budget="1GiB", stream_weights=True, slab=True, verbose=0)

    def build():
        dense = [keras.layers.Dense(units) for _ in range(6)]
        model = keras.Sequential([keras.Input((units,)), *dense])
        return compiled(model, optimizer=keras.optimizers.SGD(1e-3, momentum=0.9))

    trained(build, [swap], batch_size=BATCH, data=data, epochs=20)
    assert lib.memory_stats(0)["slab_claimed_bytes"] > 12 * units * units
    assert lib.stream_variables(0, True) == ""
    for variable in [*swap.model.variables, *swap.model.optimizer.variables]:
        tf.raw_ops.VarIsInitializedOp(resource=variable.value.handle)
    for missing in (4000, 3990, 3980, 3970, 3960, 3950, 3940, 3900):
        budget = lib.memory_stats(0)["bytes_in_use"] - missing * units
        lib.set_budget(0, budget)
        lib.make_room(0)
        assert lib.memory_stats(0)["bytes_in_use"] <= budget
    lib.set_budget(0, None)
    assert lib.stream_variables(0, False) == ""


def test_a_recurrent_layers_loop_and_streamed_weights():
    """A loop's ops form a cycle, and its weights are read before it."""

    def build():
        inputs = keras.Input((8, 16))
        x = keras.layers.Dense(128, activation="relu")(inputs)
        return compiled(keras.Model(inputs, keras.layers.Dense(4)(keras.layers.LSTM(128)(x))))

    random = np.random.default_rng(0)
    data = random.random((64, 8, 16), dtype=np.float32), random.integers(0, 4, 64)
    unswapped = trained(build, data=data, batch_size=16)
    swap = tfswap.AutoSwap(
        budget=others_bytes() + 64 * MIB, stream_weights=True, slab=False, verbose=0
    )
    assert trained(build, [swap], data=data, batch_size=16).losses == unswapped.losses


@pytest.mark.parametrize("share", [pytest.param(0.85, marks=pytest.mark.slow), 0.55])
def test_weights_and_an_optimizers_state_are_away_between_their_uses(tmp_path, share):
    plain_path, path = tmp_path / "plain.keras", tmp_path / "swapped.keras"
    plain, plain_weights = trained_perceptron(plain_path)
    budget = budget_of(plain, share)
    swap = tfswap.AutoSwap(budget=budget, verbose=0)
    swapped, weights = trained_perceptron(path, swap)
    assert swap.report.plan is None or swap.report.plan.stream_weights
    assert swapped.losses == plain.losses
    assert max(swapped.peaks) <= budget
    for found, expected in zip(weights.read, plain_weights.read, strict=True):
        np.testing.assert_array_equal(found, expected)
    # The saved model is like any other, with the optimizer's state.
    loaded, expected = keras.models.load_model(path), keras.models.load_model(plain_path)
    for value, other in zip(loaded.optimizer.variables, expected.optimizer.variables, strict=True):
        np.testing.assert_array_equal(value.numpy(), other.numpy())


def test_a_plan_moves_variables_across_the_steps_end(tmp_path):
    plain, _ = trained_perceptron(tmp_path / "plain.keras")
    plan = tmp_path / "plan.json"
    away: list[TensorSwap] = []
    others_bytes()
    with tfswap.Session(budget=MIB, stream_weights=True, verbose=0):  # earlier models leave
        stays_bytes = tfswap.memory_stats()["bytes_in_use"]
    budget = stays_bytes + int(0.7 * (max(plain.peaks) - plain.others_bytes))
    for _ in range(3):  # a plan with steps that were slower by chance is dropped
        swap = tfswap.AutoSwap(budget=budget, stream_weights=True, save_plan=plan, verbose=0)
        trained_perceptron(tmp_path / "swapped.keras", swap)
        away = [each for f in swap.report.plan.functions for each in f.swaps if each.after]
        if away:
            break
    assert away
    # A value that leaves again before it is written needs no second copy.
    away_bytes = sum({each.tensor: each.size_bytes for each in away}.values())
    for _ in range(3):  # on a busy machine a value may still be read when it should leave: it stays
        with_plan = tfswap.AutoSwap(budget=budget, stream_weights=True, plan=plan, verbose=0)
        again, _ = trained_perceptron(tmp_path / "again.keras", with_plan)
        assert again.losses == plain.losses
        assert max(again.peaks) <= budget
        if with_plan.report.bytes_out_per_step >= away_bytes:
            break
    assert with_plan.report.bytes_out_per_step >= away_bytes


def test_variables_are_fetched_while_the_ops_before_run():
    """The link is slow: without this, a call would take 1 s longer than its ops."""
    stack, sleep_s, link = Stack(), 0.15, 40 * MIB

    def sleep(x):
        time.sleep(sleep_s)
        return x

    @tf.function
    def serve(x):
        for weight in stack.weights:
            x = tf.nn.relu(tf.matmul(x, weight) + stack.bias)
            x = tf.ensure_shape(tf.py_function(sleep, [x], tf.float32), [None, WIDTH])
        return x

    with tfswap.Session(
        budget=others_bytes() + BUDGET, stream_weights=True, link_bandwidth=link, verbose=0
    ):
        for _ in range(2):
            serve(inputs())
        before, calls_s = tfswap.memory_stats()["bytes_in"], []
        for _ in range(3):
            begin_s = time.perf_counter()
            serve(inputs())
            calls_s.append(time.perf_counter() - begin_s)
        fetch_s = (tfswap.memory_stats()["bytes_in"] - before) / 3 / link
    assert fetch_s >= 0.5
    assert min(calls_s) <= LAYERS * sleep_s + fetch_s / 2


# In a process of its own, where nothing else takes memory.
THERE_AND_BACK = """
import numpy as np, tensorflow as tf, tfswap
from test_streamed_variables import LAYERS, MIB, Stack, inputs

stack = Stack()

@tf.function
def there_and_back(x):
    for weight in [*stack.weights, *reversed(stack.weights)]:
        x = tf.nn.relu(tf.matmul(x, weight) + stack.bias)
    return x

expected, calls = there_and_back(inputs()).numpy().copy(), 10
staying = 4  # of LAYERS; two more are in use, or being fetched
with tfswap.Session(budget=(staying + 2) * 4 * MIB + MIB, stream_weights=True, verbose=0):
    for _ in range(3):
        assert np.array_equal(there_and_back(inputs()), expected)
    before = tfswap.memory_stats()["bytes_in"]
    for _ in range(calls):
        assert np.array_equal(there_and_back(inputs()), expected)
    fetched = tfswap.memory_stats()["bytes_in"] - before
# Belady fetches those that do not stay once in each direction, less one at each turn.
assert fetched <= 1.2 * calls * 2 * (LAYERS - staying) * 4 * MIB, fetched
"""


def test_the_variables_that_stay_are_those_that_are_used_soonest():
    """There and back again: a variable's two uses are at different distances."""
    ran = subprocess.run(
        [sys.executable, "-c", THERE_AND_BACK],
        cwd=os.path.dirname(__file__),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_a_saved_model_is_loaded_and_used_while_options_are_set(saved):
    """Its weights are read one by one: together they exceed the budget."""
    budget = others_bytes() + BUDGET
    with tfswap.options.set(budget=budget, verbose=0):
        tfswap.reset_memory_stats()
        loaded = tf.saved_model.load(saved.path)
        for _ in range(2):
            assert np.array_equal(loaded.serve(inputs()), saved.outputs)
        assert tfswap.memory_stats()["peak_bytes"] <= budget
        for weight, expected in zip(loaded.weights, saved.values, strict=True):
            assert np.array_equal(weight, expected)
    assert tfswap.memory_stats()["budget_bytes"] is None


def test_a_checkpoint_is_restored_while_options_are_set(tmp_path):
    stack, restored = Stack(), Stack()
    changed(stack)
    prefix = tf.train.Checkpoint(stack=stack).write(os.fspath(tmp_path / "values"))
    budget = others_bytes() + BUDGET
    with tfswap.options.set(budget=budget, stream_weights=True, verbose=0):
        restored.serve(inputs())
        tfswap.reset_memory_stats()
        tf.train.Checkpoint(stack=restored).restore(prefix)
        assert tfswap.memory_stats()["peak_bytes"] <= budget
    for value, expected in zip(restored.weights, stack.weights, strict=True):
        assert np.array_equal(value, expected)
