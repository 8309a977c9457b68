"""Lossy far memory: which tensors may use it, which never do, and a falling rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, Losses, budget_of, compiled, deterministic, images, trained
from planned_functions import newest, plan_of, run

import tfswap
from tests.copy_ops import copy_from_host, copy_to_host
from tfswap.devices import managed_devices
from tfswap.machine import codecs
from tfswap.machine.far_tier import CodecSpeed, CodecTime
from tfswap.plan.measured_plan import MeasuredPlan
from tfswap.plan.schema import Return, SwapPlan, TensorSwap
from tfswap.step.graph import StepGraph

if not codecs.usable_lossy_codecs("auto"):
    pytest.skip("no lossy codec can be used here", allow_module_level=True)

LOSSY = codecs.usable_lossy_codecs("auto")[0]
SIZE = 256


@pytest.fixture(autouse=True)
def lossy_rate_is_reset(lib) -> Iterator[None]:
    if codecs.find_blosc():
        lib.load_blosc(str(codecs.find_blosc()))
    yield
    lib.set_lossy_rate(None)


# The op.


def trip(x: tf.Tensor, codec: str = LOSSY, rate_percent: int = 50) -> tf.Tensor:
    @tf.function
    def there_and_back(x):
        handle = copy_to_host(tf.identity(x), codec=codec, rate_percent=rate_percent)
        with tf.control_dependencies([handle]):
            return copy_from_host(tf.identity(handle), x.dtype)

    return there_and_back(x)


def kept_part() -> float:
    stats = tfswap.memory_stats()
    part = stats["far_compressed_kept_bytes_out"] / max(stats["far_compressed_bytes_out"], 1)
    tfswap.reset_memory_stats()
    return part


def test_without_a_lossy_rate_every_bit_is_restored(megabytes):
    x = megabytes(2)
    assert np.array_equal(trip(x), x)
    stats = tfswap.memory_stats()
    assert (stats["far_compressed_bytes_out"], stats["far_host_bytes_out"]) == (0, 2 * MIB)


def test_the_smaller_of_two_lossy_rates_is_used(megabytes, lib):
    x = megabytes(2)
    errors = []
    for leave, wish in ((100, 50), (25, 50), (50, 25), (75, 100)):
        lib.set_lossy_rate(leave)
        tfswap.reset_memory_stats()
        back = trip(x, rate_percent=wish)
        assert kept_part() == pytest.approx(min(leave, wish) / 100, rel=0.1)
        errors.append(np.linalg.norm(back - x) / np.linalg.norm(x))
        (loss,) = lib.losses()
        assert loss.relative_error == pytest.approx(errors[-1], rel=0.5)
        assert 0 < loss.largest_error <= np.abs(back - x).max() * (1 + 1e-6)
    assert errors[3] < errors[0] < errors[1] < 0.2
    assert errors[1] == pytest.approx(errors[2])
    lib.set_lossy_rate(50)
    assert lib.losses() == []


@pytest.mark.parametrize("dtype", [tf.int32, tf.float64, tf.float16, tf.bool])
def test_the_op_refuses_other_types_than_float32(lib, dtype):
    lib.set_lossy_rate(50)
    x = tf.cast(tf.random.uniform([1 << 18]) < 0.5, dtype)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        trip(x)
    assert f"codec '{LOSSY}' is lossy and supports float32 only" in str(error.value)
    assert np.array_equal(trip(x, codec="zvc"), x)


def test_lossy_data_are_verified(megabytes, lib):
    lib.set_lossy_rate(50)
    lib.set_verify(0, True)
    trip(megabytes(2))
    lib.set_faults("bit-flip bit=4000000")  # in the data, not the header
    with pytest.raises(tf.errors.OpError, match="came back from far memory changed"):
        trip(megabytes(2))


# The pass.


def step_of_a_model():
    """Build a training step by hand; no optimizer renames its ops."""
    weights = tf.Variable(tf.random.normal([SIZE, SIZE]) / 16, name="weights")
    slot = tf.Variable(tf.zeros([SIZE, SIZE]), name="slot")
    state = tf.Variable(tf.zeros([SIZE, SIZE]), name="state")

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            inputs = tf.sin(x, name="inputs")
            label = tf.sin(y, name="label")
            kernel = tf.sin(weights, name="kernel")
            with tf.name_scope("layer"):
                hidden = tf.matmul(inputs, kernel, name="hidden")
                act = tf.tanh(hidden, name="act")
                skip = tf.sigmoid(act, name="skip")
                mask = tf.cast(act > 0, tf.float32, name="mask")
                noise = tf.cos(tf.random.stateless_uniform(tf.shape(act), [1, 2]), name="noise")
                integer = tf.cast(act * 9, tf.int32, name="integer")
                last = tf.matmul(act * mask * noise, kernel, name="last")
                out = tf.tanh(last + skip + tf.cast(integer, tf.float32), name="out")
            state.assign(tf.cos(hidden, name="kept"))
            with tf.name_scope("loss"):
                loss = tf.reduce_mean(tf.square(out - label))
        (gradient,) = tape.gradient(loss, [weights])
        moment = tf.add(tf.sin(slot, name="old_slot"), gradient, name="moment")
        slot.assign(moment)
        weights.assign_sub(0.01 * moment)
        return loss

    return step


def arguments() -> tuple[tf.Tensor, tf.Tensor]:
    rng = np.random.default_rng(0)
    x, y = (rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(2))
    return tf.constant(x), tf.constant(y)


def described(lib, step, arguments) -> tuple[str, StepGraph]:
    _, record = run(lib, SwapPlan(), step, *arguments)
    return record["fingerprint"], StepGraph.parse(lib.describe(record["fingerprint"]))


def test_activations_depend_on_the_batch_and_variables_and_precede_gradients(lib):
    _, graph = described(lib, step_of_a_model(), arguments())
    found = {name for name, node in graph.nodes.items() if any(node.activations)}
    assert {"layer/hidden", "layer/act", "layer/skip", "layer/out"} <= found
    never = {"inputs", "label", "kernel", "old_slot", "moment", "kept"}
    never |= {f"layer/{name}" for name in ("mask", "noise", "integer")}
    assert never <= set(graph.nodes)
    assert not found & never
    backward = {name for name, node in graph.nodes.items() if node.backward}
    # Both parts share constants.
    assert {name for name in graph.nodes if name.startswith("gradient_tape/layer")} <= backward
    assert "moment" in backward and not found & backward
    assert not any(any(graph.nodes[name].activations) for name in graph.nodes if "Read" in name)


def test_without_a_gradient_there_are_no_activations(lib):
    weights = tf.Variable(tf.ones([SIZE, SIZE]))

    @tf.function
    def forward(x, y):
        return tf.reduce_sum(tf.sin(tf.matmul(tf.tanh(tf.matmul(x, weights)), y)))

    _, graph = described(lib, forward, arguments())
    assert not any(any(node.activations) for node in graph.nodes.values())


def lossy_swap(graph: StepGraph, name: str, readers: tuple[str, ...] | None = None) -> TensorSwap:
    if readers is None:
        readers = tuple(graph.readers_through_aliases(name, 0))
    back = (Return("", readers),)
    return TensorSwap(f"{name}:0", 0, (), back, tier="compressed", codec=LOSSY, rate_percent=50)


def test_a_hostile_plan_is_refused_by_the_pass(lib):
    lib.set_lossy_rate(50)
    step = step_of_a_model()
    fingerprint, graph = described(lib, step, arguments())
    backward = next(name for name, node in graph.nodes.items() if node.backward and node.producer)
    assert graph.nodes["kernel"].producer and graph.nodes["moment"].producer
    for name in ("kernel", "label", "inputs", "old_slot", "moment", "kept", backward, "layer/mask"):
        hostile = plan_of(fingerprint, lossy_swap(graph, name))
        _, record = run(lib, hostile, step, *arguments())
        assert record["outcome"] == "refused", name
        assert f"'{name}:0' is not a float32 activation of the forward part" in record["reason"]
    _, record = run(lib, plan_of(fingerprint, lossy_swap(graph, "layer/act")), step, *arguments())
    assert record["outcome"] == "refused"
    assert "of the forward part would read 'layer/act:0'" in record["reason"]
    assert tfswap.memory_stats()["far_compressed_bytes_out"] == 0
    readers = tuple(
        name for name in graph.readers_through_aliases("layer/out", 0) if graph.nodes[name].backward
    )
    allowed = plan_of(fingerprint, lossy_swap(graph, "layer/out", readers))
    _, record = run(lib, allowed, step, *arguments())
    assert record["outcome"] == "planned", record
    assert kept_part() == pytest.approx(0.5, rel=0.1)


# Trainings.


def dense(depth: int = 6) -> keras.Model:
    """Build a chain of convolutions whose activations have no zeros: 2 MiB each at batch 32."""
    x = inputs = keras.Input((32, 32, 3))
    for _ in range(depth):
        x = keras.layers.Conv2D(16, 1, activation="leaky_relu")(x)
        x = keras.layers.BatchNormalization()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(4)(x))


EPOCHS = 3
LINK = "0.3GB/s"


def fit(callbacks: list[keras.callbacks.Callback], epochs: int = EPOCHS, **options) -> Losses:
    return trained(
        lambda: compiled(dense()), callbacks, data=images(256, 32), epochs=epochs, **options
    )


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    return fit([])


def codecs_that_take(monkeypatch, byte_ns: float) -> None:
    """Return the codecs for planners, with the given speeds."""
    time = CodecTime(0, byte_ns, byte_ns)

    def codec_speeds(names):
        return tuple(CodecSpeed(name, 1, time, time) for name in names)

    monkeypatch.setattr(managed_devices, "codec_speeds", codec_speeds)


@pytest.fixture
def fast_codecs(monkeypatch):
    """Make codecs fast enough to pay over the emulated link on any machine."""
    codecs_that_take(monkeypatch, 0.3)
    # They are slower than that in truth: a plan that relies on them may lose.
    monkeypatch.setattr(MeasuredPlan, "is_slower_than", lambda attempt, seconds: False)


class Rates(keras.callbacks.Callback):
    """Record the rate that is reported in each epoch's last step."""

    def __init__(self, swap: tfswap.AutoSwap) -> None:
        super().__init__()
        self._swap = swap
        self.rates: list[int | None] = []

    def on_epoch_end(self, epoch, logs=None):
        use = self._swap.report.lossy
        self.rates.append(None if use is None else use.rate)


@pytest.mark.parametrize("first_epoch", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_a_lossy_training(unswapped, fast_codecs, first_epoch, tmp_path):
    plan = tmp_path / "plan.json"
    budget = budget_of(unswapped, 0.6)
    options = {"budget": budget, "policy": "greedy", "link_bandwidth": LINK, "verbose": 0}
    swap = tfswap.AutoSwap(lossy=True, save_plan=plan, **options)
    rates = Rates(swap)
    losses = fit([swap, rates], first_epoch + EPOCHS, initial_epoch=first_epoch)

    # Exact until there is a plan, and close afterwards.
    exact = np.array(unswapped.losses)
    assert losses.losses[:4] == unswapped.losses[:4]
    assert losses.losses != unswapped.losses
    assert np.abs(np.array(losses.losses) - exact).max() < 0.1 * exact.max()
    assert max(losses.peaks) <= budget

    use = swap.report.lossy
    assert use is not None and use.tensors > 0
    assert 1 <= use.bottom < use.top < 100
    assert rates.rates[0] == use.top > rates.rates[1] > rates.rates[2] >= use.bottom
    assert use.rate == rates.rates[-1]
    assert 0 < use.mean_relative_error <= use.worst_relative_error < 0.5
    assert all(0 < loss.largest_error < np.inf for loss in use.losses)
    (line,) = [note for note in swap.report.notes if "tfswap: lossy" in note]
    assert f"keep {use.top}% of their bits" in line
    assert "losses differ from exact training" in line
    compressed = {tier.name: tier for tier in swap.report.tiers}["compressed"]
    assert 0 < compressed.kept_bytes_out < compressed.bytes_out

    # The lossy rate ends with the training, and a saved plan sets none.
    with pytest.raises(ValueError, match="pass lossy=True if that is wanted"):
        fit([tfswap.AutoSwap(plan=plan, **options)])
    assert tfswap.memory_stats()["budget_bytes"] is None
    if first_epoch:
        return
    given = tfswap.AutoSwap(plan=plan, lossy=True, **options)
    fit([given], 1)
    assert given.report.lossy is not None
    rate_percent = max(
        swap.rate_percent for swap in given.options.plan.functions[-1].swaps if swap.codec
    )
    assert given.report.lossy.rate == given.report.lossy.bottom == rate_percent


def test_without_lossy_no_bit_differs(lib, unswapped, fast_codecs):
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), link_bandwidth=LINK, verbose=0)
    losses = fit([swap], 2).losses
    assert losses == unswapped.losses[: len(losses)]
    assert swap.report.outcome == "swapped" and swap.report.lossy is None

    # With a lossy rate, a plan that applies it to a gradient of the same graph does nothing.
    function = max(swap.report.plan.functions, key=lambda each: len(each.swaps))
    graph = StepGraph.parse(lib.describe(function.fingerprint))
    victim = next(name for name, node in graph.nodes.items() if node.backward and node.producer)
    hostile = dataclasses.replace(function, swaps=(lossy_swap(graph, victim),), layouts=())
    before = newest(lib)
    with pytest.warns(UserWarning, match="not applied to a graph: .*is not a float32 activ"):
        losses = fit(
            [tfswap.AutoSwap(plan=SwapPlan((hostile,)), lossy=True, verbose=0, codec=LOSSY)], 1
        )
    assert losses.losses == unswapped.losses[: len(losses.losses)]
    assert any(r["outcome"] == "refused" for r in lib.pass_records() if r["serial"] > before)


@pytest.mark.slow
def test_without_a_gain_the_report_says_so(unswapped, monkeypatch):
    codecs_that_take(monkeypatch, 100)
    swap = tfswap.AutoSwap(budget=budget_of(unswapped, 0.6), lossy=True, verbose=0)
    assert fit([swap]).losses == unswapped.losses
    assert any("nothing is kept lossily so far: " in note for note in swap.report.notes)
