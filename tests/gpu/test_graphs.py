"""The pass on graphs of a GPU: on-demand swaps close no cycle, whatever a plan's order is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from tfswap.hooks.plan_session import PlanSession
from tfswap.ops import library
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.step.graph import StepGraph

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")


def convolutions() -> keras.Model:
    x = inputs = keras.Input((8, 8, 4))
    for _ in range(6):
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))


def residuals() -> keras.Model:
    x = inputs = keras.Input((8, 8, 4))
    for _ in range(3):
        y = layers.Activation("relu")(layers.BatchNormalization()(layers.Conv2D(4, 1)(x)))
        x = layers.Add()([layers.BatchNormalization()(layers.Conv2D(4, 1)(y)), x])
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))


def low_rank() -> keras.Model:
    x = inputs = keras.Input((16,))
    for _ in range(5):
        x = x + layers.Dense(16)(layers.Dense(32, activation="relu")(x))
    model = keras.Model(inputs, layers.Dense(2)(x))
    for layer in model.layers:
        if isinstance(layer, layers.Dense):
            layer.enable_lora(2)
    return model


def step_of(model: keras.Model) -> Callable[[], Any]:
    model.compile(keras.optimizers.Adam(), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    x = tf.ones((4, *model.input_shape[1:]))
    y = tf.zeros((4, 2))

    @tf.function
    def step() -> Any:
        return model.train_step((x, y))

    return step


def record_of(plan: SwapPlan, step: Callable[[], Any]) -> dict[str, Any]:
    """Return the pass's record of the step's graph under a plan."""
    lib = library.load()
    before = max((record["serial"] for record in lib.pass_records()), default=0)
    session = PlanSession()
    session.push(plan, describe=True)
    try:
        step()
    except tf.errors.OpError:
        pass  # the simulated GPU cannot run all ops; the pass has done its work before
    finally:
        session.withdraw()
    records = [record for record in lib.pass_records() if record["serial"] > before]
    return max(records, key=lambda record: int(record["nodes"]))


def any_order(graph: StepGraph, edges: list[tuple[str, str]], dice: random.Random) -> Iterator[str]:
    """Yield the nodes in a random order that agrees with the graph and the edges."""
    before: dict[str, set[str]] = {
        node.name: {name for name, _ in node.inputs} | set(node.controls)
        for node in graph.nodes.values()
    }
    for earlier, later in edges:
        before[later].add(earlier)
    after: dict[str, list[str]] = {name: [] for name in before}
    for name, earlier_nodes in before.items():
        for earlier in earlier_nodes:
            after[earlier].append(name)
    ready = [name for name, waits in before.items() if not waits]
    while ready:
        name = ready.pop(dice.randrange(len(ready)))
        yield name
        for later in after[name]:
            before[later].discard(name)
            if not before[later]:
                ready.append(later)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("make", [convolutions, residuals, low_rank])
def test_on_demand_swaps_agree_with_any_order(make: Callable[[], Any], streams: bool) -> None:
    step = step_of(make())
    on_demand = SwapPlan(unmatched="bootstrap", min_bytes=0, stream_weights=streams)
    record = record_of(on_demand, step)
    assert record["outcome"] == "bootstrapped" and record["swaps"] > 0, record["reason"]
    graph = StepGraph.parse(library.load().describe(record["fingerprint"]))
    edges = [*graph.delays, *graph.keep_ups]  # clones change the chain, so any order is possible
    movable = {node.name for node in graph.nodes.values() if node.orderable}
    dice = random.Random(0)
    for _ in range(5):
        names = [name for name in any_order(graph, edges, dice) if name in movable]
        order = [*edges, *zip(names, names[1:], strict=False)]
        function = FunctionPlan(record["fingerprint"], (), order=tuple(order), reserve=True)
        planned = record_of(
            SwapPlan((function,), min_bytes=0, stream_weights=streams, unmatched="bootstrap"), step
        )
        assert planned["reason"] == "", planned["reason"]
        assert planned["outcome"] != "refused"
