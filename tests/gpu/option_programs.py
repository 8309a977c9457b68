"""Programs that `test_options` runs, in separate processes, with TensorFlow's GPU options."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from swaps import host_values, swapped_and_compared

import tfswap
from tfswap.ops import library

MIB = 1 << 20


def gpu(what: str, *number: int) -> int:
    """Return a counter of the simulated GPU."""
    count = getattr(ctypes.CDLL("libcuda.so.1"), f"fake_cuda_{what}")
    count.restype = ctypes.c_int64
    return int(count(*number))


def names() -> list[str]:
    return [
        device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")
    ]


def limit(device: str) -> int:
    return library.load().memory_stats(tfswap.state.device_number(device))["memory_bytes"]


def started(devices: Iterable[str]) -> list[str]:
    """Return the devices, after an operation on each."""
    devices = list(devices)
    for device in devices:
        with tf.device(device):
            tf.identity(tf.constant(1.0)).numpy()
    return devices


def all_come_back(step: Any, mib: int = 4, steps: int = 4) -> bool:
    x = host_values(mib)
    return all(bool(step(x, tf.constant(float(k)))) for k in range(steps))


def squeezed(devices: list[str], count: int = 12) -> dict[str, dict[str, Any]]:
    """Swap tensors of 4 MiB on demand, with a budget of 18 MiB above the bytes in use."""
    step = swapped_and_compared(devices, count, lazy=True)
    assert all_come_back(step, steps=1)
    for device in devices:
        tfswap.set_budget(tfswap.memory_stats(device)["bytes_in_use"] + 18 * MIB, device)
        tfswap.reset_memory_stats(device)
    same = all_come_back(step)
    answer = {device: {**tfswap.memory_stats(device), "same": same} for device in devices}
    for device in devices:
        tfswap.set_budget(None, device)
    return answer


def runs_out(device: str, mib: int) -> str:
    """Return the error of such an allocation; "" if it succeeds."""
    try:
        with tf.device(device):
            tf.zeros([mib * MIB // 4]) + 1.0
    except tf.errors.ResourceExhaustedError as error:
        return str(error)
    return ""


def pinned_for_host_output() -> int:
    """Return the bytes that a GPU's op pins for 32 MiB of output on the host."""
    before = gpu("pinned_bytes")
    with tf.device("GPU:0"):
        tf.range(tf.constant(8 * MIB))
    return gpu("pinned_bytes") - before


def trained(budget: str, places: list[str]) -> dict[str, Any]:
    """Train a dense network of 10 layers, which are spread over the devices.

    Return each device's budget during the training and its memory afterwards, and the budget of
    AutoSwap's report.
    """
    import keras

    class Placed(keras.layers.Dense):
        place = ""

        def build(self, input_shape: Any) -> None:
            with tf.device(self.place):
                super().build(input_shape)

        def call(self, inputs: Any, training: Any = None) -> Any:
            with tf.device(self.place):
                return super().call(inputs)

    layer = inputs = keras.Input((256,))
    for i in range(10):
        dense = Placed(256, activation="relu")
        dense.place = places[i * len(places) // 10]
        layer = dense(layer)
    model = keras.Model(inputs, keras.layers.Dense(4)(layer))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=False)
    budgets: dict[str, int] = {}

    def note_budgets(batch: int, logs: Any) -> None:
        budgets.update({d: tfswap.memory_stats(d)["budget_bytes"] for d in places})

    x = np.random.default_rng(0).random((16384, 256), dtype=np.float32)
    swap = tfswap.AutoSwap(budget=budget, verbose=0)
    noting = keras.callbacks.LambdaCallback(on_train_batch_end=note_budgets)
    model.fit(x, x[:, :4], batch_size=8192, epochs=3, verbose=0, callbacks=[swap, noting])
    return {
        "budgets": budgets,
        "stats": {device: tfswap.memory_stats(device) for device in places},
        "budget_bytes": swap.report.budget_bytes,
    }


def limit_memory(*limits: list[int]) -> list[str]:
    """Create logical devices of the given sizes on each GPU."""
    for physical, sizes in zip(tf.config.list_physical_devices("GPU"), limits, strict=True):
        tf.config.set_logical_device_configuration(
            physical, [tf.config.LogicalDeviceConfiguration(memory_limit=mib) for mib in sizes]
        )
    return started(names())


def in_two_gpus() -> dict[str, Any]:
    devices = started(names())
    limits = {device: limit(device) for device in devices}
    tfswap.set_budget("50%", "GPU:1")
    budgets = {device: tfswap.memory_stats(device)["budget_bytes"] for device in devices}
    tfswap.set_budget(tfswap.memory_stats("GPU:1")["bytes_in_use"] + 4 * MIB, "GPU:1")
    said = {device: runs_out(device, 8) for device in devices}
    tfswap.set_budget(None, "GPU:1")

    with tf.device("GPU:1"):
        held = tf.identity(host_values(16))
    for device in devices:
        tfswap.reset_memory_stats(device)
    in_use = {device: tfswap.memory_stats(device)["bytes_in_use"] for device in devices}
    told = {d: tf.config.experimental.get_memory_info(d)["current"] for d in devices}
    peers = gpu("peer_copies")
    with tf.device("GPU:0"):
        moved = tf.identity(held)
    peer = {
        "copies": gpu("peer_copies") - peers,
        "device": moved.device[-5:],
        "same": bool(np.array_equal(moved.numpy(), host_values(16).numpy())),
    }
    del held, moved

    before = {device: tfswap.memory_stats(device)["copies_out"] for device in devices}
    same = all_come_back(swapped_and_compared(["GPU:0"], 3, lazy=False, then="GPU:1"))
    swaps = {d: tfswap.memory_stats(d)["copies_out"] - before[d] for d in devices}
    return {
        "names": devices,
        "limits": limits,
        "budgets": budgets,
        "said": said,
        "in_use": in_use,
        "told": told,
        "peer": peer,
        "swapped_on_both": {"same": same, "swaps": swaps},
        "squeezed": squeezed(devices),
        "pinned": pinned_for_host_output(),
    }


def in_a_growing_gpu() -> dict[str, Any]:
    """The second of two GPUs is the only visible one."""
    gpus = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[1], "GPU")
    tf.config.experimental.set_memory_growth(gpus[1], True)
    devices = started(names())
    first = [gpu("bytes_in_use", number) for number in range(2)]
    with tf.device("GPU:0"):
        held = tf.identity(host_values(64))
    grown = [gpu("bytes_in_use", number) for number in range(2)]
    del held
    return {
        "names": devices,
        "limit": limit("GPU:0"),
        "first": first,
        "grown": grown,
        "squeezed": squeezed(devices),
    }


def in_logical_devices() -> dict[str, Any]:
    """The first of two GPUs is two devices, the second one."""
    devices = limit_memory([256, 384], [48])
    halves = {}
    for device in devices:
        tfswap.set_budget("50%", device)
        halves[device] = tfswap.memory_stats(device)["budget_bytes"]
        tfswap.set_budget(None, device)
    full = {}
    for budget in ("100%", None):
        tfswap.set_budget(budget, "GPU:2")
        tfswap.reset_memory_stats("GPU:2")
        step = swapped_and_compared(["GPU:2"], 24, lazy=True)
        begun = time.monotonic()
        same = all_come_back(step, steps=1)
        full[str(budget)] = {
            "same": same,
            "seconds": time.monotonic() - begun,
            "copies_out": tfswap.memory_stats("GPU:2")["copies_out"],
        }
    return {
        "names": devices,
        "limits": {device: limit(device) for device in devices},
        "taken": [gpu("bytes_in_use", number) for number in range(2)],
        "halves": halves,
        "full": full,
        "squeezed": squeezed(devices),
    }


def in_a_part_of_the_gpu() -> dict[str, Any]:
    # TensorFlow 2 accepts these options only after a switch to version 1 behaviour and back.
    options = tf.compat.v1.GPUOptions(
        per_process_gpu_memory_fraction=0.25, force_gpu_compatible=True
    )
    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.enable_eager_execution(config=tf.compat.v1.ConfigProto(gpu_options=options))
    devices = started(names())
    tfswap.set_budget("50%", "GPU:0")
    half = tfswap.memory_stats("GPU:0")["budget_bytes"]
    return {
        "limit": limit("GPU:0"),
        "taken": gpu("bytes_in_use", 0),
        "half": half,
        "pinned": pinned_for_host_output(),
        "squeezed": squeezed(devices),
    }


def in_another_allocator() -> dict[str, Any]:
    devices = started(names())
    taken = gpu("bytes_in_use", 0)
    same = all_come_back(swapped_and_compared(devices, 6, lazy=False))
    tfswap.set_budget(tfswap.memory_stats("GPU:1")["bytes_in_use"] + 4 * MIB, "GPU:1")
    said = {device: runs_out(device, 8) for device in devices}
    tfswap.set_budget(None, "GPU:1")
    return {"taken": taken, "same": same, "said": said, "squeezed": squeezed(devices)}


def in_a_small_slice() -> dict[str, Any]:
    return {"trained": trained("10%", started(names())), "limit": limit("GPU:0")}


def in_a_training_on_two_gpus() -> dict[str, Any]:
    return trained("50%", limit_memory([160], [80]))


if __name__ == "__main__":
    print("\n" + json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
