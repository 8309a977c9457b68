"""Kinds of large weights: quantized, in bfloat16, from shards of a checkpoint, tied, replicated."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from models import MIB, compiled, deterministic, unmovable_bytes

import tfswap
from tests.python_path import python_path

_HERE = Path(__file__).resolve().parent

WIDTH = 512  # 1 MiB for a layer's kernel in float32
EXAMPLES, BATCH = 8, 2


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


@contextlib.contextmanager
def within(mib: float, **options: Any) -> Iterator[None]:
    """Give models that many MiB, and check that values left, and that the budget was kept."""
    budget = unmovable_bytes() + int(mib * MIB)
    with tfswap.options.set(budget=budget, verbose=0, **options):
        tfswap.reset_memory_stats()
        yield
        stats = tfswap.memory_stats()
    assert stats["peak_bytes"] <= budget == stats["budget_bytes"]
    assert stats["bytes_in"] > 0
    assert tfswap.memory_stats()["budget_bytes"] is None


def stack(layers: int, dtype: str = "float32") -> keras.Model:
    """Build layers of 512 units."""
    keras.utils.set_random_seed(7)
    x = inputs = keras.Input((WIDTH,), dtype="float32")
    for _ in range(layers):
        x = keras.layers.Dense(WIDTH, activation="gelu", use_bias=False, dtype=dtype)(x)
    return keras.Model(inputs, keras.layers.Dense(4, dtype=dtype)(x))


def with_lora(model: keras.Model) -> keras.Model:
    """Freeze all kernels but the last one, and add trainable factors of rank 4 to each."""
    for layer in model.layers[1:-1]:
        layer.enable_lora(4)
    return compiled(model)


def examples() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return random.random((EXAMPLES, WIDTH), dtype=np.float32), random.integers(0, 4, EXAMPLES)


def fitted(model: keras.Model, epochs: int = 3) -> list[float]:
    x, y = examples()
    fit = model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    losses: list[float] = fit.history["loss"]
    return losses


def predicted(model: keras.Model) -> np.ndarray:
    predictions: np.ndarray = model.predict(examples()[0], batch_size=BATCH, verbose=0)
    return predictions


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def quantized(mode: str, path: Path) -> list[Any]:
    """Return predictions of a quantized model, losses with LoRA, and what was saved of it."""
    model = stack(10)
    model.quantize(mode)
    found = [predicted(model), fitted(with_lora(model))]
    model.save(path)
    del model
    loaded = keras.models.load_model(path)
    return [*found, predicted(loaded), *loaded.get_weights()]


@pytest.mark.parametrize(("mode", "mib"), [("int8", 4), ("int4", 5.5)])
def test_a_quantized_model(mode, mib, tmp_path):
    """The step makes a float32 kernel of each quantized one, and int4 ones of three parts."""
    expected = quantized(mode, tmp_path / "expected.keras")
    with within(mib):  # of 10 MiB before they are quantized
        found = quantized(mode, tmp_path / "found.keras")
    assert_same(found, expected)


def test_a_quantized_model_whose_first_step_fits():
    """It does by the order of its reads, which later steps keep."""

    def losses() -> list[float]:
        model = stack(12)
        model.quantize("int8")
        return fitted(with_lora(model), epochs=2)

    expected = losses()
    with within(6):
        assert losses() == expected


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_lora_on_a_model_in_bfloat16(dtype):
    def results() -> list[Any]:
        model = with_lora(stack(16, dtype))
        return [fitted(model), predicted(model).astype(np.float32)]

    expected = results()
    with within(4):  # of 16 MiB, or 8 in bfloat16
        assert_same(results(), expected)


def test_a_checkpoint_in_shards(tmp_path):
    """Loading replaces all values, and training changes them."""

    def results(folder: Path) -> list[Any]:
        folder.mkdir()
        saved = stack(16)
        saved.save_weights(folder / "first.weights.json", max_shard_size=5 / 1024)
        assert len(list(folder.glob("first_*.weights.h5"))) > 2
        found: list[Any] = [predicted(saved)]
        saved.set_weights([np.zeros_like(weight) for weight in saved.get_weights()])
        saved.load_weights(folder / "first.weights.json")
        model = compiled(stack(16), optimizer=keras.optimizers.SGD(0.05))
        model.load_weights(folder / "first.weights.json")
        found += [predicted(saved), fitted(model)]
        model.save_weights(folder / "second.weights.json", max_shard_size=5 / 1024)
        saved.load_weights(folder / "second.weights.json")
        return [*found, predicted(saved), predicted(model)]

    expected = results(tmp_path / "expected")
    with within(8):  # two models of 16 MiB
        assert_same(results(tmp_path / "found"), expected)


@keras.saving.register_keras_serializable()
class TiedEmbedding(keras.layers.Layer):
    """An embedding table that is also, transposed, the output projection."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.width = words, width

    def build(self, shape: Any = None) -> None:
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.table = self.add_weight(shape=(self.words, self.width), initializer=initializer)

    def call(self, x: Any, reverse: bool = False) -> Any:
        if reverse:
            return keras.ops.matmul(x, keras.ops.transpose(self.table))
        return keras.ops.take(self.table, x, axis=0)


@pytest.mark.parametrize(("trains_table", "mib"), [(False, 7), (True, 11)])
def test_a_tied_embedding(trains_table, mib):
    words, width = 4096, 256  # 4 MiB

    def results() -> list[Any]:
        keras.utils.set_random_seed(7)
        embedding = TiedEmbedding(words, width)
        inputs = keras.Input((8,), dtype="int32")
        x = embedding(inputs)
        for _ in range(6):
            wide, narrow = keras.layers.Dense(4 * width, "gelu"), keras.layers.Dense(width)
            x = keras.layers.LayerNormalization()(x + narrow(wide(x)))
            if not trains_table:
                wide.enable_lora(4)
                narrow.enable_lora(4)
        model = keras.Model(inputs, embedding(x, reverse=True))
        embedding.trainable = trains_table
        compiled(model, optimizer=keras.optimizers.SGD(0.05))
        random = np.random.default_rng(0)
        x, y = random.integers(0, words, (2, EXAMPLES, 8))
        fit = model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
        return [fit.history["loss"], model.predict(x, batch_size=BATCH, verbose=0)]

    expected = results()
    with within(mib):  # of 16 MiB
        assert_same(results(), expected)


REPLICAS = """
import contextlib, json, sys
sys.path.insert(0, sys.argv[1])
uses_callback, trains_all, stream_weights = json.loads(sys.argv[2])
budgets = dict(zip(("CPU:0", "CPU:1"), json.loads(sys.argv[3])))
import tfswap, tensorflow as tf, keras
from models import compiled
from test_large_weight_kinds import deterministic, examples, stack, with_lora

deterministic()
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
x, y = examples()

def stats(name):
    return [tfswap.memory_stats(device)[name] for device in budgets]

class Peaks(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        for device in budgets:
            tfswap.reset_memory_stats(device)
    def on_train_batch_end(self, batch, logs=None):
        self.found = {name: stats(name) for name in ("peak_bytes", "bytes_in")}

def trained(**options):
    reduce = tf.distribute.ReductionToOneDevice() if trains_all else None
    begin = tfswap.options.set if options and not uses_callback else contextlib.nullcontext
    with begin(**(options if begin is tfswap.options.set else {})):
        with tf.distribute.MirroredStrategy(list(budgets), reduce).scope():
            model = compiled(stack(8)) if trains_all else with_lora(stack(6))
        peaks = Peaks()
        callbacks = [tfswap.AutoSwap(**options), peaks] if options and uses_callback else [peaks]
        fit = model.fit(
            x, y, batch_size=4, epochs=6, shuffle=False, verbose=0, callbacks=callbacks
        )
        return [fit.history["loss"], model.evaluate(x, y, batch_size=4, verbose=0)], peaks.found

found, memory = trained(budget=budgets, stream_weights=stream_weights, verbose=0)
left = stats("budget_bytes")
expected, _ = trained()
print(json.dumps({"same": found == expected, "left": left, **memory}))
"""


@pytest.mark.parametrize(
    ("uses_callback", "trains_all", "stream_weights", "mib"),
    [
        # 6 MiB of weights for each replica
        pytest.param(False, False, "auto", (5, 5.5), id="options-lora"),
        # 8 MiB of weights, as much momentum, and as many gradients, which one device adds up
        pytest.param(True, True, True, (12, 12.5), id="callback-all", marks=pytest.mark.slow),
    ],
)
def test_replicas(uses_callback, trains_all, stream_weights, mib):
    """Each replica streams its own values within its own budget."""
    budgets = [int(each * MIB) for each in mib]
    arguments = [str(_HERE), json.dumps((uses_callback, trains_all, stream_weights))]
    done = subprocess.run(
        [sys.executable, "-c", REPLICAS, *arguments, json.dumps(budgets)],
        env={**os.environ, "PYTHONPATH": python_path(_HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same"] and found["left"] == [None, None]
    assert all(p <= b for p, b in zip(found["peak_bytes"], budgets, strict=True))
    assert min(found["bytes_in"]) > 0
