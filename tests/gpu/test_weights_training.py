"""`AutoSwap(stream_weights=True)` on a GPU: weights that are in far memory at the step's end.

The model is made of matrix products, which the simulated GPU computes. Each layer has a weight and
an optimizer state, uses the weight forward and backward, and updates both in each step.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from trainings import ran

MIB = 1 << 20
# The bytes of all variables; one half is the optimizer's state.
VARIABLES = 8 * 2 * 2 * MIB

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")

TRAINING = """
import hashlib, json, sys
import keras, numpy as np, tensorflow as tf, tfswap
from tfswap.ops import library

LAYERS, ROWS, WIDTH, EPOCHS = 8, 16384, 32, 10
tf.config.experimental.enable_tensor_float_32_execution(False)  # which would round
options = json.loads(sys.argv[1])
fault = options.pop("fault", "")
dice = np.random.default_rng(0)

made = lambda *shape: dice.standard_normal(shape).astype("f4") / shape[0] ** 0.5
with tf.device("GPU:0"):
    kept = [tf.Variable(np.eye(WIDTH, dtype="f4")[dice.permutation(WIDTH)]) for _ in range(LAYERS)]
    mix, mix_back = [tf.Variable(made(WIDTH, ROWS)) for _ in range(2)]
    w, state = [[tf.Variable(tf.zeros([ROWS, WIDTH])) for _ in range(LAYERS)] for _ in range(2)]
    for each in (*w, *state):
        each.assign(made(ROWS, WIDTH))

class Products(keras.Model):
    def call(self, x):
        for each in w:
            x = tf.matmul(mix, tf.matmul(each, x))
        return x

    def test_step(self, data):
        with tf.device("GPU:0"):
            out = self(data[0])
        with tf.device("CPU:0"):
            return {"loss": tf.reduce_sum(out)}

    def train_step(self, data):
        with tf.device("GPU:0"):
            x, made = data[0], []
            for each in w:
                made.append(tf.matmul(each, x))
                x = tf.matmul(mix, made[-1])
            out = x
            gradients = []
            for i in reversed(range(LAYERS)):
                back = tf.matmul(mix, tf.matmul(w[i], x))
                x = tf.matmul(tf.matmul(mix_back, made[i]), back)
                gradients.append((i, x))
            updates = []
            for i, gradient in gradients:
                with tf.control_dependencies([gradient, *updates[-1:]]):
                    state[i].assign(tf.matmul(state[i], kept[i]))
                    updates.append(w[i].assign(tf.matmul(w[i], kept[i])))
        with tf.device("CPU:0"):
            return {"loss": tf.reduce_sum(out) + tf.reduce_sum(x)}

losses, between, steps, evaluations, error = [], [], [], [], ""
# The loss that `evaluate` returns is no matrix product: the simulated GPU does not compute it.
class Evaluated(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        evaluations.append(float(logs["loss"]).hex())
digest = lambda values: [hashlib.sha1(each.tobytes()).hexdigest() for each in values]

class Looks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        losses.append(float(logs["loss"]).hex())
        stats = tfswap.memory_stats("GPU:0")
        steps.append([stats[key] for key in ("bytes_in_use", "bytes_in", "host_bytes_in_use")])
    def on_epoch_end(self, epoch, logs=None):
        if epoch in (1, EPOCHS - 4):
            between.append(digest([each.numpy() for each in (*w, *state)]))
            model.evaluate(data, verbose=0, callbacks=[Evaluated()])
            tf.train.Checkpoint(w=w, state=state).write(sys.argv[2] + "/point")
            reader = tf.train.load_checkpoint(sys.argv[2] + "/point")
            between.append(digest([
                reader.get_tensor(f"{name}/{i}/.ATTRIBUTES/VARIABLE_VALUE")
                for name in ("w", "state") for i in range(LAYERS)]))
        if fault.startswith("copy-") and epoch == EPOCHS - 2:
            library.load().set_faults(fault)

model = Products()
model.compile(loss="mse", jit_compile=False)
x = dice.standard_normal((2 * WIDTH, WIDTH)).astype("f4") / 8
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(WIDTH, drop_remainder=True)
swap = tfswap.AutoSwap(verbose=0, **options) if options else None
callbacks = [Looks()] if swap is None else [swap, Looks()]
try:
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
except Exception as raised:
    if not fault:
        raise
    error = str(raised)
    library.load().set_faults("")
told = {"losses": losses, "between": between, "evaluations": evaluations, "steps": steps,
        "error": error}
told["last"] = digest([each.numpy() for each in (*w, *state)])
told["stats"] = tfswap.memory_stats("GPU:0")
if swap:
    report = swap.report
    told |= {"outcome": report.outcome, "notes": report.notes, "budget": report.budget_bytes,
             "predicted": report.predicted_peak_bytes, "measured": report.measured_peak_bytes,
             "out_per_step": report.bytes_out_per_step,
             "across": [[each.tensor, each.size_bytes, each.returns_in_step]
                        for f in report.plan.functions for each in f.swaps if each.after]
                       if report.plan else []}
print(json.dumps(told))
"""


def told(folder: Path, **options: Any) -> dict[str, Any]:
    """Return the output of a training; without options it is not swapped."""
    return ran(TRAINING, json.dumps(options), str(folder))


@pytest.fixture(scope="module")
def unswapped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return told(tmp_path_factory.mktemp("unswapped"))


def assert_same(swapped: dict[str, Any], unswapped: dict[str, Any]) -> None:
    """Compare bit for bit: losses, evaluations, and weights as read between steps."""
    for key in ("losses", "evaluations", "between", "last"):
        assert swapped[key] == unswapped[key], key
    # Far memory is empty, and the GPU has everything that it had before.
    assert swapped["stats"]["host_bytes_in_use"] == swapped["stats"]["far_buffers"] == 0
    assert swapped["stats"]["bytes_in_use"] >= VARIABLES


def last_step(swapped: dict[str, Any]) -> tuple[int, int, int]:
    """Return the bytes on the GPU and in far memory at its end, and those swapped in."""
    *_, before, after = swapped["steps"]
    return after[0], after[2], after[1] - before[1]


@pytest.mark.parametrize("budget", [12 * MIB, pytest.param(16 * MIB, marks=pytest.mark.slow)])
def test_a_plan_swaps_weights_across_the_steps_end(
    unswapped: dict[str, Any], tmp_path: Path, budget: int
) -> None:
    swapped = told(tmp_path, budget=budget, stream_weights=True)
    assert_same(swapped, unswapped)
    assert swapped["outcome"] == "swapped", swapped["notes"]
    assert swapped["measured"] <= budget <= VARIABLES / 2
    assert swapped["measured"] <= 1.03 * swapped["predicted"]
    across = [tensor for tensor, _, returns_in_step in swapped["across"] if not returns_in_step]
    assert len(across) >= 8
    here, away, came_in = last_step(swapped)
    assert here < VARIABLES / 2 < away and came_in > VARIABLES / 2


def test_a_budget_below_every_plan_is_enough(unswapped: dict[str, Any], tmp_path: Path) -> None:
    """No plan fits: values are evicted when memory runs out."""
    budget = 9 * MIB
    swapped = told(tmp_path, budget=budget, stream_weights=True)
    assert_same(swapped, unswapped)
    assert swapped["measured"] <= budget < VARIABLES / 3
    here, away, _ = last_step(swapped)
    assert here <= budget and here + away >= VARIABLES


def test_without_streamed_weights_memory_runs_out(
    unswapped: dict[str, Any], tmp_path: Path
) -> None:
    assert_same(told(tmp_path, budget=28 * MIB), unswapped)  # "auto": they are large
    failed = told(tmp_path, budget=28 * MIB, stream_weights=False, fault="none")
    assert "the memory budget of 28.0 MiB is exceeded" in failed["error"]
    assert not failed["losses"]


@pytest.mark.slow
def test_values_are_verified(unswapped: dict[str, Any], tmp_path: Path) -> None:
    swapped = told(tmp_path, budget=16 * MIB, stream_weights=True, verify=True)
    assert_same(swapped, unswapped)


def test_a_copy_in_that_fails_ends_the_training(tmp_path: Path) -> None:
    failed = told(tmp_path, budget=16 * MIB, stream_weights=True, fault="copy-in-fails")
    assert re.search("swapping in .* failed: injected fault", failed["error"])
    # Not all could be restored, so readers still fetch them.
    assert len(failed["last"]) == 16 and failed["stats"]["bytes_in"] > 0
    assert failed["stats"]["budget_bytes"] is None


@pytest.mark.slow
def test_a_copy_out_that_fails_ends_the_training(tmp_path: Path) -> None:
    failed = told(tmp_path, budget=16 * MIB, stream_weights=True, fault="copy-out-fails")
    assert re.search("swapping out .* failed: injected fault|memory budget", failed["error"])
    assert failed["stats"]["host_bytes_in_use"] == 0
    assert failed["stats"]["bytes_in_use"] >= VARIABLES


@pytest.mark.slow
def test_a_saved_plan_moves_them_from_the_first_step_on(
    unswapped: dict[str, Any], tmp_path: Path
) -> None:
    plan = str(tmp_path / "plan.json")
    told(tmp_path, budget=16 * MIB, stream_weights=True, save_plan=plan)
    again = told(tmp_path, budget=16 * MIB, stream_weights=True, plan=plan)
    assert_same(again, unswapped)
    assert again["measured"] <= 16 * MIB
    first, second = again["steps"][:2]
    assert second[1] - first[1] > VARIABLES / 2
