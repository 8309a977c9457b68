"""Models and functions that XLA compiles, within a budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import Losses, compiled, others_bytes
from tensorflow.python.framework import config

import tfswap

MIB = 1 << 20


@pytest.fixture(autouse=True)
def xla_is_allowed() -> Iterator[None]:
    """Turn op determinism off, which other tests need and under which Keras uses no XLA."""
    was_on = config.is_op_determinism_enabled()
    config.disable_op_determinism()
    yield
    config.disable_op_determinism()
    if was_on:
        config.enable_op_determinism()


def _budget(mib: int) -> int:
    """Return a budget of so much for a model, beside what is in use."""
    return others_bytes() + mib * MIB


# Functions


class Step:
    """A compiled step that updates weights, a counter and a random state, and needs `n` MiB."""

    def __init__(self) -> None:
        self.weights = tf.Variable(tf.ones([1024, 1024]))
        self.count = tf.Variable(0, dtype=tf.int64)
        self.random = tf.random.Generator.from_seed(1, alg="philox")
        self.optimizer = keras.optimizers.Adam()
        self.optimizer.build([self.weights])

    @tf.function(jit_compile=True)
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        self.count.assign_add(1)
        noise = self.random.normal([1024])
        y = tf.cumsum(tf.sin(self.weights[None] * x[:, None, None]), axis=0)
        gradient = tf.reduce_sum(y + tf.reverse(y, [0]), 0) + noise
        self.optimizer.apply_gradients([(gradient, self.weights)])
        return tf.reduce_sum(self.weights)

    def state(self) -> list[np.ndarray]:
        variables = [self.weights, self.count, self.random.state, *self.optimizer.variables]
        return [np.array(tf.convert_to_tensor(variable)) for variable in variables]

    def changed(self, before: list[np.ndarray]) -> list[int]:
        pairs = zip(before, self.state(), strict=True)
        return [i for i, (old, new) in enumerate(pairs) if old.tobytes() != new.tobytes()]


def _called(way: str, step: Step) -> Any:
    if way == "eagerly":
        return step
    if way == "by a graph":
        return tf.function(lambda x: step(x) + 1.0)
    return tf.function(lambda x: step(x), jit_compile=True)


@pytest.mark.parametrize("way", ["eagerly", "by a graph", "by a compiled function"])
def test_a_refused_step_changes_nothing(way: str) -> None:
    step, undisturbed = Step(), Step()
    run = _called(way, step)
    small, large = tf.ones([2]), tf.ones([64])
    run(small)
    tfswap.set_budget(_budget(80))
    before = step.state()
    for _ in range(3):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="the memory budget of"):
            run(large)
        assert not step.changed(before)
    run(small)
    assert len(step.changed(before)) == len(before) - 1  # all but the learning rate
    tfswap.set_budget(None)
    for x in (small, small):
        _called(way, undisturbed)(x)
    assert not step.changed(undisturbed.state())


def test_a_refused_step_whose_variable_is_in_use_elsewhere() -> None:
    step = Step()
    value = step.weights.read_value()  # shares the buffer, so that XLA cannot take it
    tfswap.set_budget(_budget(80))
    before = step.state()
    with pytest.raises(tf.errors.ResourceExhaustedError):
        step(tf.ones([64]))
    assert not step.changed(before)
    step(tf.ones([2]))
    assert np.array_equal(value, before[0])
    del value
    tfswap.set_budget(None)
    in_use = tfswap.memory_stats()["bytes_in_use"]
    for _ in range(5):
        step(tf.ones([2]))
    assert tfswap.memory_stats()["bytes_in_use"] <= in_use


# Models


def _model(**options: Any) -> keras.Model:
    keras.utils.set_random_seed(7)
    x = inputs = keras.Input((24, 24, 8))
    first = None
    for _ in range(6):
        x = keras.layers.Conv2D(32, 3, padding="same", activation="relu")(x)
        x = keras.layers.Dropout(0.1)(x)
        first = x if first is None else first
    x = keras.layers.Add()([first, x])  # in between, it can be swapped
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    return compiled(model, **{"optimizer": "adamw", "jit_compile": True, **options})


def _data(examples: int = 72) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((examples, 24, 24, 8)).astype(np.float32)
    return x, random.integers(0, 4, examples)


def _fit(
    model: keras.Model, swap: tfswap.AutoSwap | None, data: Any = None, **options: Any
) -> tuple[list[float], list[float]]:
    """Return the training losses, and those of validation."""
    losses = Losses()
    x, y = (data, None) if data is not None else _data()
    callbacks = [losses] if swap is None else [losses, swap]
    options = {"batch_size": 16, "epochs": 2, **options} if y is not None else options
    history = model.fit(x, y, shuffle=False, verbose=0, callbacks=callbacks, **options)
    return losses.losses, history.history.get("val_loss", [])


def _validation() -> dict[str, Any]:
    x, y = _data()
    return {"validation_data": (x[:40], y[:40]), "validation_batch_size": 16}


def test_training_stays_under_xla(capsys: pytest.CaptureFixture[str]) -> None:
    stock = _fit(_model(), None, **_validation())
    model, swap = _model(), tfswap.AutoSwap("1GiB")
    assert _fit(model, swap, **_validation()) == stock
    assert "XLA stays on" in capsys.readouterr().out
    report = swap.report
    assert report["outcome"] == "fits" and report["compiled"] and len(report["notes"]) == 1
    assert 0 < report["unswapped_step_s"] == report["step_s"]
    assert 0 < report["measured_peak_bytes"] <= report["budget_bytes"]
    assert model.jit_compile
    # A second `fit` traces nothing again.
    step = model.train_function._tfswap_CompiledStep
    traces = step._compiled.experimental_get_tracing_count()
    _fit(model, tfswap.AutoSwap("1GiB", verbose=0))
    assert model.train_function._tfswap_CompiledStep is step
    assert step._compiled.experimental_get_tracing_count() == traces


def test_inputs_without_targets_and_with_weights() -> None:
    x, _ = _data()
    targets = x.mean((1, 2, 3))
    weights = np.linspace(0, 1, len(x)).astype(np.float32)
    for options in ({"y": targets, "sample_weight": weights}, {}):

        def run(swap: list[Any], options: dict[str, Any] = options) -> list[float]:
            keras.utils.set_random_seed(7)
            inputs = {name: keras.Input((24, 24, 8), name=name) for name in ("left", "right")}
            both = keras.layers.Flatten()(keras.layers.Concatenate()(list(inputs.values())))
            output = keras.layers.Dense(1, activity_regularizer="l2")(both)
            model = keras.Model(inputs, output)
            loss = "mse" if options else None
            model.compile("adam", loss, jit_compile=True)
            data = {"left": x, "right": 2 * x}
            history = model.fit(data, epochs=3, verbose=0, callbacks=swap, **options)
            return list(history.history["loss"])

        expected = run([])
        swap = tfswap.AutoSwap("1GiB", verbose=0)
        assert run([swap]) == expected and swap.report["compiled"]
        refused = tfswap.AutoSwap(_budget(10), verbose=0)
        assert np.allclose(run([refused]), expected, rtol=1e-5)


def test_training_goes_on_op_by_op_if_xla_gets_too_little_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    budget = _budget(20)
    never = _fit(_model(), tfswap.AutoSwap(budget, xla="never", verbose=0))
    model, swap = _model(), tfswap.AutoSwap(budget)
    assert _fit(model, swap)[0] == never[0]
    lines = [line for line in capsys.readouterr().out.splitlines() if "XLA" in line]
    assert len(lines) == 1 and "XLA got too little memory (asks for" in lines[0]
    assert not swap.report["compiled"] and swap.report["outcome"] in ("swapped", "fits")
    assert 0 < swap.report["measured_peak_bytes"] <= budget
    assert int(model.optimizer.iterations) == 10 and model.jit_compile
    # `evaluate` runs under XLA, as for a model that was just loaded.
    x, y = _data()
    loaded = keras.models.clone_model(model)
    loaded.set_weights(model.get_weights())
    compiled(loaded, jit_compile=True)
    assert model.evaluate(x, y, verbose=0) == loaded.evaluate(x, y, verbose=0)


BATCH_SIZES = (16, 16, 16, 80, 16, 80, 8)


def _growing(begin: int = 0, end: int | None = None) -> tf.data.Dataset:
    x, y = _data(128)

    def batches() -> Iterator[Any]:
        for size in BATCH_SIZES[begin:end]:
            yield x[:size], y[:size]

    signature = (tf.TensorSpec((None, 24, 24, 8)), tf.TensorSpec((None,), tf.int64))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def test_no_batch_is_lost_when_xla_is_refused_later() -> None:
    class PerBatch(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.losses: list[float] = []
            self.iterations: list[int] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.reset_metrics()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.losses.append(float(logs["loss"]))
            self.iterations.append(int(self.model.optimizer.iterations))

    model, expected = _model(), PerBatch()
    model.fit(_growing(end=3), verbose=0, callbacks=[expected])
    model.jit_compile = False
    model.make_train_function(force=True)
    model.fit(_growing(begin=3), verbose=0, callbacks=[expected])
    budget = _budget(70)
    model, losses = _model(), PerBatch()
    swap = tfswap.AutoSwap(budget, verbose=0)
    model.fit(_growing(), verbose=0, callbacks=[losses, swap])
    assert any("XLA got too little" in note for note in swap.report["notes"])
    assert losses.losses == expected.losses
    # (Not read after `fit`: without XLA, Keras's step at the end of the data may count one more.)
    assert losses.iterations == [1, 2, 3, 4, 5, 6, 7]
    assert swap.report["measured_peak_bytes"] <= budget


def test_validation_goes_on_op_by_op_alone() -> None:
    x, y = _data(256)
    stock = _model()
    expected = _fit(stock, None)
    swap = tfswap.AutoSwap(_budget(48), verbose=0)
    model = _model()
    found = _fit(model, swap, validation_data=(x, y), validation_batch_size=256)
    assert found[0] == expected[0] and swap.report["compiled"]
    assert sum("validation goes on op by op" in note for note in swap.report["notes"]) == 1
    assert len(found[1]) == 2
    assert np.isclose(found[1][-1], stock.evaluate(x, y, verbose=0), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "compile_options", "why"),
    [
        ({"xla": "never"}, {}, "xla='never'"),
        ({"save_profile": "profile.json"}, {}, "save_profile is of steps without XLA"),
        ({"sections": 2}, {}, "split into sections"),
        ({}, {"steps_per_execution": 2}, "steps_per_execution is more than 1"),
    ],
)
def test_when_xla_is_off(
    options: dict[str, Any],
    compile_options: dict[str, Any],
    why: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = _model(**compile_options)
    x, y = _data()
    before = model.evaluate(x, y, verbose=0)
    function = model.test_function
    swap = tfswap.AutoSwap("1GiB", verbose=0, **options)
    _fit(model, swap, epochs=1, batch_size=8, validation_data=(x, y))
    assert any("XLA is off" in note and why in note for note in swap.report["notes"])
    assert not swap.report["compiled"]
    # Nothing that was made without XLA is kept.
    assert model.jit_compile and model.test_function is function
    assert model.evaluate(x, y, verbose=0) != before


@pytest.mark.parametrize("options", [{}, {"xla": "never"}])
def test_the_model_keeps_xla_with_op_determinism_turned_on_late(options: dict[str, Any]) -> None:
    model = _model()
    config.enable_op_determinism()  # Keras refuses to set jit_compile from here on
    _fit(model, tfswap.AutoSwap(_budget(20), verbose=0, **options))
    assert model.jit_compile


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(ValueError, match="xla is 'always'; allowed: 'auto', 'never'"):
        tfswap.AutoSwap("1GiB", xla="always")


def test_a_compiled_functions_weights_come_back_for_it() -> None:
    """Its kernel has the type of a call, which only passes variables on, and reads them itself."""
    budget = others_bytes() + 14 * MIB
    values = np.random.default_rng(1).standard_normal((6, 1024, 1024)).astype(np.float32) / 32
    weights = [tf.Variable(value) for value in values]

    @tf.function(jit_compile=True)
    def layer(x: tf.Tensor, weight: tf.Variable) -> tf.Tensor:
        return tf.nn.relu(tf.matmul(x, weight))

    @tf.function
    def serve(x: tf.Tensor) -> tf.Tensor:
        for weight in weights:  # they leave after these uses
            x = tf.matmul(x, weight)
        for weight in weights:
            x = layer(x, weight)
        return x

    x = tf.ones([8, 1024])
    expected = serve(x).numpy()
    with tfswap.Session(budget=budget, stream_weights=True, verbose=0):
        for _ in range(3):
            np.testing.assert_array_equal(serve(x).numpy(), expected)
        assert tfswap.memory_stats()["peak_bytes"] <= budget
