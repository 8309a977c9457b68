"""Weights that were loaded from a file and are read from there again."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, deterministic, emptied_variables, unmovable_bytes

import tfswap

WIDTH = 1024  # 4 MiB for a layer's kernel
LAYERS = 10
X = np.random.default_rng(0).random((16, WIDTH), dtype=np.float32)
Y = X[:, :4]


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


def stack(dtype: str = "float32", trainable: bool = False) -> keras.Model:
    """Return 40 MiB of weights and a head; in bfloat16, half of that."""
    x = inputs = keras.Input((WIDTH,))
    for _ in range(LAYERS):
        dense = keras.layers.Dense(WIDTH, activation="gelu", use_bias=False, dtype=dtype)
        dense.trainable = trainable
        x = dense(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def saved(path: Path, dtype: str = "float32") -> np.ndarray:
    """Save weights and the model; return its predictions."""
    keras.utils.set_random_seed(1)
    with emptied_variables():
        model = stack(dtype)
        model.save_weights(path / "model.weights.h5")
        model.save(path / "model.keras")
        return model.predict(X, verbose=0)


@pytest.fixture
def limited(tmp_path):
    """Options with less memory than weights."""
    return tfswap.options.set(
        budget=unmovable_bytes() + 20 * MIB, spill_dir=tmp_path, host_limit=4 * MIB, verbose=0
    )


def file_bytes() -> tuple[int, int]:
    """Return the bytes that were written to the spill file, and read from files."""
    stats = tfswap.memory_stats()
    return stats["far_file_bytes_out"], stats["far_file_bytes_in"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("of_model", [False, True], ids=["weights", "model"])
def test_loaded_weights_are_not_written_again(tmp_path, limited, dtype, of_model):
    expected = saved(tmp_path, dtype)
    with limited:
        tfswap.reset_memory_stats()
        if of_model:
            model = keras.models.load_model(tmp_path / "model.keras")
        else:
            model = stack(dtype)
            model.load_weights(tmp_path / "model.weights.h5")
        written, read = file_bytes()
        predicted = [model.predict(X, verbose=0) for _ in range(2)]
        assert file_bytes()[0] == written
        assert dtype == "bfloat16" or file_bytes()[1] - read > 20 * MIB
        assert tfswap.memory_stats()["peak_bytes"] <= tfswap.memory_stats()["budget_bytes"]
    for each in predicted:
        np.testing.assert_array_equal(each, expected)


def test_sharded_weights_are_read_in_place(tmp_path, limited):
    expected = saved(tmp_path)
    whole = stack()
    whole.load_weights(tmp_path / "model.weights.h5")
    whole.save_weights(tmp_path / "model.weights.json", max_shard_size=16 / 1024)
    with limited:
        model = stack()
        model.load_weights(tmp_path / "model.weights.json")
        written, _ = file_bytes()
        np.testing.assert_array_equal(model.predict(X, verbose=0), expected)
        assert file_bytes()[0] == written


def test_trained_weights_are_not_read_from_the_checkpoint(tmp_path):
    saved(tmp_path)

    def trained() -> list[float]:
        model = stack(trainable=True)
        model.load_weights(tmp_path / "model.weights.h5")
        fit = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        losses = model.fit(X, Y, **fit).history["loss"]
        return [*losses, model.evaluate(X, Y, verbose=0)]

    expected = trained()
    budget = unmovable_bytes() + 32 * MIB  # also for gradients
    with tfswap.options.set(budget=budget, spill_dir=tmp_path, host_limit=4 * MIB, verbose=0):
        assert trained() == expected


def test_a_model_is_saved_to_the_file_that_it_is_read_from(tmp_path, limited):
    expected = saved(tmp_path)
    path = tmp_path / "model.weights.h5"
    link = tmp_path / "link.weights.h5"
    link.symlink_to(path)
    with limited:
        model = stack()
        model.load_weights(path)
        for _ in range(2):
            model.save_weights(link)
            np.testing.assert_array_equal(model.predict(X, verbose=0), expected)
        assert link.is_symlink()
        again = stack()
        again.load_weights(path)
        np.testing.assert_array_equal(again.predict(X, verbose=0), expected)


def test_a_changed_checkpoint_is_an_error_until_it_is_loaded_again(tmp_path, limited):
    expected = saved(tmp_path)
    path = tmp_path / "model.weights.h5"
    before = path.read_bytes()
    with limited:
        model = stack()
        model.load_weights(path)
        with open(path, "r+b") as file:
            file.seek(MIB)  # whichever weight is away
            file.write(bytes(len(before) - 2 * MIB))
        with pytest.raises(tf.errors.OpError, match=r"model\.weights\.h5 are not the ones"):
            model.predict(X, verbose=0)
        path.write_bytes(before)
        model.load_weights(path)
        np.testing.assert_array_equal(model.predict(X, verbose=0), expected)
        os.unlink(path)
        np.testing.assert_array_equal(model.predict(X, verbose=0), expected)


def test_weights_from_safetensors_are_read_in_place(tmp_path, limited):
    safetensors = pytest.importorskip("safetensors")
    from safetensors.numpy import save_file

    values = {f"layer.{i}": np.full((4, MIB // 4), i, np.float32) for i in range(10)}
    values["transposed"] = np.arange(MIB, dtype=np.float32).reshape(WIDTH, WIDTH)
    save_file(values, tmp_path / "model.safetensors")
    with limited:
        tfswap.reset_memory_stats()
        with safetensors.safe_open(tmp_path / "model.safetensors", framework="np") as file:
            variables = {}
            for name in file.keys():  # noqa: SIM118
                variables[name] = keras.Variable(keras.ops.zeros((WIDTH, WIDTH)))
                value = file.get_tensor(name).reshape(WIDTH, WIDTH)
                variables[name].assign(value.T if name == "transposed" else value)
        del value
        written, _ = file_bytes()
        for name, variable in variables.items():
            expected = values[name].reshape(WIDTH, WIDTH)
            expected = expected.T if name == "transposed" else expected
            np.testing.assert_array_equal(variable.numpy(), expected)
        assert file_bytes()[0] - written <= 4 * MIB  # the transposed one


def test_assigned_arrays_are_in_the_budget_and_can_leave(limited):
    with limited:
        tfswap.reset_memory_stats()
        shape = (WIDTH, WIDTH)
        variables = [keras.Variable(keras.ops.zeros(shape)) for _ in range(8)]  # 32 MiB
        for i, variable in enumerate(variables):
            variable.assign(np.full(shape, i, np.float32))
        stats = tfswap.memory_stats()
        away = stats["far_host_bytes_in_use"] + stats["far_file_bytes_in_use"]
        assert away + stats["load_bytes"] >= 32 * MIB
        assert stats["peak_bytes"] <= stats["budget_bytes"]
        for i, variable in enumerate(variables):
            np.testing.assert_array_equal(variable.numpy(), i)
        with pytest.raises(ValueError, match="shape"):
            variables[0].assign(np.zeros((2, WIDTH), np.float32))
        with pytest.raises(ValueError, match="hape"):
            variables[0]._value.assign(np.zeros((2, WIDTH), np.float32))
        np.testing.assert_array_equal(variables[0].numpy(), 0)
