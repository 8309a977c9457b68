"""The Grappler pass on graphs with variables: reads of its own for the backward part, and swaps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from planned_functions import SIZE, fingerprint, matrix, plan_of, run, session

from tfswap.plan.schema import Return, SwapPlan, TensorSwap
from tfswap.step.graph import StepGraph


@pytest.fixture
def x():
    return matrix()


def trained_variable():
    """Return a step whose forward and backward parts read a variable that it updates."""
    variable = tf.Variable(np.eye(SIZE, dtype=np.float32))
    momentum = tf.Variable(tf.zeros([SIZE, SIZE]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.matmul(x, variable))
            loss = tf.reduce_sum(tf.nn.relu(tf.matmul(hidden, variable)) ** 2)
        gradient = tape.gradient(loss, variable)
        momentum.assign(0.9 * momentum + gradient)
        variable.assign_sub(1e-3 * momentum)
        return loss

    return step, variable, momentum


def test_streamed_variables_are_read_again_by_the_backward_part(lib, x):
    losses = {}
    for stream in (False, True):
        step, variable, _ = trained_variable()
        plan = SwapPlan(unmatched="bootstrap", min_bytes=0, stream_weights=stream)
        first, record = run(lib, plan, step, x)
        with session(plan):
            losses[stream] = [first.numpy(), *(step(x).numpy() for _ in range(3))]
        assert record["outcome"] == "bootstrapped", record
        graph = StepGraph.parse(lib.describe(record["fingerprint"]))
        again = [node for name, node in graph.nodes.items() if name.endswith("/again")]
        assert bool(again) == stream
        for node in again:
            readers = graph.readers[node.name, 0]
            assert readers and all(graph.nodes[name].backward for name in readers)
            # It reads what the forward part did: updates of the variable wait for it.
            updates = [n for n in graph.nodes.values() if n.updates_variable]
            assert any(node.name in update.controls for update in updates)
    assert losses[True] == losses[False]


def test_a_streamed_variable_is_read_right_before_its_first_reader(lib, x):
    variables = [tf.Variable(np.eye(SIZE, dtype=np.float32)) for _ in range(3)]

    @tf.function
    def f(x):
        y = x
        for i, variable in enumerate(variables):
            x = tf.nn.relu(tf.matmul(x, x, name=f"long_{i}"))
            y = tf.matmul(y + x, variable, name=f"product_{i}")
        return tf.reduce_sum(x) + tf.reduce_sum(y)

    expected = f(x)
    lazy = SwapPlan(unmatched="bootstrap", min_bytes=0, stream_weights=True)
    result, record = run(lib, lazy, f, x)
    assert record["outcome"] == "bootstrapped", record["reason"]
    assert result.numpy() == expected.numpy()
    graph = StepGraph.parse(lib.describe(record["fingerprint"]))
    before = {after: name for name, after in graph.chain}
    for i in range(3):
        (read,) = (n for n, _ in graph.nodes[f"product_{i}"].inputs if "ReadVariableOp" in n)
        assert (before[f"product_{i}"], read) in graph.delays


def test_what_is_computed_from_streamed_variables_is_computed_again(lib, x):
    weight = tf.Variable(np.eye(SIZE, dtype=np.float32))
    down, up = tf.Variable(tf.ones([SIZE, 4])), tf.Variable(tf.ones([4, SIZE]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for _ in range(2):
                adapted = tf.reshape(weight + 0.5 * tf.matmul(down, up), [SIZE, SIZE, 1])
                x = tf.nn.relu(tf.matmul(x, tf.transpose(adapted[:, :, 0])))
            loss = tf.reduce_sum(x**2)
        gradients = tape.gradient(loss, [down, up])
        down.assign_sub(1e-9 * gradients[0])
        up.assign_sub(1e-9 * gradients[1])
        return loss

    losses = {}
    for stream in (False, True):
        down.assign(tf.ones([SIZE, 4]))
        up.assign(tf.ones([4, SIZE]))
        plan = SwapPlan(unmatched="bootstrap", min_bytes=0, stream_weights=stream)
        first, record = run(lib, plan, step, x)
        with session(plan):
            losses[stream] = [first.numpy(), *(step(x).numpy() for _ in range(3))]
        graph = StepGraph.parse(lib.describe(record["fingerprint"]))
        again = {n.op for name, n in graph.nodes.items() if name.endswith("/again")}
        assert again >= {"ReadVariableOp", "MatMul", "AddV2"} if stream else not again
        # The large sum is not kept for the backward part.
        for name, node in graph.nodes.items():
            readers = [graph.nodes[reader] for reader in graph.readers_through_aliases(name, 0)]
            if stream and node.op == "AddV2" and readers:
                assert len({reader.backward for reader in readers}) == 1, (name, readers)
    assert losses[True] == losses[False]


def test_an_op_that_both_parts_share_does_not_make_the_forward_part_backward(lib, x):
    weights = [tf.Variable(np.eye(SIZE, dtype=np.float32)) for _ in range(3)]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.nn.gelu(tf.matmul(x, weight, name="layer"), approximate=True)
            loss = tf.reduce_sum(x)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-9 * gradient)
        return loss

    _, record = run(lib, SwapPlan(unmatched="bootstrap", min_bytes=0), step, x)
    graph = StepGraph.parse(lib.describe(record["fingerprint"]))
    layers = {name: node for name, node in graph.nodes.items() if node.op == "MatMul"}
    # Grappler keeps one square for gelu and its gradient, under the gradient's name.
    squares = [name for name, node in graph.nodes.items() if node.op == "Square"]
    assert squares and all("gradient_tape" in name for name in squares)
    for name, node in layers.items():
        assert node.backward == ("gradient_tape" in name), name


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tensor": "product"}, "is not a variable"),
        ({"after": ("nobody",)}, "'nobody', which is not in the graph"),
        ({"codec": "bfp", "tier": "compressed"}, "is lossy and may not encode it"),
    ],
)
def test_an_impossible_swap_of_a_variable_is_refused(lib, x, changes, problem):
    step, variable, _ = trained_variable()
    name, graph = fingerprint(lib, step, x)
    expected = variable.numpy().copy()
    product = next(n.name for n in graph.nodes.values() if n.op == "MatMul")
    handle = next(n.inputs[0][0] for n in graph.nodes.values() if n.op == "ReadVariableOp")
    node = product if "tensor" in changes else handle
    swapped = TensorSwap(f"{node}:0", 0, (), (Return("", ()),), after=(product,))
    others = {field: value for field, value in changes.items() if field != "tensor"}
    wrong = dataclasses.replace(swapped, **others)
    step(x)
    assert not np.array_equal(variable.numpy(), expected)
    _, record = run(lib, plan_of(name, wrong), step, x)
    assert record["outcome"] == "refused"
    assert problem in record["reason"]
