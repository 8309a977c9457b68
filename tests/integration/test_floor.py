"""The floor of a step: recordings and errors name it, and swaps on demand reach it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, compiled, deterministic, emptied_variables, others_bytes, unmovable_bytes

import tfswap
from tfswap.__main__ import main

INPUTS, WIDE, NARROW, PAIRS, BATCH, STEPS = 4096, 2048, 512, 8, 8, 6


@pytest.fixture(scope="module", autouse=True)
def determinism():
    deterministic()
    with emptied_variables():
        yield


def network() -> keras.Model:
    """Return 96 MiB of weights: 32 MiB in the first layer, 4 MiB in each of 16 others."""
    x = inputs = keras.Input((INPUTS,))
    for width in [WIDE, *(NARROW, WIDE) * PAIRS]:
        x = keras.layers.Dense(width, activation="gelu", use_bias=False)(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    return compiled(model, optimizer=keras.optimizers.SGD(0.05))


def equal_layers() -> keras.Model:
    """Return 48 MiB of weights in layers of 4 MiB, and 96 MiB of an optimizer's moments."""
    x = inputs = keras.Input((INPUTS,))
    x = keras.layers.Reshape((4, INPUTS // 4))(x)[:, 0]
    for _ in range(12):
        x = keras.layers.Dense(INPUTS // 4, activation="gelu")(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    return compiled(model, optimizer=keras.optimizers.AdamW(1e-3))


@dataclass
class Trained:
    """A training from the first allocation on.

    Attributes:
        loss: After the last step.
        peak_bytes: The device's peak, without what was in use before.
    """

    loss: float
    peak_bytes: int


def others(options: dict) -> int:
    """Return what stays on the device beside a training with these options."""
    return unmovable_bytes() if options.get("stream_weights", True) else others_bytes()


def train(budget_bytes: int, build=network, **options) -> Trained:
    """Build and train a network within so much more than what stays on the device."""
    random = np.random.default_rng(3)
    x = random.random((STEPS * BATCH, INPUTS), dtype=np.float32)
    y = random.integers(0, 4, len(x))
    beside = others(options)
    with tfswap.options.set(budget=beside + budget_bytes, verbose=0, **options):
        tfswap.reset_memory_stats()
        keras.utils.set_random_seed(7)
        fitted = build().fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        peak_bytes = tfswap.memory_stats()["peak_bytes"]
    return Trained(fitted.history["loss"][-1], peak_bytes - beside)


@dataclass
class Known:
    """What `tfswap simulate` prints about a training with room.

    Attributes:
        loss: Of the training.
        floors: By mode, the parts of the floor, without what other tests have on the device.
    """

    loss: float
    floors: dict[str, dict]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    path = tmp_path_factory.mktemp("floor") / "step.profile"
    beside = others_bytes()
    budget = beside - unmovable_bytes() + 120 * MIB
    loss = train(budget, stream_weights=True, save_profile=path).loss
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("builtins.print", lambda text: printed.append(text))
        assert main(["simulate", str(path), "--budget", "120MiB", "--json"]) == 0
    floors = json.loads(printed[0])["least_budgets"]["floor"]
    for floor in floors.values():
        floor["bytes"] -= beside
    return Known(loss, floors)


def test_simulate_names_the_op_that_needs_most(known):
    staying, streamed = known.floors["staying"], known.floors["streamed"]
    assert streamed["op_type"] == "AssignSubVariableOp"
    assert streamed["weight_bytes"] == streamed["input_bytes"] == 32 * MIB
    assert streamed["output_bytes"] == streamed["temporary_bytes"] == 0
    assert 64 * MIB < streamed["bytes"] < 66 * MIB
    # All weights, and the first layer's gradient.
    assert 128 * MIB <= staying["bytes"] < 134 * MIB


def test_a_training_in_little_more_than_the_floor(known):
    """Swaps on demand reach it in the first step, where one op needs most by far."""
    budget = int(1.02 * known.floors["streamed"]["bytes"])
    found = train(budget)
    assert found.loss == known.loss
    assert found.peak_bytes <= budget < 96 * MIB


def test_a_full_training_in_little_more_than_its_largest_op_needs():
    """Gradients leave, and are used before the next ones are made: an update needs 13.6 MiB."""
    budget = 15 * MIB
    found = train(budget, equal_layers)
    assert found.loss == train(400 * MIB, equal_layers).loss
    assert found.peak_bytes <= budget


@pytest.fixture(scope="module")
def wide_outputs(tmp_path_factory):
    """Return a training of ten layers of 1 MiB each, whose outputs are 8 MiB."""
    x = np.random.default_rng(3).random((2 * 4096, 512), dtype=np.float32)
    plan = tmp_path_factory.mktemp("wide") / "plan"

    def train_within(budget: int) -> tuple[list[float], Path]:
        """Return the losses within so much more than what stays, and the file of the plan."""
        plan.unlink(missing_ok=True)
        with emptied_variables():
            keras.utils.set_random_seed(7)
            layers = [keras.layers.Dense(512, activation="gelu") for _ in range(10)]
            model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(4)])
            compiled(model, optimizer=keras.optimizers.SGD(0.05))
            swap = tfswap.AutoSwap(budget=unmovable_bytes() + budget, save_plan=plan, verbose=0)
            y = np.arange(len(x)) % 4
            losses = model.fit(
                x, y, batch_size=4096, epochs=6, shuffle=False, verbose=0, callbacks=[swap]
            ).history["loss"]
        return losses, plan

    return train_within


def weights_leave(plan: Path) -> bool:
    return json.loads(plan.read_text()).get("stream_weights", False)


def test_small_weights_leave_where_outputs_need_the_room(wide_outputs):
    expected, plan = wide_outputs(80 * MIB)
    assert not weights_leave(plan)
    losses, plan = wide_outputs(56 * MIB)
    assert weights_leave(plan)
    assert losses == expected


def test_outputs_leave_for_as_long_as_no_op_needs_them(wide_outputs):
    """An op reads two of 8 MiB while the next batch of 8 MiB is there."""
    losses, _ = wide_outputs(29 * MIB)
    assert losses == wide_outputs(80 * MIB)[0]


@pytest.mark.parametrize("mode", ["streamed", "staying"])
def test_the_error_below_the_floor_names_it(known, mode):
    floor = known.floors[mode]
    budget = int(0.9 * floor["bytes"])
    beside = others({"stream_weights": mode == "streamed"})
    with pytest.raises(tf.errors.ResourceExhaustedError) as failure:
        train(budget, stream_weights=mode == "streamed")
    said = str(failure.value)
    assert "tfswap: the memory budget of" in said
    named = re.search(
        r"\n  - At least (.*) MiB, the floor of the whole step: below it no swaps help\. "
        r"There, op '(.*)' \((.*)\) needs (.*) cannot leave meanwhile\.",
        said,
    )
    assert named is not None
    # Without a recording: what runs beside the step, such as the next batch, is not known.
    assert float(named[1]) * MIB == pytest.approx(floor["bytes"] + beside, rel=0.03)
    if mode == "streamed":
        assert (
            floor["op"].split("/")[-1] == named[2].split("/")[-1] and floor["op_type"] == named[3]
        )
        assert named[4].startswith("32 MiB of weights, 32 MiB of inputs; ")
    advised = "\n  - Without stream_weights=False, weights and optimizer state may leave, too"
    assert (advised in said) == (mode == "staying")
    assert tfswap.memory_stats()["budget_bytes"] is None


def test_the_error_of_a_function_names_the_floor():
    weights = [tf.Variable(tf.ones([1024, 1024])) for _ in range(4)]

    @tfswap.swap(
        budget=tfswap.memory_stats()["bytes_in_use"] - 10 * MIB, stream_weights=True, verbose=0
    )
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.relu(y @ weight)
            loss = tf.reduce_sum(y**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-9 * gradient)
        return loss

    with pytest.raises(tf.errors.ResourceExhaustedError, match="the floor of the whole step"):
        step(tf.ones([8, 1024]))
    said = step.report["out_of_memory"]
    assert re.search(r"\(AssignSubVariableOp\) needs 4 MiB of weights, 4 MiB of inputs; ", said)
    step.release()


def test_a_floor_that_cannot_be_found_hides_no_error():
    weight, x = tf.Variable(tf.ones([1024, 1024])), tf.ones([4096, 1024])

    @tfswap.swap(budget=tfswap.memory_stats()["bytes_in_use"] + 8 * MIB, verbose=0)
    @tf.function
    def step(x):
        return tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0) @ weight)  # of unknown size

    with pytest.raises(tf.errors.ResourceExhaustedError, match="tfswap: the memory budget of"):
        step(x)
    assert "the floor of the whole step" not in step.report["out_of_memory"]
    step.release()
