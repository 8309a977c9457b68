"""Trainings with known results in their own process, with and without swaps.

They multiply by the identity matrix, as in `test_bytes`.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TRAINING = """
import ctypes, json, sys, warnings
import keras, numpy as np, tensorflow as tf, tfswap
from tfswap.machine.nvcomp import find_nvcomp

TENSORS = 9
tf.config.experimental.enable_tensor_float_32_execution(False)  # which would round
options = json.loads(sys.argv[1])
fault = options.pop("fault", "")  # of the simulated nvCOMP, once there is a plan
if options.pop("with_blosc", False):
    from tfswap.machine import codecs
    codecs.why_not = lambda *codec: ""

class Bytes(keras.Model):
    def train_step(self, data):
        x, identity = data[0], tf.eye(32)
        hosts, there, same = [], [], []
        for i in range(TENSORS):
            with tf.device("CPU:0"), tf.control_dependencies(there[-1:]):
                hosts.append(x * float(i + 1))
            with tf.device("GPU:0"):
                there.append(tf.matmul(hosts[-1], identity))
        for host, product in zip(reversed(hosts), reversed(there)):
            with tf.device("GPU:0"), tf.control_dependencies([there[-1], *same[-1:]]):
                back = tf.matmul(product, identity)
            with tf.device("CPU:0"):
                same.append(tf.reduce_sum(back[::1000]) + tf.cast(
                    tf.reduce_sum(tf.cast(tf.not_equal(back, host), tf.int32)), tf.float32))
        with tf.device("CPU:0"):
            return {"loss": tf.add_n(same)}

losses, synced = [], []
class Losses(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        losses.append(float(logs["loss"]).hex())
        if fault and len(losses) == 8:
            ctypes.CDLL(find_nvcomp()).fake_nvcomp_fault(fault.encode())

inputs = keras.Input((32,))
model = Bytes(inputs, inputs)
model.compile(loss="mse", jit_compile=False)
batch = 8 * 1024
dice = np.random.default_rng(0)
x = np.where(dice.random((2 * batch, 32)) < 0.75, 0, dice.random((2 * batch, 32))).astype("f4")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(batch)
swap = tfswap.AutoSwap(verbose=0, slab=False, **options) if options else None
callbacks = [swap, Losses()] if swap else [Losses()]
error, warned = "", []
warnings.showwarning = lambda message, *others: warned.append(str(message))
try:
    model.fit(data, epochs=6, verbose=0, callbacks=callbacks)
except Exception as raised:
    if not fault:
        raise
    error = str(raised)
told = {"losses": losses, "error": error, "warnings": warned, "stats": tfswap.memory_stats("GPU:0")}
if swap:
    report = swap.report
    told |= {"outcome": report.outcome, "notes": report.notes, "budget": report.budget_bytes,
             "tiers": {each.name: [each.bytes_out, each.kept_bytes_out] for each in report.tiers},
             "codecs": sorted({each.codec for f in report.plan.functions for each in f.swaps})
                       if report.plan else [],
             "planned": sorted({each.tier for f in report.plan.functions for each in f.swaps})
                        if report.plan else []}
print(json.dumps(told))
"""


def ran(program: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Return the JSON in the last line that a program prints."""
    process = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=Path(__file__).parent,
        env={**os.environ, "FAKE_CUDA_GEMM": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answer


@functools.cache
def unswapped() -> dict[str, Any]:
    """Return its output without tfswap."""
    return ran(TRAINING, "{}")


def trained(environment: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
    """Return the output of a swapped training, after checks that hold for every codec."""
    told = ran(TRAINING, json.dumps({"budget": "8MiB", **options}), **(environment or {}))
    assert told["losses"] == unswapped()["losses"]  # bit for bit
    assert told["outcome"] == "swapped", told["notes"]
    assert told["stats"]["peak_bytes"] <= told["budget"]
    assert told["stats"]["far_buffers"] == told["stats"]["host_bytes_in_use"] == 0
    return told
