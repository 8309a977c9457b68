"""Trainings on several devices and in several processes: equal losses, a budget for each device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.python_path import python_path

_HERE = Path(__file__).resolve().parent

MIRRORED = """
import gc, json, sys
sys.path.insert(0, sys.argv[1])
import tfswap, tensorflow as tf, keras
from models import compiled, convolutions, images

tf.config.experimental.enable_op_determinism()
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
devices = ["CPU:0", "CPU:1"]

class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []
    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))

def train(*callbacks):
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    gc.collect()
    for device in devices:
        tfswap.reset_memory_stats(device)
    with tf.distribute.MirroredStrategy(devices).scope():
        model = compiled(convolutions())
    x, y = images(256)
    losses = Losses()
    callbacks = [*callbacks, losses]
    model.fit(x, y, batch_size=64, epochs=5, shuffle=False, verbose=0, callbacks=callbacks)
    stats = [tfswap.memory_stats(device) for device in devices]
    return losses.losses, [each["peak_bytes"] for each in stats]

expected, peaks = train()
again, _ = train()
budgets = {device: int(part * max(peaks)) for device, part in zip(devices, (0.65, 0.7))}
swap = tfswap.AutoSwap(budget=budgets, verbose=0)
found, swapped_peaks = train(swap)
swaps = swap.report.plan.functions[-1].swaps if swap.report.plan else ()
print(json.dumps({
    "repeats": expected == again,
    "same": found == expected,
    "outcome": swap.report.outcome,
    "budgets": list(budgets.values()),
    "peaks": swapped_peaks,
    "devices": sorted({each.device for each in swaps}),
    "left": [tfswap.memory_stats(device)["budget_bytes"] for device in devices],
}))
"""

# Keras's own `fit` does not run under this strategy: use a custom loop.
WORKER = """
import json, sys
sys.path.insert(0, sys.argv[1])
budget = int(sys.argv[2])
import tfswap, tensorflow as tf, keras
from models import convolutions, images

tf.config.experimental.enable_op_determinism()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(7)
tfswap.reset_memory_stats()
with strategy.scope():
    model = convolutions()
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
batch = 64
data = tf.data.Dataset.from_tensor_slices(images(128)).batch(batch)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
batches = strategy.experimental_distribute_dataset(data.with_options(options))

@tf.function
def train_step(x, y):
    def on_a_replica(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) / batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss
    return strategy.reduce("SUM", strategy.run(on_a_replica, args=(x, y)), axis=None)

def train():
    return [float(train_step(x, y)) for _ in range(10) for x, y in batches]

found = {"outcome": "", "left": None}
if budget:
    with tfswap.Session(budget=budget, verbose=0) as session:
        found["losses"] = train()
    found["outcome"] = session.reports["train_step"].outcome
else:
    found["losses"] = train()
stats = tfswap.memory_stats()
found.update(peak=stats["peak_bytes"], out=stats["bytes_out"], left=stats["budget_bytes"])
print(json.dumps(found))
"""


def start(script: str, *arguments: Any, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, os.fspath(_HERE), *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, error = process.communicate(timeout=280)
    assert process.returncode == 0, error[-3000:]
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_plan_for_each_replica_of_a_mirrored_strategy():
    found = answer(start(MIRRORED))
    assert found["repeats"] and found["same"]
    assert found["outcome"] == "swapped"
    assert all(p <= b for p, b in zip(found["peaks"], found["budgets"], strict=True))
    assert len(found["devices"]) == 2 and "" in found["devices"]
    assert found["left"] == [None, None]


def in_two_processes(budget: int) -> list[dict[str, Any]]:
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    workers = [f"127.0.0.1:{port}" for port in ports]
    started = [
        start(
            WORKER,
            budget,
            TF_CONFIG=json.dumps(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            ),
        )
        for index in range(2)
    ]
    return [answer(process) for process in started]


@pytest.mark.slow
def test_two_workers_of_a_multi_worker_strategy():
    unswapped = in_two_processes(0)
    again = in_two_processes(0)
    assert unswapped[0]["losses"] == again[0]["losses"]
    budget = int(0.7 * max(worker["peak"] for worker in unswapped))
    swapped = in_two_processes(budget)
    for worker, before in zip(swapped, unswapped, strict=True):
        assert worker["losses"] == before["losses"]
        assert worker["peak"] <= budget
        assert worker["outcome"] == "swapped" and worker["out"] > 0
        assert worker["left"] is None


MEETING = """
import contextlib, json, os, sys
sys.path.insert(0, sys.argv[1])
import tfswap, tensorflow as tf
from tfswap.ops import library
from tfswap.plan.schema import SwapPlan
from planned_functions import fingerprint, plan_of, run

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weights = tf.Variable(tf.ones([4, 4]))

@tf.function
def step(x):
    def of_replica(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(weights, x))
        context = tf.distribute.get_replica_context()
        weights.assign_sub(context.all_reduce("sum", tape.gradient(loss, weights)))
        return loss
    return strategy.run(of_replica, args=(x,))

lib = library.load()
x = tf.ones([4, 4])
name, graph = fingerprint(lib, step, x)
first, second = (node.name for node in graph.nodes.values() if node.op == "CollectiveReduceV2")
before = next(iter(graph.nodes[second].inputs))[0]
outcomes = []
for order in ((first, second), (second, first), (first, before)):
    _, record = run(lib, plan_of(name, order=(order,)), step, x)
    outcomes.append([record["outcome"], record["reason"]])
print(json.dumps(outcomes))
"""


def test_a_plan_that_would_deadlock_replicas_is_refused() -> None:
    """The replicas' all-reduces wait for each other, which no edge shows."""
    command = [sys.executable, "-c", MEETING, str(_HERE)]
    environment = {**os.environ, "PYTHONPATH": python_path(_HERE.parents[1])}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for outcome, reason in json.loads(done.stdout.splitlines()[-1]):
        assert outcome == "refused" and "deadlock" in reason
