"""A training that moves bytes and computes nothing, so that a card without arithmetic is right too.

Each step sends tensors to the card, copies them there, and copies them again much later, last one
first; the host compares what comes back with what it sent. Between the copies are products of small
matrices, whose values nobody needs: they are what a step's clock goes by.
"""

from __future__ import annotations

import json
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

class Bytes(keras.Model):
    def train_step(self, data):
        x = data[0]
        hosts, there, same = [], [], []
        with tf.device("GPU:0"):
            product = x[:8, :8]
        for i in range(TENSORS):
            with tf.device("CPU:0"), tf.control_dependencies([product]):
                hosts.append(x + float(i))
            with tf.device("GPU:0"):
                there.append(tf.raw_ops.Copy(input=hosts[-1]))
                product = tf.matmul(product, there[-1][:8, :8])
        for host, copy in zip(reversed(hosts), reversed(there)):
            with tf.device("GPU:0"):
                with tf.control_dependencies([product, *same[-1:]]):
                    back = tf.raw_ops.Copy(input=copy)
                product = tf.matmul(product, back[:8, :8])
            with tf.device("CPU:0"):
                same.append(tf.reduce_all(tf.equal(back, host)))
        with tf.device("CPU:0"):
            differ = 1.0 - tf.cast(tf.reduce_all(tf.stack(same)), tf.float32)
            return {"loss": differ, "product": product[0, 0]}

class Peaks(keras.callbacks.Callback):
    losses, stats = [], []
    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        self.stats.append(tfswap.memory_stats("GPU:0"))

inputs = keras.Input((1024,))
model = Bytes(inputs, inputs)
model.compile(loss="mse", jit_compile=False)
x = np.random.default_rng(0).random((1024 * 4, 1024), dtype=np.float32)
swap = tfswap.AutoSwap(budget=sys.argv[1], verify=sys.argv[2] == "verify", verbose=0)
model.fit(x[:, :], x[:, :1], batch_size=1024, epochs=6, verbose=0, callbacks=[swap, Peaks()])
print(json.dumps({"losses": Peaks.losses, "stats": Peaks.stats, "outcome": swap.report["outcome"],
                  "notes": swap.report["notes"], "budget": swap.report["budget_bytes"]}))
"""


@pytest.mark.parametrize("checked", ["", "verify"])
def test_every_byte_comes_back_under_a_plan_and_at_planned_addresses(checked: str) -> None:
    budget = 16 * MIB + 7 * 4 * MIB  # the data, and seven of twelve tensors
    ran = subprocess.run(
        [sys.executable, "-c", TRAINING, str(budget), checked],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["losses"] == [0.0] * len(told["losses"])
    assert told["outcome"] == "swapped", told["notes"]
    last = told["stats"][-1]
    assert last["peak_bytes"] <= budget
    assert last["copies_out"] > 0 and last["copies_in"] > 0
    assert last["slab_hits"] > 0, told["notes"]
