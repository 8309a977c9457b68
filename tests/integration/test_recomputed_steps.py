"""Recomputation: the pass recomputes tensors, refuses invalid requests, and changes no value."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, Losses, budget_of, compiled, deterministic, trained
from planned_functions import chain, fingerprint, plan_of, run, swap

import tfswap
from tfswap.plan.node_names import CLONE_INFIX
from tfswap.plan.schema import Recompute, SwapPlan
from tfswap.traces.timeline_file import load_profile


@pytest.fixture
def x():
    return tf.constant(np.random.default_rng(0).random((256, 256), dtype=np.float32) / 256)


def again(tensor="a:0", nodes=("a",), trigger="d", consumers=("e",)) -> Recompute:
    return Recompute(tensor, nodes, trigger, consumers)


def test_the_pass_recomputes(lib, x):
    f = chain()
    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    result, record = run(lib, plan_of(name, recomputes=(again(),)), f, x)
    assert (record["outcome"], record["swaps"]) == ("planned", 0)
    assert result.numpy() == expected.numpy()
    assert "a/again/0\tMatMul" in lib.describe_under_plan(name)
    # The index for profiles: another training of the graph may have another plan, or none yet.
    assert "/again/" not in lib.describe(name)
    run(lib, plan_of(name), f, x)
    assert lib.describe_under_plan(name) == lib.describe(name)


def test_clones_can_be_swapped_cloned_and_ordered(lib, x):
    f = chain()
    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    plan = plan_of(
        name,
        swap(tensor="b/again/0:0", gates=(), trigger="", consumers=("c/again/0",)),
        recomputes=(
            again("c:0", ("b", "c"), "c", ("d",)),
            again("a:0", ("a",), "c", ("b/again/0", "e")),
        ),
        order=(("c/again/0", "e"),),
    )
    result, record = run(lib, plan, f, x)
    assert record["outcome"] == "planned", record["reason"]
    assert result.numpy() == expected.numpy()
    assert tfswap.memory_stats()["copies_out"] == 1


def test_readers_of_an_alias_read_a_clone_of_it(lib, x):
    @tf.function
    def f(x):
        a = tf.matmul(x, x, name="a")
        flat = tf.reshape(a, [-1], name="flat")
        b = tf.matmul(a, x, name="b")
        c = tf.matmul(b, x, name="c")
        return tf.reduce_sum(tf.exp(flat, name="late")) + tf.reduce_sum(c)

    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    plan = plan_of(name, recomputes=(again("a:0", ("a",), "c", ("late",)),))
    result, record = run(lib, plan, f, x)
    assert record["outcome"] == "planned", record["reason"]
    assert result.numpy() == expected.numpy()
    assert "flat/again/0\tReshape" in lib.describe_under_plan(name)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (again(tensor="nobody:0", nodes=("nobody",)), "'nobody', which is not in the graph"),
        (again(nodes=("b",)), "must be its producer"),
        (again(nodes=()), "must be its producer"),
        (again(nodes=("nobody", "a")), "'nobody', which is not in the graph"),
        (again(trigger="nobody"), "'nobody', which is not in the graph"),
        (again(trigger=""), "'', which is not in the graph"),
        (again(consumers=("nobody",)), "'nobody', which is not in the graph"),
        (again(consumers=("c",)), "'c' does not read 'a:0'"),
        (again(trigger="e"), "the graph has a cycle through"),
    ],
)
def test_invalid_recomputations_are_refused(lib, x, bad, reason):
    f = chain()
    expected = f(x)
    name, _ = fingerprint(lib, f, x)
    result, record = run(lib, plan_of(name, recomputes=(bad,)), f, x)
    assert record["outcome"] == "refused" and reason in record["reason"], record["reason"]
    assert result.numpy() == expected.numpy()


@pytest.mark.parametrize("op", ["random", "variable"])
def test_ops_that_may_not_repeat_their_result_are_refused(lib, x, op):
    variable = tf.Variable(x)

    @tf.function
    def f(x):
        if op == "random":
            a = tf.raw_ops.RandomUniform(shape=x.shape, dtype=tf.float32, seed=1, name="a")
        else:
            a = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32, name="a")
        for _ in range(4):
            x = tf.matmul(x, a)
        return tf.reduce_sum(tf.matmul(x, a, name="e"))

    name, graph = fingerprint(lib, f, x)
    trigger = next(n.name for n in graph.nodes.values() if n.op == "MatMul" and n.name != "e")
    if op not in graph.nodes and "a" not in graph.nodes:
        pytest.skip("TensorFlow gave the op another name")
    _, record = run(lib, plan_of(name, recomputes=(again(trigger=trigger),)), f, x)
    assert record["outcome"] == "refused" and "may not give the same result" in record["reason"]


def residual_free(activation: str) -> keras.Model:
    """Build batch norm, an activation, dropout and a convolution in sequence."""
    x = inputs = keras.Input((48, 48, 3))
    x = keras.layers.Conv2D(16, 3, padding="same")(x)
    for _ in range(6):
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.Activation(activation)(x)
        x = keras.layers.Dropout(0.2)(x)
        x = keras.layers.Conv2D(16, 3, padding="same")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(4)(x))


@pytest.fixture(scope="module", params=[pytest.param("relu", marks=pytest.mark.slow), "gelu"])
def unswapped(request) -> tuple[str, Losses]:
    deterministic()
    first = trained(lambda: compiled(residual_free(request.param)), epochs=2)
    assert first.losses == trained(lambda: compiled(residual_free(request.param)), epochs=2).losses
    return request.param, first


@pytest.mark.parametrize("policy", [pytest.param("recompute", marks=pytest.mark.slow), "joint"])
def test_trainings_are_the_same(unswapped, policy, capsys):
    activation, first = unswapped
    budget = budget_of(first, 0.75)
    # On such a slow link, every copy causes a wait, also where ops take long since others run.
    swap = tfswap.AutoSwap(budget=budget, policy=policy, link_bandwidth="0.05GB/s", codec=None)
    swapped = trained(lambda: compiled(residual_free(activation)), [swap], epochs=2)
    assert swapped.losses == first.losses
    assert max(swapped.peaks) <= budget
    report = swap.report
    assert report["outcome"] == "swapped" and report["recomputed_buffers"] > 0
    assert report["plan"].functions[0].recomputes
    assert report["recompute_s"] > 0
    assert report["measured_peak_bytes"] <= report["predicted_peak_bytes"] * 1.1
    if policy == "recompute":
        assert report["swapped_buffers"] == 0
    assert "recomputed in" in capsys.readouterr().out


def test_a_saved_plan_recomputes(unswapped, tmp_path):
    activation, first = unswapped
    budget = budget_of(first, 0.75)
    path = tmp_path / "plan.json"
    options = {"budget": budget, "verbose": 0}
    swap = tfswap.AutoSwap(policy="recompute", save_plan=path, **options)
    trained(lambda: compiled(residual_free(activation)), [swap], epochs=2)
    assert SwapPlan.load(path).functions[0].recomputes
    given = tfswap.AutoSwap(plan=path, **options)
    swapped = trained(lambda: compiled(residual_free(activation)), [given], epochs=2)
    assert swapped.losses == first.losses
    assert max(swapped.peaks) <= budget
    assert given.report["recomputed_buffers"] > 0
    assert max(swapped.peaks) - MIB <= swap.report["measured_peak_bytes"] * 1.1


@pytest.mark.slow
def test_another_training_of_the_graph_is_profiled_without_recomputation(unswapped, tmp_path):
    activation, first = unswapped
    options = {"budget": budget_of(first, 0.75), "verbose": 0, "policy": "recompute"}
    paths = [str(tmp_path / name) for name in ("one", "other")]
    swaps = [tfswap.AutoSwap(**options, save_profile=path) for path in paths]
    for each in swaps:
        swapped = trained(lambda: compiled(residual_free(activation)), [each], epochs=2)
        assert swapped.losses == first.losses
    one, other = (each.report["plan"].functions[0] for each in swaps)
    assert one.fingerprint == other.fingerprint and one.recomputes
    for path in paths:
        assert not any(CLONE_INFIX in name for name in load_profile(path).timeline.op_names)
