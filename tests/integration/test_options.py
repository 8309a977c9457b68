"""Options for all trainings: by tf.config, from the environment, in blocks, in v1 sessions."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, budget_of, compiled, convolutions, deterministic, images, trained

import tfswap
from tfswap.__main__ import main


@pytest.fixture(autouse=True)
def determinism():
    deterministic()
    yield
    tfswap.options.reset()


@pytest.fixture(scope="module")
def unswapped():
    deterministic()
    return trained(lambda: compiled(convolutions()), epochs=2)


def test_a_fit_without_a_callback_keeps_the_budget(unswapped):
    budget = budget_of(unswapped, 0.6)
    tf.config.optimizer.set_experimental_options(
        {"tfswap": {"budget": budget, "verbose": 0}, "remapping": True}
    )
    shown = tf.config.optimizer.get_experimental_options()
    assert shown["tfswap"] == {"budget": budget, "verbose": 0}
    assert shown["remapping"] is True
    swapped = trained(lambda: compiled(convolutions()), epochs=2)
    assert swapped.losses == unswapped.losses
    assert max(swapped.peaks) <= budget
    assert tfswap.memory_stats()["bytes_out"] > 0
    tf.config.optimizer.set_experimental_options({"tfswap": None})
    assert "tfswap" not in tf.config.optimizer.get_experimental_options()
    assert tfswap.options.get() is None
    assert max(trained(lambda: compiled(convolutions()), epochs=2).peaks) > budget


def test_an_explicit_callback_is_used(unswapped):
    budget = budget_of(unswapped, 0.6)
    with tfswap.options.set(budget="4GiB", verbose=0):
        swap = tfswap.AutoSwap(budget=budget, verbose=0)
        swapped = trained(lambda: compiled(convolutions()), [swap], epochs=2)
    assert swap.report["outcome"] == "swapped"
    assert swapped.losses == unswapped.losses


def test_bad_options_are_refused_and_change_nothing():
    tfswap.options.set(budget="1GiB")
    set_options = tf.config.optimizer.set_experimental_options
    before = tf.config.optimizer.get_experimental_options()
    with pytest.raises(
        ValueError, match="tfswap has no option 'bugdet': the options are budget, policy"
    ):
        set_options({"tfswap": {"bugdet": "1GiB"}, "debug_stripper": True})
    with pytest.raises(TypeError, match="must be a dictionary such as"):
        set_options({"tfswap": "1GiB"})
    with pytest.raises(ValueError, match="budget"):
        tfswap.options.set(budget="a lot")
    assert tf.config.optimizer.get_experimental_options() == before
    assert tfswap.options.get() == {"budget": "1GiB"}


def test_blocks_restore_earlier_options():
    with tfswap.options.set(budget="1GiB"):
        with tfswap.options.set(budget="2GiB", policy="vdnn_conv"):
            assert tfswap.options.get() == {"budget": "2GiB", "policy": "vdnn_conv"}
        assert tfswap.options.get() == {"budget": "1GiB"}
    assert tfswap.options.get() is None


def test_a_users_function_gets_a_plan(unswapped):
    def losses() -> list[float]:
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        model = convolutions()
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)

        @tf.function
        def my_step(x, y):
            with tf.GradientTape() as tape:
                loss = keras.losses.sparse_categorical_crossentropy(
                    y, model(x, training=True), from_logits=True
                )
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return tf.reduce_mean(loss)

        x, y = map(tf.constant, images(32))
        return [float(my_step(x, y)) for _ in range(20)]

    expected = losses()
    assert losses() == expected
    gc.collect()
    budget = budget_of(unswapped, 0.6)
    with tfswap.options.set(budget=budget, verbose=0):
        tfswap.reset_memory_stats()
        assert losses() == expected
        assert tfswap.memory_stats()["peak_bytes"] <= budget
        assert tfswap.options.reports()["my_step"]["outcome"] == "swapped"
    assert tfswap.memory_stats()["budget_bytes"] is None


_SCRIPT = """
    import keras, numpy as np, tfswap
    model = keras.Sequential([keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    model.fit(np.ones((64, 4)), np.ones((64, 4)), batch_size=4, verbose=0)
"""


def run_script(script: str = _SCRIPT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_environment_sets_a_budget():
    done = run_script(TFSWAP_BUDGET="300MiB")
    assert done.returncode == 0, done.stderr
    assert "tfswap: the model fits" in done.stdout and "a budget of 300 MiB" in done.stdout


def test_options_from_the_environment():
    read = tfswap.options.from_environment
    assert read({"HOME": "/", "TFSWAP_BUILD_UNTESTED": "1"}) == {}
    said = {"BUDGET": "50%", "VERBOSE": "0", "SLAB": "off", "PLANNING_TIME_S": "0.5", "CODEC": ""}
    said["STREAM_WEIGHTS"] = "auto"
    assert read({f"TFSWAP_{name}": text for name, text in said.items()}) == {
        "budget": "50%",
        "verbose": 0,
        "slab": False,
        "planning_time_s": 0.5,
        "codec": None,
        "stream_weights": "auto",
    }
    for name, text, message in (
        (
            "BUGDET",
            "1GiB",
            "unknown environment variable TFSWAP_BUGDET; tfswap reads TFSWAP_BUDGET",
        ),
        ("BUDGET", "lots", "budget"),
        ("SLAB", "perhaps", "TFSWAP_SLAB is 'perhaps'; allowed: 1, true, on, 0, false, off"),
        ("STREAM_WEIGHTS", "2", "TFSWAP_STREAM_WEIGHTS is '2'; allowed: 1, .*, off, auto"),
        ("VERBOSE", "much", "TFSWAP_VERBOSE is 'much'; it must be a number"),
    ):
        with pytest.raises(ValueError, match=message):
            read({f"TFSWAP_{name}": text})


def test_a_script_is_run_unchanged_under_a_budget(tmp_path):
    script = tmp_path / "train.py"
    text = textwrap.dedent(_SCRIPT.replace(", tfswap", ""))
    script.write_text(text + "import sys\nprint(sys.argv)\n")
    arguments = ["--budget", "300MiB", "--set", "slab=off", str(script), "--epochs", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "tfswap", "run", *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a budget of 300 MiB" in done.stdout
    assert f"['{script}', '--epochs', '3']" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "much"], "tfswap run: "),
        (["--set", "slab=maybe"], "--set slab is 'maybe'; allowed: 1, true"),
        (["--set", "slab"], "--set must be OPTION=VALUE; got 'slab'"),
        (["--set", "slob=1"], "tfswap has no option 'slob'"),
        ([], "train.py does not exist"),
    ],
)
def test_a_script_is_refused_under_bad_options(tmp_path, capsys, arguments, message):
    script = tmp_path / "train.py"
    if arguments:
        script.write_text("raise SystemExit('it was run')")
    assert main(["run", *arguments, str(script)]) == 1
    assert message in capsys.readouterr().err
    assert tfswap.options.get() is None


def test_devices_can_still_be_configured_under_options():
    done = run_script(
        """
        import tensorflow as tf, tfswap
        tfswap.options.set(budget="300MiB")
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        print(len(tf.config.list_logical_devices("CPU")))
        """
    )
    assert done.stdout.strip() == "2", done.stderr


def test_sessions_of_tensorflow_1_keep_the_budget():
    """Train a chain of convolutions in a TensorFlow 1 graph."""
    v1 = tf.compat.v1

    def losses() -> list[float]:
        with tf.Graph().as_default():
            tf.random.set_seed(7)
            x = v1.placeholder(tf.float32, [None, 48, 48, 3])
            hidden, filters = x, []
            for depth in range(8):
                width = 3 if depth == 0 else 16
                kernel = v1.get_variable(
                    f"kernel{depth}",
                    initializer=tf.random.stateless_normal([1, 1, width, 16], [depth, 1]) * 0.3,
                    use_resource=True,
                )
                filters.append(kernel)
                hidden = tf.nn.elu(tf.nn.conv2d(hidden, kernel, 1, "SAME"))
            loss = tf.reduce_mean(hidden**2)
            gradients = v1.gradients(loss, filters)
            update = tf.group(
                *(f.assign_sub(0.01 * g) for f, g in zip(filters, gradients, strict=True))
            )
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                batch = images(32)[0]
                return [session.run([loss, update], {x: batch})[0] for _ in range(6)]

    gc.collect()
    tfswap.reset_memory_stats()
    before = tfswap.memory_stats()["bytes_in_use"]
    expected = losses()
    whole = tfswap.memory_stats()["peak_bytes"] - before
    assert losses() == expected
    gc.collect()
    budget = tfswap.memory_stats()["bytes_in_use"] + int(0.6 * whole) + MIB
    tfswap.set_budget(budget)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="tfswap: the memory budget"):
        losses()
    with tfswap.options.set(budget=budget, verbose=0):
        tfswap.reset_memory_stats()
        assert losses() == expected
    stats = tfswap.memory_stats()
    assert stats["peak_bytes"] <= budget and stats["bytes_out"] > 0
    tfswap.set_budget(None)
    with pytest.raises(ValueError, match="call tfswap.options.set"):
        tfswap.options.session_config()
    with tfswap.options.set(budget=budget):
        optimizers = tfswap.options.session_config().graph_options.rewrite_options
        assert [each.name for each in optimizers.custom_optimizers] == ["tfswap"]


def test_evaluations_need_no_plan(unswapped):
    keras.utils.clear_session()
    model = compiled(convolutions())
    x, y = images(64)
    expected = model.evaluate(x, y, verbose=0)
    with tfswap.options.set(budget=budget_of(unswapped, 0.6), verbose=0):
        assert np.allclose(model.evaluate(x, y, verbose=0), expected)
        assert model.predict(x, verbose=0).shape == (64, 4)
        assert not tfswap.options.reports()
