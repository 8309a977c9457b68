"""Run a program that does not know tfswap by the programs benchmark."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from benchmarks.programs.__main__ import measure

# A `fit`, validation, and a custom loop over more data than it may use.
PROGRAM = """
    import keras
    import tensorflow as tf
    from keras import layers

    (x, y), (x_test, y_test) = keras.datasets.mnist.load_data()
    x = x[..., None].astype("float32") / 255
    x_test = x_test[..., None].astype("float32") / 255


    def net():
        inputs = keras.Input((28, 28, 1))
        h = inputs
        for _ in range(6):
            h = layers.Conv2D(8, 3, padding="same", activation="relu")(h)
        h = layers.GlobalAveragePooling2D()(h)
        return keras.Model(inputs, layers.Dense(10)(h))


    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = net()
    model.compile("sgd", loss)
    model.fit(x, y, batch_size=128, epochs=9, validation_data=(x_test, y_test))

    other, optimizer = net(), keras.optimizers.SGD(0.01)


    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, other(images, training=True))
        gradients = tape.gradient(value, other.trainable_weights)
        optimizer.apply(gradients, other.trainable_weights)
        return value


    for images, labels in tf.data.Dataset.from_tensor_slices((x, y)).batch(128):
        train_step(images, labels)
"""


@pytest.mark.slow
def test_a_program_runs_unchanged_under_a_budget_with_the_same_bits(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    line = measure(script, 0.6)
    assert line["runs"] == "ok", line
    assert [name for name, _ in line["trainings"]] == ["fit", "train_step"]
    assert line["trainings"] == [["fit", 40], ["train_step", 20]]
    assert line["budget_bytes"] < line["unswapped_peak_bytes"]
    assert line["within_budget"] and line["swapped_bytes"] > 0
    assert line["losses_equal"] is not False and line["weights_equal"] is not False


def test_a_program_that_cannot_run_here_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import nothing_of_this_name\n")
    assert measure(script, 0.6) == {
        "program": "program",
        "runs": "not without tfswap either: ModuleNotFoundError: "
        "No module named 'nothing_of_this_name'",
    }
