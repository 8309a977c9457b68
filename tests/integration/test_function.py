"""Custom loops under a budget: one function, several, and functions that cannot be swapped."""

from __future__ import annotations

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import (
    MIB,
    Losses,
    budget_of,
    compiled,
    convolutions,
    deterministic,
    images,
    others_bytes,
    trained,
)

import tfswap

_BATCH = 32


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


def new_model(filters: int = 16) -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    return convolutions(filters)


class Loop:
    """A training step as users write it.

    Attributes:
        step: The `tf.function`.
    """

    def __init__(self, wrap=lambda function: function, **of_function) -> None:
        self.model = new_model()
        self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def train_step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, self.model(x, training=True))
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(
                zip(gradients, self.model.trainable_variables, strict=True)
            )
            return loss

        self.step = wrap(tf.function(train_step, **of_function))

    def losses(self, steps: int = 24) -> list[float]:
        x, y = map(tf.constant, images(_BATCH))
        return [float(self.step(x, y)) for _ in range(steps)]


def peak_of(losses) -> tuple[list[float], int, int]:
    """Return a training's result, the device's peak in it, and the bytes in use before."""
    before = others_bytes()
    tfswap.reset_memory_stats()
    found = losses()
    return found, tfswap.memory_stats()["peak_bytes"], before


@pytest.fixture(scope="module")
def unswapped():
    deterministic()
    first, peak, before = peak_of(lambda: Loop().losses())
    again, _, _ = peak_of(lambda: Loop().losses())
    assert first == again
    return first, peak - before


def budget_for(unswapped, part: float = 0.6) -> int:
    return others_bytes() + int(part * unswapped[1]) + MIB


def test_a_decorated_function_has_the_same_losses_inside_a_budget(unswapped, capsys):
    budget = budget_for(unswapped)
    loop = Loop(tfswap.swap(budget=budget))
    losses, peak, _ = peak_of(loop.losses)
    assert losses == unswapped[0]
    assert peak <= budget
    report = loop.step.report
    assert report["outcome"] == "swapped"
    assert report["swapped_buffers"] + report["recomputed_buffers"] > 0
    assert report["predicted_peak_bytes"] == pytest.approx(report["measured_peak_bytes"], rel=0.1)
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    assert printed and all(line.startswith("tfswap: train_step: ") for line in printed)
    assert tfswap.status()["trainings"]
    loop.step.release()
    assert not tfswap.status()["trainings"]
    assert tfswap.memory_stats()["budget_bytes"] is None


def test_a_function_keeps_its_plan_after_a_fit_used_the_devices(unswapped):
    budget = budget_for(unswapped)
    loop = Loop(tfswap.swap(budget=budget, verbose=0))
    losses = loop.losses(18)  # corrected as often as possible by then
    plan = loop.step.report["plan"]
    assert plan is not None
    x, y = images(64)
    fit = tfswap.AutoSwap(budget="1GiB", verbose=0)
    other = compiled(keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(4)]))
    other.fit(x, y, epochs=4, verbose=0, callbacks=[fit])
    assert fit.report["outcome"] == "fits"
    assert tfswap.memory_stats()["budget_bytes"] is None
    losses += loop.losses(6)
    assert losses == unswapped[0]
    assert tfswap.memory_stats()["budget_bytes"] == budget
    assert loop.step.report["plan"].functions[0].swaps == plan.functions[0].swaps
    loop.step.release()


def test_methods_have_one_function_per_instance():
    class Trainer:
        def __init__(self, rate: float) -> None:
            self.weights = tf.Variable(tf.ones([4, 1]))
            self.rate = rate

        @tfswap.swap(budget="500MiB", verbose=0)
        @tf.function
        def step(self, x):
            """One step."""
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((x @ self.weights) ** 2)
            self.weights.assign_sub(self.rate * tape.gradient(loss, self.weights))
            return loss

    first, second = Trainer(0.01), Trainer(0.02)
    x = tf.ones([2, 4])
    assert float(first.step(x)) == float(second.step(x)) == 32
    assert float(first.step(x)) > float(second.step(x))
    assert Trainer.step.__doc__ == "One step."
    assert first.step.get_concrete_function(x).structured_outputs.shape == ()
    first.step.release()


def test_two_functions_of_one_loop_share_a_budget():
    """Train two models in turns, as a GAN does."""

    def losses(session=None) -> list[float]:
        models = [new_model(20), new_model(24)]
        x, y = map(tf.constant, images(_BATCH))
        steps = []
        for name, model in zip(("generator_step", "discriminator_step"), models, strict=True):
            optimizer = keras.optimizers.SGD(0.05)
            optimizer.build(model.trainable_variables)

            def step(x, y, model=model, optimizer=optimizer):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(
                        keras.losses.sparse_categorical_crossentropy(
                            y, model(x, training=True), from_logits=True
                        )
                    )
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply(gradients)
                return loss

            step.__name__ = name
            steps.append(tf.function(step))

        @tf.function
        def scores(x):
            return models[0](x, training=False)

        found = []
        for _ in range(16):
            found += [float(step(x, y)) for step in steps]
            found.append(float(tf.reduce_sum(scores(x))))
        return found

    expected, peak, before = peak_of(losses)
    gc.collect()
    budget = tfswap.memory_stats()["bytes_in_use"] + int(0.65 * (peak - before))
    with tfswap.Session(budget=budget, verbose=0) as session:
        found, peak, _ = peak_of(losses)
        reports = session.reports
    assert found == expected
    assert peak <= budget
    assert sorted(reports) == ["discriminator_step", "generator_step"]
    assert {report["outcome"] for report in reports.values()} == {"swapped"}
    assert tfswap.memory_stats()["budget_bytes"] is None
    assert sorted(session.reports) == sorted(reports)


def test_gradients_outside_of_functions_are_reported(unswapped):
    model = new_model()
    x, _ = images(_BATCH)
    forward = tfswap.swap(tf.function(lambda x: model(x, training=True)), budget="1GiB")
    with (
        pytest.warns(UserWarning, match="whole step belongs in it"),
        tf.GradientTape() as tape,
    ):
        loss = tf.reduce_sum(forward(tf.constant(x)))
    assert len(tape.gradient(loss, model.trainable_variables)) == len(model.trainable_variables)
    forward.release()
    with (
        tfswap.Session(budget="1GiB"),
        pytest.warns(UserWarning, match="Put the step into a tf.function"),
        tf.GradientTape() as tape,
    ):
        loss = tf.reduce_sum(model(x[:2]))
        tape.gradient(loss, model.trainable_variables)


def test_functions_that_xla_compiles():
    loop = Loop(tfswap.swap(budget="1GiB", verbose=0), jit_compile=True)
    loop.losses(6)
    assert loop.step.report["outcome"] == "fits"  # XLA is off
    loop.step.release()
    with (
        tfswap.Session(budget="1GiB", verbose=0),
        pytest.warns(UserWarning, match="leave jit_compile out"),
    ):
        tf.function(lambda x: x + 1, jit_compile=True)(tf.ones([2]))


def test_an_argument_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="Put @tf.function below it"):
        tfswap.swap(lambda x: x, budget="1GiB")
    with pytest.raises(
        ValueError, match="tfswap has no option 'bugdet': the options are budget, policy"
    ):
        tfswap.swap(bugdet="1GiB")


def test_a_step_that_runs_out_of_memory_raises_and_the_next_one_runs():
    weights = tf.Variable(tf.ones([4, 4096]))

    @tfswap.swap(budget=tfswap.memory_stats()["bytes_in_use"] + 16 * MIB, verbose=0)
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ weights) ** 2)
        weights.assign_sub(1e-9 * tape.gradient(loss, weights))
        return loss

    small = tf.ones([2, 4])
    assert float(step(small)) > 0
    with pytest.raises(tf.errors.ResourceExhaustedError, match="tfswap: the memory budget"):
        step(tf.ones([4096, 4]))  # allocates 64 MiB
    assert "memory budget" in step.report["out_of_memory"]
    assert float(step(small)) > 0
    step.release()


def test_a_failed_session_leaves_nothing_behind():
    with pytest.raises(RuntimeError, match="on purpose"), tfswap.Session(budget="1GiB", verbose=0):
        assert tfswap.memory_stats()["budget_bytes"] == 1 << 30
        raise RuntimeError("on purpose")
    assert tfswap.memory_stats()["budget_bytes"] is None
    assert tf.function.__module__  # TensorFlow's own functions are restored
    assert np.isclose(float(tf.function(lambda x: x + 1)(tf.constant(1.0))), 2)


def test_a_session_is_refused_while_a_fit_uses_the_devices():
    class Intruder(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            with pytest.raises(RuntimeError, match=r"within one tfswap\.Session"):
                tfswap.Session(budget="1GiB").__enter__()

    swap = tfswap.AutoSwap(budget="1GiB", verbose=0)
    result = trained(lambda: compiled(convolutions()), [swap, Intruder()])
    assert isinstance(result, Losses)
    assert budget_of(result, 0.5) > 0
