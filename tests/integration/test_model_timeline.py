"""Compare timelines of models that have never run with those of models that have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import compiled, convolutions

import tfswap
from tfswap.__main__ import main
from tfswap.cost_model.model_source import ModelSource, load_model
from tfswap.cost_model.model_timeline import ModelStep, model_step
from tfswap.cost_model.traced_step import TracedStep, trace_step
from tfswap.machine.presets import OWN_FILE, find_machine
from tfswap.planning import whatif
from tfswap.step.timeline import peak_load

V100 = find_machine("v100")
BATCH = 64


@pytest.fixture(scope="module")
def traced() -> TracedStep:
    return trace_step(ModelSource(compiled(convolutions(filters=32, depth=4))))


def at(traced: TracedStep, batch: int) -> ModelStep:
    assert V100.device is not None
    return model_step(traced, batch, V100.device)


def measured_peak(model: keras.Model, batch: int, size: int) -> int:
    """Return the peak of one unswapped step, less what others hold on the device."""
    random = np.random.default_rng(0)
    x = tf.constant(random.random((batch, size, size, 3), dtype=np.float32))
    y = tf.constant(random.integers(0, 4, batch))
    step = tf.function(model.train_step)
    for _ in range(2):
        step((x, y))
    variables = sum(v.shape.num_elements() * v.dtype.size for v in step_variables(step, (x, y)))
    others = tfswap.memory_stats()["bytes_in_use"] - variables - x.shape.num_elements() * 4
    peaks = []
    for _ in range(3):
        tfswap.reset_memory_stats()
        step((x, y))
        peaks.append(tfswap.memory_stats()["peak_bytes"])
    return min(peaks) - others


def step_variables(step: Any, data: Any) -> Any:
    return step.get_concrete_function(data).variables


def test_planners_accept_the_timeline(traced: TracedStep) -> None:
    step = at(traced, BATCH)
    timeline = step.timeline
    timeline.validate()
    assert len(timeline.op_types) == len(timeline.op_names) > 100
    assert {"Conv2D", "Conv2DBackpropFilter", "Relu"} <= set(timeline.op_types)
    assert step.unswapped_peak_bytes >= peak_load(timeline)
    # The backward pass reads a convolution's output again.
    tensors = {absence.tensor for absence in timeline.absences}
    assert sum("/Relu:0" in tensor for tensor in tensors) == 4
    assert whatif.least_budget_bytes(timeline, V100) < 0.8 * peak_load(timeline)


def test_weights_and_momenta_stay(traced: TracedStep) -> None:
    weights = convolutions(filters=32, depth=4)
    trained = sum(w.shape.num_elements() * 4 for w in weights.trainable_weights)
    every = sum(w.shape.num_elements() * 4 for w in weights.weights)
    resident = at(traced, BATCH).timeline.resident_bytes
    assert every + trained <= resident <= every + trained + 4096


def test_the_predicted_peak_is_that_of_a_real_step() -> None:
    model = compiled(convolutions(filters=32, depth=4))
    predicted = at(trace_step(ModelSource(model)), BATCH).unswapped_peak_bytes
    assert predicted == pytest.approx(measured_peak(model, BATCH, 48), rel=0.1)


def test_activations_grow_with_the_batch(traced: TracedStep) -> None:
    peaks = [at(traced, batch).unswapped_peak_bytes for batch in (16, 32, 64)]
    assert peaks[2] - peaks[1] == pytest.approx(2 * (peaks[1] - peaks[0]), rel=0.02)
    assert at(traced, 64).timeline.step_ns > at(traced, 16).timeline.step_ns


def test_a_faster_machine_is_faster(traced: TracedStep) -> None:
    devices = [find_machine(name).device for name in ("titan-x", "v100", "h100")]
    steps = [model_step(traced, 4096, device).timeline.step_ns for device in devices if device]
    assert steps == sorted(steps, reverse=True) and steps[0] > 2 * steps[2]


def test_nothing_runs_while_a_step_is_predicted(traced: TracedStep) -> None:
    tfswap.reset_memory_stats()
    before = tfswap.memory_stats()["peak_bytes"]
    assert at(traced, 1 << 14).unswapped_peak_bytes > 4 << 30
    assert tfswap.memory_stats()["peak_bytes"] - before < 64 << 20


def test_a_model_that_is_not_compiled_gets_sgd_with_momentum() -> None:
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(4, activation="softmax")(inputs))
    trace_step(ModelSource(model))
    assert model.loss == "sparse_categorical_crossentropy"
    assert model.optimizer.momentum == 0.9


def test_an_unknown_size_is_refused() -> None:
    inputs = keras.Input((None, None, 3))
    features = keras.layers.Conv2D(8, 3)(inputs)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(features))
    with pytest.raises(ValueError, match="only the batch dimension may be None"):
        trace_step(ModelSource(model))


def test_sums_over_axes_of_run_time_have_sizes() -> None:
    """After dropout, TensorFlow finds only at run time which axes a gradient is summed over."""
    inputs = keras.Input((16, 8))
    x = keras.layers.Dense(8)(inputs)
    x += keras.layers.Dropout(0.1)(keras.layers.Dense(8)(x))
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    timeline = at(trace_step(ModelSource(model)), BATCH).timeline
    assert "BroadcastGradientArgs" in timeline.op_types
    assert timeline.buffer_bytes.max() == BATCH * 16 * 8 * 4


def test_a_loop_is_refused() -> None:
    inputs = keras.Input((16, 8))
    model = keras.Model(inputs, keras.layers.LSTM(4)(inputs))
    with pytest.raises(ValueError, match="record a step instead"):
        at(trace_step(ModelSource(model)), 8)


SOURCE = """
import keras
import tensorflow as tf

def small():
    inputs = keras.Input((32, 32, 3))
    x = keras.layers.Conv2D(16, 3, activation="relu")(inputs)
    x = keras.layers.Conv2D(16, 3, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalMaxPooling2D()(x)))

def with_spec():
    return small(), (tf.TensorSpec((None, 32, 32, 3)), tf.TensorSpec((None,), "int64"))

def nothing():
    return None
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("function", ["small", "with_spec"])
def test_models_from_a_file(source: Path, function: str) -> None:
    step = at(trace_step(load_model(f"{source}:{function}")), 256)
    assert step.batch == 256 and step.timeline.absences


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("resnet", "'resnet' is not a model. Allowed: keras.applications.NAME"),
        ("keras.applications.ResNet5", "keras.applications has no 'ResNet5': allowed are"),
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("FILE:large", "has no function 'large'; it has small, with_spec, nothing"),
        ("FILE:nothing", "nothing of FILE returned a NoneType; it must return a Keras model"),
    ],
)
def test_missing_models(source: Path, name: str, problem: str) -> None:
    with pytest.raises(ValueError) as error:
        load_model(name.replace("FILE", str(source)))
    assert problem.replace("FILE", str(source)) in str(error.value)


def test_the_command_reports_on_a_model(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "--model", f"{source}:small", "--machine", "v100", "--batch", "256"]
    arguments += ["--policy", "greedy", "--budget", "95%"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines[1:5]] == [
        "least budget without swapping",
        "least budget with swapping",
        "floor, weights staying",
        "floor, weights streamed",
    ]
    assert lines[5] == "v100 has 16.00 GiB: the step fits without swapping."
    assert lines[6].startswith("Batch 256, predicted without a run")
    assert any(line.endswith("greedy, on v100 x 2") for line in lines)


def test_the_command_finds_the_largest_batches(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], traced: TracedStep
) -> None:
    machines = json.loads(OWN_FILE.read_text())
    small = {**machines["machines"]["v100"], "memory_bytes": 64 << 20}
    own = tmp_path / "own.json"
    own.write_text(json.dumps({**machines, "machines": {"small": small}}))
    arguments = ["simulate", "--model", f"{source}:small", "--machine", "small", "--batch", "512"]
    arguments += ["--machines", str(own), "--policy", "greedy", "--fit-batch", "--json"]
    assert main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    largest = answer["largest_batch"]
    assert 0 < largest["unswapped"] < largest["swapped"]
    assert answer["fits"] is (largest["unswapped"] >= 512)
    traced = trace_step(load_model(f"{source}:small"))
    memory = answer["memory_bytes"]
    assert at(traced, largest["unswapped"]).unswapped_peak_bytes <= memory
    assert at(traced, largest["unswapped"] + 1).unswapped_peak_bytes > memory
