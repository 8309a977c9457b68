"""Convolutions on the simulated GPU: TensorFlow's path to cuDNN, its workspaces, and swaps.

That GPU computes products only, so there are no activations, biases and updates, and no padding of
one side alone, for which TensorFlow has a kernel.
"""

from __future__ import annotations

import json
import os

import pytest
import tensorflow as tf
from trainings import ran

pytestmark = [
    pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`"),
    pytest.mark.skipif(os.environ.get("TEST_GPU") == "real", reason="asks the simulated GPU"),
]

# The sizes of images and filters, the groups of channels, stride, padding, dilation.
CASES = {
    "valid": ((9, 8), (3, 3), 1, 1, "VALID", 1),
    "same": ((9, 8), (3, 5), 1, 1, "SAME", 1),
    "strided": ((9, 11), (3, 3), 1, 2, "SAME", 1),
    "strided one way": ((9, 8), (2, 3), 1, (1, 2), "VALID", 1),
    "dilated": ((9, 8), (3, 2), 1, 1, "VALID", (1, 2)),
    "in groups": ((9, 8), (3, 3), 2, 1, "SAME", 1),
}

# Prints the largest error of each convolution and of its gradients, relative to the largest value.
ERRORS = """
import json, sys, numpy as np, tensorflow as tf

layout, cases = sys.argv[1], json.loads(sys.argv[2])
# Makes TensorFlow compute in NHWC on such a GPU, otherwise in NCHW.
tf.config.experimental.enable_tensor_float_32_execution(layout == "NHWC")
there, back = ((0, 3, 1, 2), (0, 2, 3, 1)) if layout == "NCHW" else ((0, 1, 2, 3),) * 2
dice = np.random.default_rng(0)

def some(*shape):
    return dice.random(shape, dtype="f4") - 0.5

def convolution(x, w, layout, stride, padding, dilation):
    return tf.nn.conv2d(x, w, stride, padding, layout, dilation)

def results(device, x, w, seed, *how):
    with tf.device(device), tf.GradientTape() as tape:
        x, w = tf.constant(x), tf.constant(w)
        tape.watch([x, w])
        y = convolution(x, w, *how)
        assert y.device.endswith(device)
        return [each.numpy() for each in (y, *tape.gradient(y, [x, w], tf.constant(seed)))]

errors = {}
for name, (size, filters, groups, *how) in cases.items():
    x, w = some(2, *size, 4), some(*filters, 4 // groups, 6)
    with tf.device("CPU:0"):
        seed = some(*convolution(x[..., :1], w[:, :, :1, :1], "NHWC", *how).shape[:3], 6)
    # The CPU has no gradients of groups.
    parts = [results("CPU:0", *each, "NHWC", *how) for each in zip(
        np.split(x, groups, -1), np.split(w, groups, -1), np.split(seed, groups, -1))]
    wanted = [np.concatenate(each, -1) for each in zip(*parts)]
    y, dx, dw = results("GPU:0", x.transpose(there), w, seed.transpose(there), layout, *how)
    got = [y.transpose(back), dx.transpose(back), dw]
    errors[name] = max(float(abs(a - b).max() / abs(a).max()) for a, b in zip(wanted, got))
print(json.dumps(errors))
"""

# Trains a chain of convolutions without a budget, then within a part of that peak.
TRAINING = """
import ctypes, hashlib, json, numpy as np, tensorflow as tf, tfswap

tf.config.experimental.enable_tensor_float_32_execution(False)  # it computes in NCHW
workspace_bytes = ctypes.CDLL("libcuda.so.1").fake_cudnn_workspace_bytes
workspace_bytes.restype = ctypes.c_int64
dice = np.random.default_rng(0)
with tf.device("CPU:0"):
    x, seed = (tf.constant(dice.random((8, 2, 128, 64), dtype="f4") - 0.5) for _ in range(2))
with tf.device("GPU:0"):
    filters = [tf.Variable(dice.random((3, 3, 2, 2), dtype="f4") - 0.5) for _ in range(12)]

def gradients(x, seed):
    with tf.device("GPU:0"):
        with tf.GradientTape() as tape:
            y = x
            for each in filters:
                y = tf.nn.conv2d(y, each, 1, "SAME", "NCHW")
        return tape.gradient(y, filters, seed)

def steps(step, count):
    seen = []
    for _ in range(count):
        before = workspace_bytes()
        bytes_of_all = b"".join(each.numpy().tobytes() for each in step(x, seed))
        seen.append({"gradients": hashlib.sha256(bytes_of_all).hexdigest(),
                     "workspaces": workspace_bytes() - before,
                     **tfswap.memory_stats("GPU:0")})
    return seen

unswapped = tf.function(gradients)
steps(unswapped, 1)  # TensorFlow tries the algorithms, with memory of its own
tfswap.reset_memory_stats("GPU:0")
told = {"unswapped": steps(unswapped, 2)}
budget = int(0.6 * told["unswapped"][-1]["peak_bytes"])
swapped = tfswap.swap(tf.function(gradients), budget=budget, verbose=0)
tfswap.reset_memory_stats("GPU:0")
told |= {"budget": budget, "swapped": steps(swapped, 8), "outcome": swapped.report.outcome}
print(json.dumps(told))
"""


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_convolutions_and_their_gradients_are_those_of_the_cpu(layout: str) -> None:
    errors = ran(ERRORS, layout, json.dumps(CASES))
    assert errors.keys() == CASES.keys()
    assert {name: error for name, error in errors.items() if not error < 1e-5} == {}


def test_convolutions_within_a_budget_have_the_same_gradients() -> None:
    told = ran(TRAINING)
    first, swapped = told["unswapped"][0], told["swapped"]
    assert {each["gradients"] for each in (*told["unswapped"], *swapped)} == {first["gradients"]}
    # No convolution went without its workspace.
    assert first["workspaces"] > 11 << 20
    assert {each["workspaces"] for each in swapped} == {first["workspaces"]}
    assert swapped[-1]["peak_bytes"] <= told["budget"]
    # The first step swaps on demand; at the end there is a plan.
    assert swapped[0]["waits"] > 0
    assert min(swapped[0]["bytes_out"], swapped[0]["bytes_in"]) > 2 << 20
    assert told["outcome"] == "swapped"
    assert swapped[-1]["copies_out"] > swapped[-2]["copies_out"]
