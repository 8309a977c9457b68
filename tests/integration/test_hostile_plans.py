"""Plans from strangers given to real steps: refused, or the same numbers to the last bit."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import tensorflow as tf
from hostile_plans import HostilePlans, good_plan
from test_pass import newest, records

from tfswap.grappler.graph import StepGraph
from tfswap.plan import SwapPlan
from tfswap.slots import slots_to_text
from tfswap.training.plan_session import PlanSession

SLOWEST_STEP_S = 20


class Step:
    """A step of training with all that graphs have: branches, a loop, convolutions, variables."""

    def __init__(self) -> None:
        dice = np.random.default_rng(0)
        self._x = tf.constant(dice.random((2, 16, 16, 4), dtype=np.float32))
        shapes = ((3, 3, 4, 8), (8,), (3, 3, 8, 8), (8, 8), (8,))
        self._begin = [dice.random(shape, dtype=np.float32) / 8 - 0.05 for shape in shapes]
        self.variables = [tf.Variable(value) for value in self._begin]
        self.momenta = [tf.Variable(np.zeros_like(value)) for value in self._begin]
        self.function = tf.function(self._step)

    def _step(self) -> tf.Tensor:
        first, bias, second, square, last = self.variables
        with tf.GradientTape() as tape:
            y = tf.pad(self._x, [[0, 0], [1, 1], [1, 1], [0, 0]])
            y = tf.nn.bias_add(tf.nn.conv2d(y, first, 1, "VALID"), bias)
            y = tf.nn.relu(y)
            kept = y
            y = tf.nn.max_pool2d(tf.nn.conv2d(y, second, 1, "SAME"), 2, 2, "VALID")
            for _ in tf.range(2):
                y = tf.nn.relu(tf.einsum("abcd,de->abce", y, square)) + y
            if tf.reduce_sum(y) > 0.0:
                y = y * 2.0
            else:
                y = y - 1.0
            y = tf.reduce_mean(y, [1, 2]) + tf.reduce_mean(kept, [1, 2])
            loss = tf.reduce_sum(tf.square(tf.reshape(y, [4, 4]))) + tf.reduce_sum(last * y)
        gradients = tape.gradient(loss, self.variables)
        for variable, momentum, gradient in zip(
            self.variables, self.momenta, gradients, strict=True
        ):
            momentum.assign(0.9 * momentum + gradient)
            variable.assign_sub(0.05 * momentum)
        return loss

    def run(self) -> list[bytes]:
        """Two steps from the same beginning, as bits: losses, then all variables."""
        for variable, momentum, value in zip(
            self.variables, self.momenta, self._begin, strict=True
        ):
            variable.assign(value)
            momentum.assign(np.zeros_like(value))
        losses = [self.function().numpy().tobytes() for _ in range(2)]
        return losses + [v.numpy().tobytes() for v in (*self.variables, *self.momenta)]


def run_under(step: Step, text: bytes) -> list[bytes]:
    """Runs it under a plan's text, whatever that is."""
    from tensorflow.python.eager import context

    pushed = PlanSession()
    pushed.push(SwapPlan(unmatched="bootstrap"), describe=True)
    config = tf.compat.v1.ConfigProto.FromString(pushed._pushed.config_proto_serialized)
    config.graph_options.rewrite_options.custom_optimizers[-1].parameter_map["plan"].s = text
    options = context.FunctionCallOptions(config_proto=config)
    pushed.withdraw()
    context.context().function_call_options = options
    try:
        return step.run()
    finally:
        context.context().function_call_options = None


@pytest.fixture(scope="module")
def step() -> Step:
    return Step()


@pytest.fixture(scope="module")
def graph(step: Step) -> tuple[str, StepGraph]:
    """The step's fingerprint and graph."""
    from tfswap.ops import library

    lib = library.load()
    serial = newest(lib)
    run_under(step, json.dumps({**json.loads(SwapPlan().to_json()), "describe": True}).encode())
    name = max(records(lib, serial), key=lambda record: record["nodes"])["fingerprint"]
    return name, StepGraph.parse(lib.describe(name))


def one(lib, step: Step, name: str, plan: str, expected: list[bytes]) -> str:
    """Has a step run under one plan; what came of it."""
    serial = newest(lib)
    begun_s = time.monotonic()
    layouts = ()
    try:
        layouts = SwapPlan.from_json(plan).functions[0].layouts
    except (ValueError, IndexError):
        pass  # the pass sees it all the same
    try:
        if layouts:
            lib.install_layout(0, name, slots_to_text(layouts))
    except ValueError:
        pass  # it is refused
    got = run_under(step, plan.encode())
    assert time.monotonic() - begun_s < SLOWEST_STEP_S, plan
    assert got == expected, plan
    lib.clear_layouts(0)
    found = [record["outcome"] for record in records(lib, serial)]
    return found[-1] if found else "not asked"


def try_plans(lib, step: Step, graph: tuple[str, StepGraph], seed: int, count: int) -> set[str]:
    expected = step.run()
    name, nodes = graph
    plans = HostilePlans(nodes, good_plan(name), seed)
    return {one(lib, step, name, plans.next(), expected) for _ in range(count)}


def test_a_few_hostile_plans_change_no_number(lib, step, graph):
    lib.set_budget(0, 256 << 20)
    assert {"planned", "refused"} <= try_plans(lib, step, graph, seed=1, count=24)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_hostile_plans_change_no_number(lib, step, graph, seed):
    lib.set_budget(0, 256 << 20)
    assert {"planned", "refused"} <= try_plans(lib, step, graph, seed, count=150)
