"""`AutoSwap` on a GPU without arithmetic, whose results are meaningless: budgets and plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")

# One training per process: kernels compute nothing, and TensorFlow would read shapes from memory
# that an earlier training has written.
TRAINING = """
import ctypes, json, os, sys
import keras, numpy as np, tensorflow as tf, tfswap
device_mib = int(os.environ.get("DEVICE_MIB", 0))
if device_mib:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("GPU")[0],
        [tf.config.LogicalDeviceConfiguration(memory_limit=device_mib)])
    with tf.device("GPU:0"):  # what stays is scattered: the longest free range has some 16 MiB
        kib = (8 << 10, 64) * (device_mib // 9 - 1)
        pieces = [tf.zeros([size << 8]) for size in kib]
    del pieces[::2]
layer = inputs = keras.Input((256,))
for _ in range(10):
    layer = keras.layers.Dense(256, activation="relu")(layer)
model = keras.Model(inputs, keras.layers.Dense(4)(layer))
model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=False)
x = np.random.default_rng(0).random((16384, 256), dtype=np.float32)
sections = int(sys.argv[3]) if len(sys.argv) > 3 else None
swap = tfswap.AutoSwap(budget=sys.argv[1], sections=sections) if len(sys.argv) > 1 else None
driver = ctypes.CDLL("libcuda.so.1")
fake = hasattr(driver, "fake_cuda_pinned_bytes")
class Waits(keras.callbacks.Callback):
    counts = []
    def on_train_batch_end(self, batch, logs=None):
        if fake:
            self.counts.append(driver.fake_cuda_synchronizations())
callbacks = [swap, Waits()] if swap else [Waits()]
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 6
model.fit(x, x[:, :4], batch_size=8192, epochs=epochs, verbose=0, callbacks=callbacks)
stats = tfswap.memory_stats("GPU:0")
stats["waits_for_gpu"] = np.diff(Waits.counts).tolist()
if fake:
    stats["pinned_by_tensorflow"] = driver.fake_cuda_pinned_bytes()
report = {} if swap is None else swap.report
shown = ("outcome", "budget_bytes", "measured_peak_bytes", "notes", "predicted_peak_bytes",
         "swapped_buffers", "bytes_out_per_step", "corrections", "sections")
print(json.dumps({**stats, "report": {key: report[key] for key in shown if swap}}))
"""


def trained(*arguments: str, **environment: str) -> tuple[dict, str]:
    """Return the device's memory and the report afterwards, and the messages.

    Arguments: the budget (without it there is no callback), epochs, sections. DEVICE_MIB in the
    environment: the size of a fragmented device.
    """
    ran = subprocess.run(
        [sys.executable, "-c", TRAINING, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if ran.returncode != 0:
        return {}, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1]), ran.stderr


@pytest.fixture(scope="module")
def stock() -> dict:
    return trained()[0]


@pytest.fixture(scope="module")
def unswapped(stock: dict) -> int:
    return stock["peak_bytes"]


@pytest.mark.parametrize("part", [pytest.param(0.65, marks=pytest.mark.slow), 0.5])
def test_a_plan_keeps_a_hard_budget_and_predicts_the_peak(
    stock: dict, unswapped: int, part: float
) -> None:
    budget = int(part * unswapped)
    stats, said = trained(str(budget))
    report = stats["report"]
    assert stats["peak_bytes"] <= budget and report["measured_peak_bytes"] <= budget
    assert report["outcome"] == "swapped"
    assert report["swapped_buffers"] > 0 and report["bytes_out_per_step"] > 0
    # The host's order is the same in each step, so the first plan is correct.
    assert report["predicted_peak_bytes"] <= budget and report["corrections"] <= 1
    assert stats["copies_out"] > 0 and stats["copies_in"] > 0
    assert stats["budget_bytes"] is None and stats["far_buffers"] == 0
    # Addresses are planned too, if they fit; the slab's block is released at the end.
    without = [note for note in report["notes"] if note.startswith("addresses are not planned")]
    assert stats["slab_hits"] > 4 * stats["slab_taken"] or without
    assert stats["slab_bytes"] == 0
    # With a plan, the host waits for the GPU no more often than TensorFlow makes it wait.
    assert stats["waits_for_gpu"][-2:] == stock["waits_for_gpu"][-2:]
    assert not said.strip() or "Warning" not in said


def test_a_fragmented_device_hardly_larger_than_the_budget_is_enough(unswapped: int) -> None:
    budget = int(0.6 * unswapped)
    stats, said = trained(str(budget), "10", DEVICE_MIB=str(round(1.05 * budget / MIB)))
    assert stats, said[-2000:]
    assert stats["report"]["outcome"] == "swapped"
    assert stats["peak_bytes"] <= budget


def test_on_demand_swaps_keep_the_budget_without_a_plan(unswapped: int) -> None:
    stats, _ = trained(str(int(0.5 * unswapped)), "1")  # one epoch: too short for a plan
    assert "training ended before the plan was settled" in stats["report"]["notes"]
    assert 0 < stats["copies_out"] and stats["peak_bytes"] <= 0.5 * unswapped


@pytest.mark.skipif(os.environ.get("TEST_GPU") == "real", reason="knows the fake GPU's memory")
def test_a_budget_may_be_a_part_of_the_gpu(unswapped: int) -> None:
    stats, _ = trained("50%")
    # TensorFlow leaves a part of the GPU's 4 GiB to the system.
    assert 1 << 30 < stats["report"]["budget_bytes"] < 2 << 30
    assert stats["copies_out"] == 0


def test_batches_for_the_gpu_are_made_in_pinned_memory(stock: dict) -> None:
    pinned = stock.get("pinned_by_tensorflow")
    if pinned is None:
        pytest.skip("only the fake GPU counts what is pinned")
    assert pinned > 0


@pytest.mark.parametrize("budget", ["40.0 MiB", pytest.param("1.0 MiB", marks=pytest.mark.slow)])
def test_a_budget_that_cannot_be_met_is_reported(budget: str) -> None:
    _, said = trained(budget)
    assert f"the memory budget of {budget} is exceeded" in said
    assert "or more, the least with room for this op" in said


def test_sections_need_a_part_of_the_memory(unswapped: int) -> None:
    budget = int(0.35 * unswapped)
    stats, said = trained(str(budget), "6", "8")
    assert stats, said[-2000:]
    assert stats["report"]["sections"] == 8
    assert stats["peak_bytes"] <= budget
