"""Run real steps under untrusted plans: each is refused, or leaves every bit of the results."""

from __future__ import annotations

import dataclasses
import json
import time
import warnings

import inputs
import models
import numpy as np
import pytest
import tensorflow as tf
from hostile_plans import HostilePlans, good_plan
from planned_functions import newest, records

import tfswap
from tfswap.hooks.plan_session import PlanSession
from tfswap.ops import library
from tfswap.plan.schema import FunctionPlan, SwapPlan, TensorSwap
from tfswap.plan.slots import slots_to_text
from tfswap.step.graph import StepGraph

SLOWEST_STEP_S = 20


class Step:
    """A training step with all that graphs can contain: branches, a loop, variables and so on."""

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
        """Run two steps from the same state; return losses, then all variables, as bytes."""
        for variable, momentum, value in zip(
            self.variables, self.momenta, self._begin, strict=True
        ):
            variable.assign(value)
            momentum.assign(np.zeros_like(value))
        losses = [self.function().numpy().tobytes() for _ in range(2)]
        return losses + [v.numpy().tobytes() for v in (*self.variables, *self.momenta)]


def run_under(step: Step, text: bytes) -> list[bytes]:
    """Run the step under a plan's text, valid or not."""
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
    """Return the step's fingerprint and graph."""
    lib = library.load()
    serial = newest(lib)
    run_under(step, json.dumps({**json.loads(SwapPlan().to_json()), "describe": True}).encode())
    name = max(records(lib, serial), key=lambda record: record["nodes"])["fingerprint"]
    return name, StepGraph.parse(lib.describe(name))


def one(lib, step: Step, name: str, plan: str, expected: list[bytes]) -> str:
    """Run the step under one plan; return the pass's outcome."""
    serial = newest(lib)
    begun_s = time.monotonic()
    layouts = ()
    try:
        layouts = SwapPlan.from_json(plan).functions[0].layouts
    except (ValueError, IndexError):
        pass  # the pass reads the plan anyway
    try:
        if layouts:
            lib.install_layout(0, name, slots_to_text(layouts))
    except ValueError:
        pass  # a refused layout
    got = run_under(step, plan.encode())
    lib.clear_layouts(0)
    assert time.monotonic() - begun_s < SLOWEST_STEP_S, plan
    if is_in_sections(plan):
        assert close(got, expected), plan  # sums over the batch are rounded differently then
    else:
        assert got == expected, plan
    found = [record["outcome"] for record in records(lib, serial)]
    return found[-1] if found else "not asked"


def is_in_sections(plan: str) -> bool:
    data = json.loads(plan)
    return isinstance(data, dict) and data.get("sections", 1) != 1


def close(some: list[bytes], others: list[bytes]) -> bool:
    return all(
        np.allclose(np.frombuffer(a, np.float32), np.frombuffer(b, np.float32), rtol=1e-3)
        for a, b in zip(some, others, strict=True)
    )


def try_plans(lib, step: Step, graph: tuple[str, StepGraph], seed: int, count: int) -> set[str]:
    expected = step.run()
    name, nodes = graph
    plans = HostilePlans(nodes, good_plan(name), seed)
    return {one(lib, step, name, plans.next(), expected) for _ in range(count)}


def test_a_few_hostile_plans_change_no_number(lib, step, graph):
    lib.set_budget(0, 256 << 20)
    assert "refused" in try_plans(lib, step, graph, seed=1, count=24)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_hostile_plans_change_no_number(lib, step, graph, seed):
    lib.set_budget(0, 256 << 20)
    assert {"planned", "refused"} <= try_plans(lib, step, graph, seed, count=150)


@pytest.mark.parametrize("op", ["Enter", "NextIteration"])
def test_no_op_waits_for_what_runs_in_another_iteration(lib, step, graph, op):
    expected = step.run()
    name, of = graph
    begin = next(each for each in of.nodes if of.nodes[each].op == op)
    edges = [(begin, each) for each in of.nodes if "while/" in each and each != begin]
    for edge in edges[:: len(edges) // 8]:
        plan = SwapPlan((FunctionPlan(name, order=(edge,)),), unmatched="bootstrap")
        assert one(lib, step, name, plan.to_json(), expected) == "refused"


@pytest.mark.parametrize("path", inputs.corpus("pass"), ids=lambda path: path.name)
def test_the_pass_takes_or_refuses_the_corpus(lib, step, graph, path):
    """Run what fuzzing in C++ found: `fuzz_plans` has its own graph."""
    expected = step.run()
    text = path.read_text(errors="surrogateescape")
    if text.startswith("layout"):
        try:
            lib.install_layout(0, graph[0], text.removeprefix("layout"))
        except ValueError as error:
            assert "layout" in str(error)
        text = json.dumps({"version": 1, "functions": []})
    text = text.replace("0123456789abcdef", graph[0])
    assert run_under(step, text.encode(errors="surrogateescape")) == expected
    lib.clear_layouts(0)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"version": 2}, "the plan has version 2, this tfswap reads version 1"),
        ({"version": 1.5}, "'version' is 1.5; it must be an integer"),
        ({"sections": 0}, "'sections' is 0; it must be an integer from 1 to 4096"),
        ({"sections": 1e300}, "'sections' is 1e+300"),
        ({"min_bytes": -1}, "'min_bytes' is -1"),
        ({"functions": 5}, "'functions' is or holds a number, not a list"),
        ({"functions": [[]]}, "'functions' is or holds a list, not an object"),
        ({"functions": [{"swaps": [{"gates": [1]}]}]}, "holds a number, not a string"),
        ({"functions": [{"swaps": [{"tier": "tape"}]}]}, "there is no tier 'tape'"),
        ({"functions": [{"swaps": [{"codec": "zip"}]}]}, "there is no codec 'zip'"),
        ({"functions": [{"swaps": [{"threads": 2000}]}]}, "'threads' is 2000"),
        ({"functions": [{"swaps": [{"rate_percent": 0}]}]}, "'rate_percent' is 0"),
        ({"functions": [{"order": [["a"]]}]}, "'order' holds a list that is not a pair"),
        ({"policy": "[" * 3_000_000}, "has more than 2097152"),
    ],
)
def test_the_pass_reports_errors_in_a_plan(lib, step, plan, reason):
    serial = newest(lib)
    run_under(step, json.dumps({"version": 1, "functions": [], **plan}).encode())
    found = records(lib, serial)
    assert found and all(record["outcome"] == "refused" for record in found)
    assert all(reason in record["reason"] for record in found), found[0]["reason"]


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"", b"{"])
def test_the_pass_refuses_invalid_json(lib, step, text):
    serial = newest(lib)
    run_under(step, text)
    assert all("not the JSON" in record["reason"] for record in records(lib, serial))


def of_graph(graph: StepGraph, op: str) -> str:
    """Return the first node of a kind."""
    return next(node.name for node in graph.nodes.values() if node.op == op)


FUSED = "Conv2DBackpropFilter"


@pytest.mark.parametrize("tensor", ["^{}", "{}:4294967295", "{}:4294967294", "{}:2147483647"])
def test_unknown_outputs_are_refused(lib, step, graph, tensor):
    """Include numbers behind the colon that overflow to a negative value."""
    name, nodes = graph
    node = of_graph(nodes, "MaxPool")
    plan = SwapPlan((FunctionPlan(name, (TensorSwap(tensor.format(node), 1, (), ()),)),))
    serial = newest(lib)
    run_under(step, plan.to_json().encode())
    (record,) = records(lib, serial)
    assert record["outcome"] == "refused" and "is not an output of plain bytes" in record["reason"]


@pytest.mark.parametrize("op", ["_Arg", "Const", "BiasAddGrad", "Pad", FUSED])
def test_ops_that_would_round_differently_are_not_delayed(lib, step, graph, op):
    """The weights' gradient is such an op where oneDNN computes the bias's gradient with it."""
    name, nodes = graph
    late = next(n for n in nodes.twins if nodes.nodes[n].op == op) if op == FUSED else None
    order = ((of_graph(nodes, "ReadVariableOp"), late or of_graph(nodes, op)),)
    serial = newest(lib)
    run_under(step, SwapPlan((FunctionPlan(name, order=order),)).to_json().encode())
    (record,) = records(lib, serial)
    assert record["outcome"] == "refused" and "must not wait" in record["reason"]


def test_a_plan_of_a_million_edges_takes_seconds(lib, step, graph):
    name, nodes = graph
    reads = [node.name for node in nodes.nodes.values() if node.op == "ReadVariableOp"]
    late = of_graph(nodes, "MaxPoolGrad")
    order = tuple((reads[i % len(reads)], late) for i in range(300_000))
    text = SwapPlan((FunctionPlan(name, order=order),)).to_json().encode()
    begun_s = time.process_time()
    expected = step.run()
    assert run_under(step, text) == expected
    assert time.process_time() - begun_s < SLOWEST_STEP_S


def test_a_layout_that_would_fill_memory_is_refused(lib):
    text = "\n".join(f"op{i}\t0\t4095\t0\t4096" for i in range(5000))
    with pytest.raises(ValueError, match="is one too many: its ops would have"):
        lib.install_layout(0, "0" * 16, text)


# Trainings.


@pytest.fixture(scope="module")
def training():
    """Return losses of an unswapped training, its budget, a plan of it, and the plan's graph."""
    data = models.images(96)
    fit = {"data": data, "epochs": 4}
    unswapped = models.trained(build, **fit)
    budget_bytes = models.budget_of(unswapped, 0.75)
    swap = tfswap.AutoSwap(budget=budget_bytes, verbose=0)
    planned = models.trained(build, [swap], **fit)
    assert planned.losses == unswapped.losses
    assert swap.report.outcome == "swapped", swap.report
    function = swap.report.plan.functions[-1]
    plan = dataclasses.replace(swap.report.plan, functions=(function,))
    graph = StepGraph.parse(library.load().describe(function.fingerprint))
    return unswapped.losses, budget_bytes, plan, graph, fit


def build():
    return models.compiled(models.convolutions(depth=6))


def train_under(training, text: str) -> str:
    """Train under a plan, which is refused or gives the same losses; return which."""
    losses, budget_bytes, _, _, fit = training
    try:
        plan = SwapPlan.from_json(text)
    except ValueError:
        return "refused"
    if plan.sections != 1:
        return "in sections"  # sums over the batch are rounded differently then
    swap = tfswap.AutoSwap(budget=budget_bytes, plan=plan, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = models.trained(build, [swap], **fit)
        except ValueError as error:
            assert "lossy" in str(error), text
            return "refused"
    assert found.losses == losses, text
    assert max(found.peaks) <= budget_bytes
    return swap.report.outcome


def try_trainings(training, seed: int, count: int) -> None:
    _, _, plan, graph, _ = training
    plans = HostilePlans(graph, plan, seed)
    outcomes = [train_under(training, plans.next()) for _ in range(count)]
    assert len(outcomes) == count


def test_a_training_keeps_its_budget_under_an_unreadable_plan(training, monkeypatch):
    losses, budget_bytes, plan, _, fit = training
    monkeypatch.setattr(SwapPlan, "to_data", lambda plan: {"version": 99})
    swap = tfswap.AutoSwap(budget=budget_bytes, plan=plan, verbose=0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = models.trained(build, [swap], **fit)
    (said,) = {str(each.message) for each in warned if "tfswap" in str(each.message)}
    assert "not applied to a graph: the plan has version 99" in said
    assert found.losses == losses
    assert max(found.peaks) <= budget_bytes


def test_a_training_runs_under_a_hostile_plan(training):
    try_trainings(training, seed=1, count=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_trainings_run_under_hostile_plans(training, seed):
    try_trainings(training, seed, count=12)
