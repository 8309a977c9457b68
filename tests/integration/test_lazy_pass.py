"""The pass without a plan: on-demand swaps of any graph leave every value unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from planned_functions import SIZE, fingerprint, matrix, plan_of, run, session

import tfswap
from tfswap.plan.schema import SwapPlan
from tfswap.step.graph import StepGraph


@pytest.fixture
def x():
    return matrix()


def test_the_bootstrap_supports_loops_and_branches(lib, x):
    @tf.function
    def f(x, turns):
        a = tf.matmul(x, x)
        for _ in tf.range(turns):
            first = b = tf.nn.relu(tf.matmul(x, x))
            for _ in range(6):
                b = tf.nn.relu(tf.matmul(b, x))
            b = tf.matmul(b, first)
            if tf.reduce_sum(b) > 0.0:
                x = x + tf.matmul(b, a)
            else:
                x = x - b
        for _ in range(4):
            x = tf.matmul(x, x) / 8.0
        return tf.reduce_sum(tf.matmul(x, a))

    turns = tf.constant(3)
    expected = f(x, turns)
    lazy = SwapPlan(unmatched="bootstrap", min_bytes=0)
    result, record = run(lib, lazy, f, x, turns)
    assert record["outcome"] == "bootstrapped", record["reason"]
    assert record["swaps"] > 0
    assert result.numpy() == expected.numpy()


def test_gradients_through_a_bootstrapped_function(lib, x):
    variable = tf.Variable(x)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            y = x
            for _ in range(8):
                y = tf.nn.relu(tf.matmul(y, variable))
            loss = tf.reduce_sum(y)
        return loss, tape.gradient(loss, variable)

    expected = step()
    lazy = SwapPlan(unmatched="bootstrap", min_bytes=0)
    result, record = run(lib, lazy, step)
    assert record["outcome"] == "bootstrapped" and record["swaps"] >= 6
    for got, wanted in zip(result, expected, strict=True):
        assert np.array_equal(got, wanted)


def chained(lib, fingerprint):
    """Return by op the one before it in the chain of ops, by name."""
    return {after: before for before, after in StepGraph.parse(lib.describe(fingerprint)).chain}


def test_the_ops_of_a_cpu_run_one_after_another(lib, x):
    @tf.function
    def f(x):
        left, right = x, x
        for name in "abc":
            left = tf.nn.relu(tf.matmul(left, x, name=f"left_{name}"))
            right = tf.exp(tf.matmul(right, x, name=f"right_{name}") * 0.001)
        return tf.reduce_sum(left) + tf.reduce_sum(right)

    expected = f(x)
    result, record = run(lib, SwapPlan(unmatched="bootstrap", min_bytes=0), f, x)
    assert record["outcome"] == "bootstrapped", record["reason"]
    assert result.numpy() == expected.numpy()
    before = chained(lib, record["fingerprint"])
    assert {f"{side}_{name}" for side in ("left", "right") for name in "bc"} <= before.keys()
    assert len(set(before.values())) == len(before)  # one chain, no tree
    assert len(before.keys() | set(before.values())) == len(before) + 1


def test_an_op_that_waits_for_nothing_runs_just_before_its_reader(lib, x):
    """Otherwise the numbers of all dropouts would be drawn when the step begins."""

    @tf.function
    def f(x, seeds):
        for layer in range(4):
            x = tf.matmul(x, x, name=f"product_{layer}") * 0.01
            drawn = tf.random.stateless_uniform([SIZE, SIZE], seeds[layer])
            x = tf.where(drawn < 0.5, x, 0.0)
        return tf.reduce_sum(x)

    seeds = tf.random.uniform([4, 2], 0, 100, tf.int32)
    expected = f(x, seeds)
    result, record = run(lib, SwapPlan(unmatched="bootstrap", min_bytes=0), f, x, seeds)
    assert record["outcome"] == "bootstrapped", record["reason"]
    assert result.numpy() == expected.numpy()
    before = chained(lib, record["fingerprint"])
    order = [name for name in before if name not in before.values()]
    while order[-1] in before:
        order.append(before[order[-1]])
    order.reverse()
    draws = [i for i, name in enumerate(order) if "StatelessRandomUniformV2" in name]
    products = [order.index(f"product_{layer}") for layer in range(4)]
    assert len(draws) == 4
    assert all(product < draw for product, draw in zip(products, draws, strict=True))


def test_what_a_loop_starts_from_is_made_when_the_loop_begins(lib, x):
    @tf.function
    def f(x, shape):
        first = x
        for name in "abc":
            first = tf.matmul(first, x, name=f"first_{name}")
        total = tf.fill(shape, 0.0, name="zeros")
        for _ in tf.range(3):
            total += first
        return tf.reduce_sum(total)

    shape = tf.constant([SIZE, SIZE])
    expected = f(x, shape)
    result, record = run(lib, SwapPlan(unmatched="bootstrap", min_bytes=0), f, x, shape)
    assert record["outcome"] == "bootstrapped", record["reason"]
    assert result.numpy() == expected.numpy()
    assert chained(lib, record["fingerprint"])["zeros"] == "first_c"


def test_a_broadcast_waits_for_the_other_input_of_its_reader(lib, x):
    @tf.function
    def f(x, times):
        spread = tf.tile(tf.reduce_sum(x, 0, keepdims=True), times, name="spread") * 0.5
        a = x
        for name in "abcd":
            a = tf.matmul(a, x, name=name)
        return tf.reduce_sum(tf.maximum(a, spread))

    times = tf.constant([SIZE, 1])
    expected = f(x, times)
    lazy = SwapPlan(unmatched="bootstrap", min_bytes=0)
    result, record = run(lib, lazy, f, x, times)
    assert record["outcome"] == "bootstrapped"
    assert result.numpy() == expected.numpy()
    lines = lib.describe(record["fingerprint"]).splitlines()
    tile = next(line.split("\t") for line in lines if line.startswith("spread\t"))
    assert "^d" in tile


def test_weight_decay_waits_for_the_backward_parts_reads(lib, x):
    def trained():
        layers = [tf.Variable(np.eye(SIZE, dtype=np.float32)) for _ in range(4)]
        rate = tf.Variable(1e-3)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                hidden = x
                for layer in layers:
                    hidden = tf.nn.relu(tf.matmul(hidden, layer))
                loss = tf.reduce_sum(hidden)
            gradients = tape.gradient(loss, layers)
            for layer in layers:
                layer.assign_sub(layer * 0.01 * rate)
            for layer, gradient in zip(layers, gradients, strict=True):
                layer.assign_sub(rate * gradient)
            return loss

        return step, layers

    step, expected = trained()
    losses = [step(x).numpy() for _ in range(3)]
    lazy = SwapPlan(unmatched="bootstrap", min_bytes=0)
    step, layers = trained()
    first, record = run(lib, lazy, step, x)
    with session(lazy):
        assert [first.numpy(), step(x).numpy(), step(x).numpy()] == losses
    for layer, wanted in zip(layers, expected, strict=True):
        assert np.array_equal(layer, wanted)
    # The decay of each layer whose weights the backward part reads (all but the first) waits.
    graph = StepGraph.parse(lib.describe(record["fingerprint"]))
    delayed = [
        (before, after)
        for before, after in graph.delays
        if graph.nodes[before].backward and graph.nodes[before].op == "MatMul"
    ]
    assert len(delayed) == 3 and len({after for _, after in delayed}) == 3
    assert all(graph.nodes[after].op == "Mul" for _, after in delayed)


def test_a_tensor_that_is_read_again_soon_is_evictable(lib, x):
    # As in batch norm's gradient: no matrix product lies between the two readers of `a`.
    @tf.function
    def f(x):
        a = tf.matmul(x, x, name="a")
        total = tf.reduce_sum(a - 1.0, 0, keepdims=True, name="total")
        spread = tf.tile(total, [SIZE, 1], name="spread")
        return tf.reduce_max(tf.add_n([a, spread, x]))

    expected = f(x)
    lazy = SwapPlan(unmatched="bootstrap", min_bytes=0)
    result, record = run(lib, lazy, f, x)
    assert record["outcome"] == "bootstrapped" and record["swaps"] >= 1
    assert result.numpy() == expected.numpy()


def _filled(number, dtype, side):
    return tf.fill([side, side], tf.constant(number, dtype))


def _tiled(number, dtype, side):
    row = number + np.arange(side) % 7
    return tf.tile(tf.constant(row[None], dtype), [side, 1])


def _broadcast(number, dtype, side):
    row = number + np.arange(side) % 7
    return tf.broadcast_to(tf.constant(row, dtype), [side, side])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("number", [0.0, 1.5])
@pytest.mark.parametrize("made", [_filled, _tiled, _broadcast])
def test_a_tensor_made_from_constants_holds_no_memory_between_steps(lib, made, number, dtype):
    # Grappler or TensorFlow's runtime folds it into a constant, and each optimization of the
    # graph makes another one.
    side = 512

    def f(x):
        spread = made(number, dtype, side)
        product = tf.matmul(x, x) + spread
        halves = [tf.nn.relu(tf.matmul(product, x)) for _ in range(3)]
        return tf.reduce_max(tf.add_n(halves) * -spread)

    x = tf.cast(tf.eye(side) / side, dtype)
    expected = f(x)
    function = tf.function(f)
    held = []
    for min_bytes in range(1, 4):
        plan = SwapPlan(unmatched="bootstrap", min_bytes=min_bytes)
        result, record = run(lib, plan, function, x)
        assert record["outcome"] == "bootstrapped", record["reason"]
        assert result.numpy() == expected.numpy()
        held.append(tfswap.memory_stats()["bytes_in_use"])
    assert held[-1] - held[0] < side * side


def test_a_poolings_gradient_selects_the_same_of_equal_values(lib):
    # oneDNN stores which value it chose, for a gradient that reads the pooling's output.
    random = np.random.default_rng(3)
    images = tf.constant(random.integers(0, 3, (4, 32, 32, 8)), tf.float32)
    kernel = tf.constant(random.standard_normal((3, 3, 8, 8)), tf.float32)

    @tf.function
    def gradients(images):
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            pooled = tf.nn.max_pool2d(tf.nn.relu(images), 3, 2, "SAME")
            made = tf.nn.conv2d(tf.nn.conv2d(pooled, kernel, 1, "SAME"), kernel, 1, "SAME")
            loss = tf.reduce_sum(made * made)
        return tape.gradient(loss, [images, kernel])

    expected = gradients(images)
    lazy = SwapPlan(unmatched="bootstrap", min_bytes=0)
    found, record = run(lib, lazy, gradients, images)
    assert record["outcome"] == "bootstrapped" and record["swaps"] > 0
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value.numpy(), other.numpy())


@pytest.mark.parametrize("order", [("read/1", "one/4"), ("read/0", "other/4")])
def test_on_demand_swaps_beside_a_plan_agree_with_its_order(lib, x, order):
    @tf.function
    def f(x):
        a = tf.matmul(x, x, name="a")
        reads = []
        for branch, name in enumerate(("one", "other")):
            end = x + (branch + 1.0)
            for i in range(5):
                end = tf.matmul(end, x, name=f"{name}/{i}")
            reads.append(tf.reduce_max(tf.matmul(end, a, name=f"read/{branch}")))
        return reads

    expected = f(x)
    name, graph = fingerprint(lib, f, x)
    assert {"a", *order} <= set(graph.nodes)
    result, record = run(lib, plan_of(name, order=(order,), reserve=True), f, x)
    assert record["reason"] == ""
    assert [r.numpy() for r in result] == [e.numpy() for e in expected]
