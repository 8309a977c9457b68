"""A training whose numbers are right even on the fake card, which multiplies matrices and no more.

Each step sends tensors to the card, multiplies each by the identity matrix, and much later the
product again, last one first; the host compares what comes back with what it sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

MIB = 1 << 20

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
swap = tfswap.AutoSwap(budget=sys.argv[1], verify=sys.argv[2] == "verify", verbose=0)
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(batch)
model.fit(data, epochs=12, verbose=0, callbacks=[swap, Peaks()])
print(json.dumps({"losses": Peaks.losses, "stats": Peaks.stats, "outcome": swap.report["outcome"],
                  "notes": swap.report["notes"], "budget": swap.report["budget_bytes"]}))
"""


@pytest.mark.parametrize("checked", ["", "verify"])
def test_every_byte_comes_back_under_a_plan_and_at_planned_addresses(checked: str) -> None:
    budget = 29 * MIB  # each tensor has 4 MiB
    ran = subprocess.run(
        [sys.executable, "-c", TRAINING, str(budget), checked],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "FAKE_CUDA_GEMM": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["losses"] == [0.0] * len(told["losses"])
    assert told["outcome"] == "swapped", told["notes"]
    last = told["stats"][-1]
    assert last["peak_bytes"] <= budget
    assert last["copies_out"] > 0 and last["copies_in"] > 0
    assert last["slab_hits"] > 0, told["notes"]
    assert last["slab_taken"] == 0
