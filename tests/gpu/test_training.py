"""`AutoSwap` on a GPU device: a card without arithmetic trains to nothing, but in its budget."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tensorflow as tf

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")

# One training a process: what a kernel did not write is there in the next one, and TensorFlow takes
# some of it for shapes.
TRAINING = """
import json, sys, warnings
import keras, numpy as np, tfswap
layer = inputs = keras.Input((256,))
for _ in range(10):
    layer = keras.layers.Dense(256, activation="relu")(layer)
model = keras.Model(inputs, keras.layers.Dense(4)(layer))
model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=False)
x = np.random.default_rng(0).random((16384, 256), dtype=np.float32)
swap = tfswap.AutoSwap(budget=sys.argv[1]) if len(sys.argv) > 1 else None
model.fit(x, x[:, :4], batch_size=8192, epochs=4, verbose=0, callbacks=[swap] if swap else [])
stats = tfswap.memory_stats("GPU:0")
report = {} if swap is None else swap.report
shown = ("outcome", "budget_bytes", "measured_peak_bytes", "notes")
print(json.dumps({**stats, "report": {key: report[key] for key in shown if swap}}))
"""


def trained(*budget: str) -> tuple[dict, str]:
    """The device's memory and the report afterwards, and what was said on the way."""
    ran = subprocess.run(
        [sys.executable, "-c", TRAINING, *budget], capture_output=True, text=True, timeout=300
    )
    if ran.returncode != 0:
        return {}, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1]), ran.stderr


@pytest.fixture(scope="module")
def unswapped() -> int:
    return trained()[0]["peak_bytes"]


def test_a_training_keeps_a_hard_budget(unswapped: int) -> None:
    budget = int(0.6 * unswapped)
    stats, said = trained(str(budget))
    assert stats["peak_bytes"] <= budget
    assert stats["report"]["outcome"] == "bootstrap"
    assert stats["report"]["measured_peak_bytes"] <= budget
    assert stats["copies_out"] > 0 and stats["copies_in"] > 0
    assert stats["budget_bytes"] is None and stats["far_buffers"] == 0
    assert "Plans for GPUs are not made yet" in said


def test_a_budget_may_be_a_part_of_the_card(unswapped: int) -> None:
    stats, _ = trained("50%")
    # TensorFlow leaves a part of the card's 4 GiB to the system.
    assert 1 << 30 < stats["report"]["budget_bytes"] < 2 << 30
    assert stats["copies_out"] == 0


def test_a_budget_that_cannot_be_met_says_so() -> None:
    _, said = trained("40MiB")
    assert "the memory budget of 40.0 MiB is exceeded" in said
    assert "The smallest budget that could work is" in said
