"""A training with correct results on the simulated GPU, which computes products only.

Each step sends tensors to the GPU and multiplies each by the identity matrix. Much later it
multiplies the products again, in reverse order. The host compares the results with what it sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")

TRAINING = """
import json, sys
import keras, numpy as np, tensorflow as tf, tfswap

TENSORS = 12
tf.config.experimental.enable_tensor_float_32_execution(False)  # which would round

class Bytes(keras.Model):
    def train_step(self, data):
        x, identity = data[0], tf.eye(32)
        hosts, there, same = [], [], []
        for i in range(TENSORS):
            with tf.device("CPU:0"), tf.control_dependencies(there[-1:]):
                hosts.append(x + float(i))
            with tf.device("GPU:0"):
                there.append(tf.matmul(hosts[-1], identity))
        for host, product in zip(reversed(hosts), reversed(there)):
            with tf.device("GPU:0"), tf.control_dependencies([there[-1], *same[-1:]]):
                back = tf.matmul(product, identity)
            with tf.device("CPU:0"):
                same.append(tf.reduce_all(tf.equal(back, host)))
        with tf.device("CPU:0"):
            return {"loss": 1.0 - tf.cast(tf.reduce_all(tf.stack(same)), tf.float32)}

class Peaks(keras.callbacks.Callback):
    losses, stats = [], []
    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        self.stats.append(tfswap.memory_stats("GPU:0"))

inputs = keras.Input((32,))
model = Bytes(inputs, inputs)
model.compile(loss="mse", jit_compile=False)
batch = 32 * 1024
x = np.random.default_rng(0).random((2 * batch, 32), dtype=np.float32)
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(batch)
checked = sys.argv[1] == "verify"
told = {}
for name, budget, options in (
    ("planned", "33MiB", {"save_plan": sys.argv[2]}),
    ("with room for a slab", "46MiB", {"plan": sys.argv[2]}),
):
    tfswap.reset_memory_stats("GPU:0")
    swap = tfswap.AutoSwap(budget=budget, verify=checked, verbose=0, **options)
    model.fit(data, epochs=9, verbose=0, callbacks=[swap, Peaks()])
    told[name] = {"losses": Peaks.losses, "stats": Peaks.stats[-1],
                  "outcome": swap.report["outcome"], "notes": swap.report["notes"],
                  "budget": swap.report["budget_bytes"]}
    Peaks.losses = []
print(json.dumps(told))
"""


@pytest.mark.parametrize("checked", ["", pytest.param("verify", marks=pytest.mark.slow)])
def test_every_byte_comes_back_under_a_plan_and_at_planned_addresses(
    checked: str, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", TRAINING, checked, str(tmp_path / "plan.json")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "FAKE_CUDA_GEMM": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    for training in told.values():
        assert training["losses"] == [0.0] * len(training["losses"])
        assert training["outcome"] == "swapped", training["notes"]
        stats = training["stats"]
        assert stats["peak_bytes"] <= training["budget"]
        assert stats["copies_out"] > 0 and stats["copies_in"] > 0
    slab = told["with room for a slab"]
    assert slab["stats"]["slab_hits"] > 0, slab["notes"]
    assert slab["stats"]["slab_hits"] > 4 * slab["stats"]["slab_taken"]
