"""Sums round as in TensorFlow, also if a plan fixes their order, or with an addend at a time."""

from __future__ import annotations

from itertools import pairwise, permutations

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import budget_of, compiled, trained
from planned_functions import SIZE, fingerprint, matrix, plan_of, run, swap

import tfswap
from tfswap.plan.schema import SwapPlan
from tfswap.step.graph import StepGraph


@pytest.fixture
def x():
    return matrix()


def sum_in_order_of_arrival(
    addends: dict[str, tf.Tensor], order: tuple[str, ...] = ()
) -> tf.Tensor:
    """Return the sum; those that `order` names are added in turn."""
    raw = tf.raw_ops
    shape = next(iter(addends.values())).shape
    variable = raw.TemporaryVariable(shape=shape, dtype=tf.float32, var_name="sum")
    start = raw.Assign(ref=variable, value=tf.zeros(shape))
    added: list[tf.Tensor] = []
    for name in order or addends:
        with tf.control_dependencies([each.op for each in added if order]):
            addend = addends[name]
            added.append(
                raw.AssignAdd(ref=start, value=addend, use_locking=True, name=f"add_{name}")
            )
    with tf.control_dependencies([each.op for each in added]):
        return raw.DestroyTemporaryVariable(ref=start, var_name="sum")


def test_a_sum_in_order_of_arrival_keeps_its_order(lib, x):
    # As TensorFlow's memory optimizer rewrites an AddN: the last addend decides the rounding.
    @tf.function
    def f(x):
        common = tf.matmul(x, x, name="common")
        ways = {"a": common * 3.0, "b": tf.tile(tf.reduce_sum(common, 0, True), [SIZE, 1])}
        ways["c"] = tf.nn.relu(tf.matmul(common, x, name="product")) - common
        total = sum_in_order_of_arrival(ways)
        return tf.reduce_max(tf.matmul(total, common, name="after"))

    expected = f(x)
    lazy = SwapPlan(unmatched="bootstrap", min_bytes=0)
    result, record = run(lib, lazy, f, x)
    assert record["outcome"] == "bootstrapped"
    assert result.numpy() == expected.numpy()
    nodes = StepGraph.parse(lib.describe(record["fingerprint"])).nodes
    racing = {name for name, node in nodes.items() if node.racing}
    assert {"product", "add_a", "add_b", "add_c"} <= racing
    assert not racing & {"common", "after"}
    assert not any(nodes[name].gateable or nodes[name].producer for name in racing)


def test_an_addend_that_others_depend_on_does_not_race(lib, x):
    # A residual connection, of which TensorFlow makes one sum with those of the last layer.
    @tf.function
    def f(x):
        given = tf.matmul(x, x, name="given")
        deep = tf.nn.relu(tf.matmul(given, x, name="deep"))
        last = tf.matmul(deep, x, name="way_b")
        for _ in range(12):  # so that it comes last in each run
            last = tf.matmul(last, x) * 2.0
        ways = {"a": given, "b": last, "c": deep * 3.0}
        return tf.reduce_max(sum_in_order_of_arrival(ways))

    expected = f(x)
    result, record = run(lib, SwapPlan(unmatched="bootstrap", min_bytes=0), f, x)
    assert result.numpy() == expected.numpy()
    nodes = StepGraph.parse(lib.describe(record["fingerprint"])).nodes
    racing = {name for name, node in nodes.items() if node.racing}
    assert {"way_b", "add_a", "add_b", "add_c"} <= racing
    assert not racing & {"given", "deep"}


def test_a_read_that_comes_late_changes_no_race(lib, x):
    """What all addends need moves behind `early`, which would then be swapped."""
    variable = tf.Variable(x)

    @tf.function
    def f(x):
        common = variable * 2.0
        deep = early = tf.matmul(x, x, name="early")
        for _ in range(4):
            deep = tf.nn.relu(tf.matmul(deep, x)) / SIZE
        both = tf.nn.relu(deep + early)
        ways = {"a": common * 3.0, "b": tf.matmul(deep, common), "c": tf.matmul(both, common)}
        return tf.reduce_sum(sum_in_order_of_arrival(ways))

    expected = f(x)
    result, record = run(lib, SwapPlan(unmatched="bootstrap", min_bytes=0), f, x)
    assert record["outcome"] == "bootstrapped", record["reason"]
    assert result.numpy() == expected.numpy()
    nodes = StepGraph.parse(lib.describe(record["fingerprint"])).nodes
    assert nodes["early"].racing


def three_ways():
    """Return a function that makes three addends and their sum, and reads the first one again."""

    @tf.function
    def f(x):
        early = tf.matmul(x, x, name="early")
        other = tf.matmul(x, x + 0.1, name="other")
        late = tf.matmul(x, x * 3.0, name="late")
        for i in range(6):
            late = tf.matmul(late, x, name=f"late/{i}") * 2.0
        addends = {"a": early, "b": other, "c": late}
        total = sum_in_order_of_arrival(addends)
        return total, tf.reduce_sum(tf.matmul(total, early, name="last")), addends

    return f


EARLY = swap("early:0", gates=("late",), trigger="late/5", consumers=("last",))


def test_a_plan_fixes_the_order_of_additions(lib, x):
    function = three_ways()
    name, graph = fingerprint(lib, function, x)
    assert graph.nodes["early"].racing and not graph.nodes["early"].producer
    addends = function(x)[2]
    totals = set()
    for order in permutations("abc"):
        edges = tuple(pairwise(f"add_{each}" for each in order))
        (total, *_), record = run(lib, plan_of(name, EARLY, order=edges), function, x)
        assert (record["outcome"], record["swaps"]) == ("planned", 1), record["reason"]
        expected = tf.zeros_like(x)
        for each in order:
            expected = expected + addends[each]
        np.testing.assert_array_equal(total.numpy(), expected.numpy())
        totals.add(total.numpy().tobytes())
        # The graph is described as given, so that further plans fix the order, too.
        description = lib.describe(name)
        assert StepGraph.parse(description).nodes["early"].racing
        fixed = StepGraph.parse(description).in_order(edges)
        assert fixed.nodes["early"].producer and set(edges) <= set(fixed.order)
    assert len(totals) == 3  # rounded differently


@pytest.mark.parametrize("edges", [(), (("add_a", "add_b"),), (("add_a", "late"),)])
def test_without_an_order_of_all_additions_a_plan_may_not_swap_what_races(lib, x, edges):
    function = three_ways()
    name, _ = fingerprint(lib, function, x)
    _, record = run(lib, plan_of(name, EARLY, order=edges), function, x)
    assert record["outcome"] == "refused" and record["reason"]


def test_a_contradictory_order_of_additions_is_refused(lib, x):
    function = three_ways()
    name, _ = fingerprint(lib, function, x)
    edges = (("add_a", "add_b"), ("add_b", "add_c"), ("add_c", "add_a"))
    _, record = run(lib, plan_of(name, EARLY, order=edges), function, x)
    assert record["outcome"] == "refused" and "cycle" in record["reason"]


@pytest.mark.parametrize("count", [4, 8, 9, 10, 16, 17, 25])
def test_addends_come_one_after_the_other_and_round_alike(lib, x, count):
    @tf.function
    def f(x):
        ends = [x]
        for _ in range(count - 1):
            ends.append(tf.matmul(ends[-1], x) * 3.0)
        return tf.add_n(ends)

    expected = f(x)
    total, record = run(lib, SwapPlan(unmatched="bootstrap", min_bytes=0), f, x)
    assert record["outcome"] == "bootstrapped", record["reason"]
    np.testing.assert_array_equal(total.numpy(), expected.numpy())
    ops = [node.op for node in StepGraph.parse(lib.describe(record["fingerprint"])).nodes.values()]
    assert "AddN" not in ops and ops.count("AddV2") == count - 1


def test_a_sum_of_reductions_stays(lib, x):
    @tf.function
    def f(x):
        ends = [tf.matmul(x, x * (i + 0.5)) for i in range(6)]
        return tf.add_n([tf.reduce_sum(end * end) for end in ends])

    expected = f(x)
    total, record = run(lib, SwapPlan(unmatched="bootstrap", min_bytes=0), f, x)
    assert total.numpy() == expected.numpy()
    ops = [node.op for node in StepGraph.parse(lib.describe(record["fingerprint"])).nodes.values()]
    assert ops.count("AddN") == 1


UNITS, BATCH, STEPS = 256, 4096, 14


class Ways(keras.layers.Layer):
    """Layers of three depths side by side, whose outputs are added in order of arrival.

    Args:
        order: Of the addends by name, if none may be added before those ahead of it.
    """

    def __init__(self, order: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.order = order
        self.ways = [
            [keras.layers.Dense(UNITS, activation="relu") for _ in range(depth)]
            for depth in (0, 2, 5)
        ]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        ends = []
        for way in self.ways:
            end = x * 1.25
            for layer in way:
                end = layer(end)
            ends.append(end)

        @tf.custom_gradient
        def total(a, b, c):
            made = sum_in_order_of_arrival({"a": a, "b": b, "c": c}, self.order)
            return made, lambda gradient: [gradient] * 3

        return total(*ends)


def test_tensors_of_racing_branches_leave_and_the_order_stays():
    """A training under a plan equals one in which control dependencies set the plan's order.

    Without a plan the order may differ from step to step, also in the profiled ones.
    """

    def build(order: tuple[str, ...] = ()) -> keras.Model:
        inputs = keras.Input((UNITS,), batch_size=BATCH)
        x = Ways(order)(keras.layers.Dense(UNITS)(inputs))
        for _ in range(8):
            x = keras.layers.Dense(UNITS, activation="relu")(x)
        return compiled(keras.Model(inputs, keras.layers.Dense(4)(x)))

    random = np.random.default_rng(0)
    data = random.random((BATCH, UNITS), dtype=np.float32), random.integers(0, 4, BATCH)

    def train(build, *callbacks):
        return trained(build, list(callbacks), data=data, batch_size=BATCH, epochs=STEPS)

    budget = budget_of(train(build), 0.7)
    planner = tfswap.AutoSwap(budget=budget, verbose=0)
    train(build, planner)
    plan = planner.report.plan
    swap = tfswap.AutoSwap(budget=budget, plan=plan, verbose=0)
    swapped = train(build, swap)
    assert max(swapped.peaks) <= budget
    (function,) = swap.report.plan.functions
    assert function == plan.functions[0]
    assert any("ways" in each.tensor for each in function.swaps)
    waits = {tuple(name.rpartition("/")[2] for name in edge) for edge in function.order}
    (order,) = [
        each
        for each in permutations("abc")
        if {(f"add_{a}", f"add_{b}") for a, b in pairwise(each)} <= waits
    ]
    assert swapped.losses == train(lambda: build(order)).losses
