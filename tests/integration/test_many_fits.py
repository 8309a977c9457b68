"""Check that a process that trains many times keeps no more than one that trained a few times."""

from __future__ import annotations

import os
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled, convolutions, deterministic, images

import tfswap
from tfswap.hooks.plan_session import forget_optimised
from tfswap.ops import library

FITS = 7


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


class Seen(keras.callbacks.Callback):
    """Record losses, and threads and device memory after the training."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


def _fewest_threads() -> int:
    """Return the lowest count of some moments: TensorFlow's pools end threads late."""
    counts = []
    for _ in range(10):
        counts.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.1)
    return min(counts)


def fits(model, budgets) -> list[Seen]:
    """Train from the same weights under one budget after the other; return what was recorded."""
    x, y = images()
    weights = [variable.numpy().copy() for variable in model.variables]
    seen = []
    for budget in budgets:
        for variable, value in zip(model.variables, weights, strict=True):
            variable.assign(value)
        for variable in model.optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        callbacks = []
        if budget is not None:
            callbacks.append(tfswap.AutoSwap(budget=budget, plan_cache=None, verbose=0))
        one = Seen()
        model.fit(x, y, batch_size=32, shuffle=False, verbose=0, callbacks=[*callbacks, one])
        one.threads = _fewest_threads()
        one.load_bytes = tfswap.memory_stats()["load_bytes"]
        seen.append(one)
    return seen


@pytest.mark.slow
def test_graphs_under_many_budgets_are_released():
    """TensorFlow keeps a graph for each budget, with a thread for each iterator that it reads."""
    keras.utils.set_random_seed(7)
    model = compiled(convolutions())
    first, second = fits(model, [None, None])
    assert first.losses == second.losses
    budgets = [90 * 2**20 + number * 2**16 for number in range(FITS)]
    seen = fits(model, budgets)
    assert all(one.losses == first.losses for one in seen)
    early, late = seen[:3], seen[3:]
    # Each fit used to leave three; TensorFlow's own pools may grow by a few.
    assert min(one.threads for one in late[-2:]) <= max(one.threads for one in early) + 6
    assert max(one.load_bytes for one in late) <= max(one.load_bytes for one in early) + 2**20
    assert fits(model, [None])[0].losses == first.losses


def test_the_same_budget_causes_no_new_optimization():
    keras.utils.set_random_seed(7)
    model = compiled(convolutions())
    budget = 2**30
    fits(model, [budget])
    serial = max(record["serial"] for record in library.load().pass_records())
    fits(model, [budget, budget])
    assert max(record["serial"] for record in library.load().pass_records()) == serial


def test_a_function_runs_as_before_after_its_optimized_graph_is_dropped():
    state = tf.Variable(1.0)

    @tf.function
    def step(x):
        state.assign_add(x)
        return state * 2.0

    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(1.0))
        assert float(step(x)) == 4.0
    name = step.get_concrete_function(x).name.decode()
    forget_optimised(name)
    assert float(step(x)) == 6.0
    assert tape.gradient(state * 1.0, x) is None
    forget_optimised("no_function_of_that_name")
