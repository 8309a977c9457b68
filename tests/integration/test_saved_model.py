"""Models that are saved with their plan, and loaded with and without tfswap."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, convolutions, deterministic, images

import tfswap
from tests.python_path import python_path
from tfswap.saved_model import ASSET

BATCH = 32


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


class Trainer(tf.Module):
    """A model and its training step."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        self.model = convolutions()
        self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        self.kept = [*self.model.variables, *self.optimizer.variables]

    @tf.function(
        input_signature=[
            tf.TensorSpec([BATCH, 48, 48, 3], tf.float32),
            tf.TensorSpec([BATCH], tf.int64),
        ]
    )
    def train_step(self, x, y):
        with tf.GradientTape() as tape:
            outputs = self.model(x, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
            loss = tf.reduce_mean(losses)
        self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables))
        return loss

    @tf.function(input_signature=[tf.TensorSpec([None, 48, 48, 3], tf.float32)])
    def serve(self, x):
        return {"scores": self.model(x, training=False)}


def batch() -> tuple[tf.Tensor, tf.Tensor]:
    x, y = images(BATCH)
    return tf.constant(x), tf.constant(y, tf.int64)


def steps(function, count: int = 10) -> list[float]:
    return [float(function(*batch())) for _ in range(count)]


def in_use() -> int:
    gc.collect()
    return tfswap.memory_stats()["bytes_in_use"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Train under a budget and save with the plan; return the model's unswapped results."""
    deterministic()
    before = in_use()
    trainer = Trainer()
    tfswap.reset_memory_stats()
    steps(trainer.train_step, 3)
    whole = tfswap.memory_stats()["peak_bytes"] - before
    trainer = Trainer()
    budget = in_use() + int(0.6 * whole) + MIB
    with tfswap.Session(budget=budget, policy="greedy", verbose=0) as session:
        steps(trainer.train_step, 16)
        report = session.reports["train_step"]
    assert report["outcome"] == "swapped"
    path = tmp_path_factory.mktemp("models") / "trainer"
    tfswap.saved_model.save(
        trainer, path, plan=report["plan"], signatures={"serving_default": trainer.serve}
    )
    scores = trainer.serve(batch()[0])["scores"].numpy()
    return path, whole, steps(trainer.train_step), scores


def test_training_resumes_with_its_plan_at_once(saved):
    path, whole, losses, _ = saved
    budget = in_use() + int(0.62 * whole) + 2 * MIB
    loaded = tfswap.saved_model.load(path, budget=budget, verbose=0)
    tfswap.reset_memory_stats()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tfswap.training.executor.Executor, "_plan_recorded", lambda *_: pytest.fail("!")
        )
        assert steps(loaded.train_step) == losses
    assert tfswap.memory_stats()["peak_bytes"] <= budget
    assert tfswap.memory_stats()["bytes_out"] > 0
    planned = [r for r in tfswap.status()["functions"] if r["outcome"] == "planned"]
    assert any("restored_function_body" in record["function"] for record in planned)


def test_tensorflows_own_load_applies_the_plan(saved):
    path, _, losses, scores = saved
    loaded = tf.saved_model.load(os.fspath(path))
    served = loaded.signatures["serving_default"](x=batch()[0])
    assert np.array_equal(served["scores"].numpy(), scores)
    budget = json.loads((path / ASSET).read_text())["options"]["budget"]
    assert tfswap.memory_stats()["budget_bytes"] == budget


_FRESH = """
    import sys
    sys.path[:] = [entry for entry in sys.path if entry not in ("", {root!r})]
    if {swapped}:
        sys.path.insert(0, {root!r})
        import tfswap
    import json, numpy as np, tensorflow as tf
    tf.config.experimental.enable_op_determinism()
    assert ("tfswap" in sys.modules) == {swapped}
    loaded = tf.saved_model.load({path!r})
    data = np.load({data!r})
    x, y = tf.constant(data["x"]), tf.constant(data["y"])
    scores = loaded.signatures["serving_default"](x=x)["scores"].numpy()
    np.save({out!r}, scores)
    found = {{"losses": [float(loaded.train_step(x, y)) for _ in range(6)]}}
    if {swapped}:
        found["memory"] = tfswap.memory_stats()
    print(json.dumps(found))
"""


def in_a_fresh_process(saved, folder: Path, swapped: bool) -> dict:
    """Load the model by TensorFlow's own function; return losses, scores and memory counts."""
    x, y = batch()
    np.savez(folder / "data.npz", x=x.numpy(), y=y.numpy())
    script = textwrap.dedent(_FRESH).format(
        root=os.fspath(Path(__file__).resolve().parents[2]),
        swapped=swapped,
        path=os.fspath(saved[0]),
        data=os.fspath(folder / "data.npz"),
        out=os.fspath(folder / "scores.npy"),
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path(), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "scores": np.load(folder / "scores.npy")}


def test_without_tfswap_the_model_is_like_any_other(saved, tmp_path):
    _, _, losses, scores = saved
    found = in_a_fresh_process(saved, tmp_path, swapped=False)
    assert found["losses"] == losses[:6]
    assert np.array_equal(found["scores"], scores)


def test_in_another_process_it_keeps_its_budget(saved, tmp_path):
    path, _, losses, scores = saved
    found = in_a_fresh_process(saved, tmp_path, swapped=True)
    assert found["losses"] == losses[:6]
    assert np.array_equal(found["scores"], scores)
    budget = json.loads((path / ASSET).read_text())["options"]["budget"]
    assert found["memory"]["peak_bytes"] <= found["memory"]["budget_bytes"] == budget
    assert found["memory"]["bytes_out"] > 0


def test_the_plan_applies_to_serving_calls(saved):
    from tensorflow.core.protobuf import config_pb2, saved_model_pb2

    model = saved_model_pb2.SavedModel()
    model.ParseFromString((saved[0] / "saved_model.pb").read_bytes())
    library = model.meta_graphs[0].graph_def.library
    calls = [n for f in library.function for n in f.node_def if n.op.endswith("PartitionedCall")]
    assert calls
    for node in calls:
        config = config_pb2.ConfigProto.FromString(node.attr["config_proto"].s)
        (optimizer,) = config.graph_options.rewrite_options.custom_optimizers
        assert optimizer.name == "tfswap"
        assert json.loads(optimizer.parameter_map["plan"].s)["functions"]


def test_a_keras_model_is_exported(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    tfswap.saved_model.save(model, tmp_path / "model", budget="1GiB")
    x = np.ones((3, 4), np.float32)
    loaded = tfswap.saved_model.load(tmp_path / "model", verbose=0)
    assert np.array_equal(loaded.serve(x).numpy(), model(x).numpy())
    assert tfswap.memory_stats()["budget_bytes"] == 1 << 30


def test_bad_options_save_nothing(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(
        ValueError, match="cannot store the option 'spill_dir'; it stores budget, policy"
    ):
        tfswap.saved_model.save(model, tmp_path / "model", spill_dir="/")
    with pytest.raises(ValueError, match="budget"):
        tfswap.saved_model.save(model, tmp_path / "model", budget="lots")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "does not have the format"),
        (
            '{"format": "tfswap saved model 1", "options": {"spill_dir": "/"}}',
            "options that a saved model cannot store",
        ),
        ('{"format": "tfswap saved model 1", "options": {}, "plan": {"version": 9}}', "version 9"),
    ],
)
def test_a_corrupt_plan_is_refused_and_the_model_runs_without(tmp_path, text, message):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    tfswap.saved_model.save(model, tmp_path / "model", budget="1GiB")
    (tmp_path / "model" / ASSET).write_text(text)
    with pytest.raises(ValueError, match=message):
        tfswap.saved_model.load(tmp_path / "model")
    with pytest.warns(UserWarning, match="the model runs without its plan"):
        loaded = tf.saved_model.load(os.fspath(tmp_path / "model"))
    x = np.ones((3, 4), np.float32)
    assert np.array_equal(loaded.serve(x).numpy(), model(x).numpy())
