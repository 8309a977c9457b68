"""The Grappler pass: it executes plans, refuses invalid ones, and leaves every value unchanged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from planned_functions import (
    SIZE,
    chain,
    fingerprint,
    matrix,
    newest,
    plan_of,
    records,
    run,
    swap,
)

import tfswap
from tfswap.hooks.plan_session import PlanSession
from tfswap.plan.schema import Return, SwapPlan, TensorSwap


@pytest.fixture
def x():
    return matrix()


def test_executes_a_plan(lib, x):
    f = chain()
    expected = f(x)
    name, graph = fingerprint(lib, f, x)
    assert graph.nodes["a"].gateable and graph.nodes["a"].producer
    result, record = run(lib, plan_of(name, swap()), f, x)
    assert (record["outcome"], record["swaps"]) == ("planned", 1)
    assert result.numpy() == expected.numpy()
    stats = tfswap.memory_stats()
    assert (stats["copies_out"], stats["copies_in"]) == (1, 1)
    assert stats["bytes_out"] == SIZE * SIZE * 4


@pytest.mark.parametrize("threads", [1, 2])
def test_a_plan_sets_the_number_of_encoding_threads(lib, x, threads):
    f = chain()
    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    encoded = swap(tier="compressed", codec="zvc", threads=threads)
    result, record = run(lib, plan_of(name, encoded), f, x)
    assert record["outcome"] == "planned", record
    assert result.numpy() == expected.numpy()
    assert tfswap.memory_stats()["far_compressed_copies_out"] == 1


def test_several_returns_of_one_tensor(lib, x):
    f = chain()
    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    twice = TensorSwap("a:0", 0, (), (Return("", ("b",)), Return("d", ("e",))))
    result, record = run(lib, plan_of(name, twice), f, x)
    assert record["outcome"] == "planned", record
    assert result.numpy() == expected.numpy()
    stats = tfswap.memory_stats()
    assert (stats["copies_out"], stats["copies_in"]) == (1, 2)


def test_equal_graphs_have_equal_fingerprints_and_others_do_not(lib, x):
    first, _ = fingerprint(lib, chain(), x)
    second, _ = fingerprint(lib, chain(), x)
    assert first == second

    @tf.function
    def other(x):
        return chain().python_function(x) + tf.reduce_min(x)

    assert fingerprint(lib, other, x)[0] != first


def test_a_plan_for_another_graph_is_ignored(lib, x):
    f = chain()
    expected = f(x)
    result, record = run(lib, plan_of("0" * 16, swap()), f, x)
    assert record["outcome"] == "left"
    assert result.numpy() == expected.numpy()


@pytest.mark.parametrize(
    "bad, reason",
    [
        (swap(tensor="nobody:0"), "'nobody', which is not in the graph"),
        (swap(tensor="a:7"), "'a:7' is not an output of plain bytes"),
        (swap(tensor="x:0"), "is owned outside of the step"),
        (swap(gates=("nobody",)), "'nobody', which is not in the graph"),
        (swap(trigger="nobody"), "'nobody', which is not in the graph"),
        (swap(consumers=("c",)), "'c' does not read 'a:0'"),
        (swap(trigger="e"), "the graph has a cycle through"),
        (swap(gates=("a",)), "the graph has a cycle through"),
    ],
)
def test_invalid_entries_are_refused_and_the_graph_unchanged(lib, x, bad, reason):
    f = chain()
    expected = f(x)
    name, graph = fingerprint(lib, f, x)
    if bad.tensor == "x:0":
        argument = next(n.name for n in graph.nodes.values() if n.op == "_Arg")
        bad = dataclasses.replace(bad, tensor=f"{argument}:0", returns=(Return("d", ("a",)),))
    result, record = run(lib, plan_of(name, bad), f, x)
    assert record["outcome"] == "refused" and reason in record["reason"]
    assert result.numpy() == expected.numpy()
    assert tfswap.memory_stats()["copies_out"] == 0
    assert any(function["outcome"] == "refused" for function in tfswap.status()["functions"])


def test_a_graph_with_an_invalid_entry_gets_on_demand_swaps(lib, x):
    f = chain()
    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    plan = dataclasses.replace(plan_of(name, swap(tensor="nobody:0")), unmatched="bootstrap")
    result, record = run(lib, plan, f, x)
    assert record["outcome"] == "refused" and "nobody" in record["reason"]
    assert record["swaps"] > 0
    assert result.numpy() == expected.numpy()


def test_order_edges(lib, x):
    f = chain()
    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    result, record = run(lib, plan_of(name, swap(), order=(("b", "c"),)), f, x)
    assert record["outcome"] == "planned"
    assert result.numpy() == expected.numpy()
    _, record = run(lib, plan_of(name, swap(), order=(("c", "b"),)), f, x)
    assert record["outcome"] == "refused" and "cycle" in record["reason"]


def test_late_readers_of_an_alias_read_a_clone(lib, x):
    @tf.function
    def f(x):
        a = tf.matmul(x, x, name="a")
        flat = tf.reshape(a, [SIZE // 2, SIZE * 2], name="flat")
        b = tf.matmul(flat, flat, transpose_b=True, name="b")
        c = tf.matmul(b, b, name="c")
        d = tf.matmul(c, c, name="d")
        return tf.reduce_sum(tf.matmul(d, flat, name="e")) + tf.reduce_max(c)

    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    result, record = run(lib, plan_of(name, swap()), f, x)
    assert record["outcome"] == "planned", record["reason"]
    assert result.numpy() == expected.numpy()
    assert tfswap.memory_stats()["copies_in"] == 1


def test_outputs_of_several_ports_and_control_inputs(lib, x):
    @tf.function
    def f(x):
        first, second = tf.split(tf.matmul(x, x, name="a"), 2, name="parts")
        b = tf.matmul(first, x, name="b")
        with tf.control_dependencies([b]):
            c = tf.matmul(b, x, name="c")
        d = tf.matmul(c, x, name="d")
        return tf.reduce_sum(tf.matmul(d, second, transpose_b=True, name="e"))

    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    result, record = run(lib, plan_of(name, swap(tensor="parts:1")), f, x)
    assert record["outcome"] == "planned", record["reason"]
    assert result.numpy() == expected.numpy()


def test_a_fetched_tensor_can_be_swapped(lib, x):
    @tf.function
    def f(x):
        a = tf.matmul(x, x, name="a")
        d = a
        for name in "bcd":
            d = tf.matmul(d, x, name=name)
        return a, tf.matmul(d, a, name="e"), tf.reduce_sum(d)

    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    result, record = run(lib, plan_of(name, swap()), f, x)
    assert record["outcome"] == "planned", record["reason"]
    for got, wanted in zip(result, expected, strict=True):
        assert np.array_equal(got, wanted)


def branching():
    @tf.function
    def f(x, which):
        a = tf.matmul(x, x, name="a")
        b = tf.matmul(a, x, name="b")
        c = tf.cond(which, lambda: tf.matmul(b, x, name="inside"), lambda: b * 2.0)
        d = tf.matmul(c, x, name="d")
        return tf.reduce_sum(tf.matmul(d, a, name="e"))

    return f


@pytest.mark.parametrize("which", [True, False])
def test_across_a_branch(lib, x, which):
    f, which = branching(), tf.constant(which)
    expected = f(x, which)
    name, graph = fingerprint(lib, f, x, which)
    inside = next(n for n in graph.nodes if n.endswith("inside"))
    result, record = run(lib, plan_of(name, swap(gates=("d",))), f, x, which)
    assert record["outcome"] == "planned", record["reason"]
    assert result.numpy() == expected.numpy()
    # A trigger in an untaken branch would make the readers dead, too.
    _, record = run(lib, plan_of(name, swap(gates=(), trigger=inside)), f, x, which)
    assert record["outcome"] == "refused" and "may run when" in record["reason"]


def test_a_plan_that_is_not_json_is_reported(lib, x):
    f = chain()
    expected = f(x)
    serial = newest(lib)
    pushed = PlanSession()
    pushed.push(SwapPlan(unmatched="bootstrap"))
    options = pushed._pushed.config_proto_serialized
    config = tf.compat.v1.ConfigProto.FromString(options)
    optimizer = config.graph_options.rewrite_options.custom_optimizers[-1]
    optimizer.parameter_map["plan"].s = b"{broken"
    from tensorflow.python.eager import context

    context.context().function_call_options = context.FunctionCallOptions(config_proto=config)
    try:
        assert f(x).numpy() == expected.numpy()
    finally:
        context.context().function_call_options = None
    assert records(lib, serial)[0]["outcome"] == "refused"


def test_colocated_ops(lib, x):
    @tf.function
    def f(x):
        a = tf.matmul(x, x, name="a")
        with tf.compat.v1.colocate_with(a):
            b = tf.matmul(a, x, name="b")
        c = tf.matmul(b, x, name="c")
        with tf.compat.v1.colocate_with(b):
            d = tf.matmul(c, x, name="d")
        return tf.reduce_sum(tf.matmul(d, a, name="e"))

    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    result, record = run(lib, plan_of(name, swap()), f, x)
    assert record["outcome"] == "planned", record["reason"]
    assert result.numpy() == expected.numpy()


def test_a_rewritten_graph_is_not_rewritten_again(lib, x):
    from tensorflow.python.eager import context

    f = chain()
    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    serial = newest(lib)
    pushed = PlanSession()
    pushed.push(plan_of(name, swap()))
    config = tf.compat.v1.ConfigProto.FromString(pushed._pushed.config_proto_serialized)
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    optimizers.add().CopyFrom(optimizers[-1])
    tfswap.reset_memory_stats()
    context.context().function_call_options = context.FunctionCallOptions(config_proto=config)
    try:
        assert f(x).numpy() == expected.numpy()
    finally:
        context.context().function_call_options = None
    assert [r["outcome"] for r in records(lib, serial)] == ["planned"]
    assert tfswap.memory_stats()["copies_out"] == 1


def fused_gradients(image, gradient):
    """Return the gradients of a convolution's weights and bias, which oneDNN computes in one op."""
    shape = [1, SIZE, SIZE // 16, 16]
    gradient = tf.reshape(gradient, shape)
    b = tf.raw_ops.BiasAddGrad(out_backprop=gradient, name="b")
    w = tf.raw_ops.Conv2DBackpropFilter(
        input=tf.reshape(image, shape),
        filter_sizes=[3, 3, 16, 16],
        out_backprop=gradient,
        strides=[1, 1, 1, 1],
        padding="SAME",
        name="w",
    )
    return w, b


def fingerprint_of_fused(lib, function, x) -> str:
    name, graph = fingerprint(lib, function, x)
    if graph.twins.get("w") != "b":
        pytest.skip("oneDNN fuses nothing on this processor")
    return name


def test_no_op_is_placed_between_ops_that_onednn_fuses(lib, x):
    @tf.function
    def f(x):
        w, b = fused_gradients(tf.matmul(x, x, name="m"), x)
        return tf.reduce_sum(w) + tf.reduce_sum(b)

    name = fingerprint_of_fused(lib, f, x)
    expected = f(x)
    # w needs m, so b before m is between the two.
    result, record = run(lib, plan_of(name, order=(("b", "m"),), reserve=True), f, x)
    assert record["outcome"] == "refused" and "cycle" in record["reason"]
    assert result.numpy() == expected.numpy()


def test_reserved_swaps_agree_with_what_onednn_fuses(lib, x):
    """What reads the bias's gradient runs after the image, which the fused op needs."""

    @tf.function
    def f(x):
        image = x
        for i in range(4):
            image = tf.cumsum(image, name=f"i{i}")
        w, b = fused_gradients(image, tf.matmul(x, x, name="g"))
        for i in range(4):
            b = tf.cumsum(b, name=f"b{i}")
        return tf.reduce_sum(w) + tf.reduce_sum(b)

    name = fingerprint_of_fused(lib, f, x)
    expected = f(x)
    result, record = run(lib, plan_of(name, order=(("g", "i0"),), reserve=True), f, x)
    assert record["reason"] == ""
    assert record["outcome"] == "left"
    assert result.numpy() == expected.numpy()
