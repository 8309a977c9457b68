"""Steps that only move bytes, for tests that compare every byte."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import tensorflow as tf

import tfswap
from tests.copy_ops import copy_from_host, copy_to_host

MIB = 1 << 20


def host_values(mib: float, zeros: float = 0.0) -> tf.Tensor:
    """Return random values, of which a part is zero."""
    dice = np.random.default_rng(0)
    values = 1 + dice.random(int(mib * MIB) // 4, dtype=np.float32)
    values[dice.random(values.size, dtype=np.float32) < zeros] = 0
    with tf.device("CPU:0"):
        return tf.constant(values)


def swapped_and_compared(
    devices: list[str],
    count: int,
    lazy: bool,
    then: str = "",
    codec: str = "",
    tier: str = "",
) -> Any:
    """Return a step that swaps tensors out on each device and in again, and compares them.

    The tensors are multiples of its first argument, beginning with the second argument plus 1. If
    `then` is given, the tensors are copied to that device and swapped there too, before they are
    compared. `codec` and `tier` are those of the swaps.
    """

    def there_and_back(device: str, values: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            there = copy_to_host(tf.identity(values), codec=codec, tier=tier)
            return copy_from_host(there, values.dtype)

    @tf.function
    def step(x: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
        same = []
        for device in devices:
            sent, last = [], []
            for i in range(count):
                with tf.device("CPU:0"), tf.control_dependencies(last):
                    host = x * tf.cast(k + float(i + 1), x.dtype)
                with tf.device(device):
                    sending = tf.identity(host)
                    handle = copy_to_host(
                        sending, lazy=lazy, next_use=count - i, codec=codec, tier=tier
                    )
                sent.append((host, handle))
                last = [handle]
            for host, handle in reversed(sent):
                with tf.device(device):
                    with tf.control_dependencies(last):
                        back = copy_from_host(tf.identity(handle), x.dtype)
                    back = tf.identity(back)
                if then:
                    back = there_and_back(then, back)
                with tf.device("CPU:0"):
                    same.append(tf.reduce_all(tf.equal(tf.identity(back), host)))
                last = [same[-1]]
        with tf.device("CPU:0"):
            return tf.reduce_all(tf.stack(same))

    return step


def settled(device: str = "GPU:0") -> dict[str, int]:
    """Return the statistics after the GPU has reported everything."""
    with tf.device(device):
        tf.identity(tf.constant(1.0)).numpy()
    return tfswap.memory_stats(device)


def synchronizations(codec: str, tier: str = "") -> int:
    """Return how often the host waits for the simulated GPU in a second step with such swaps."""
    waits = ctypes.CDLL("libcuda.so.1").fake_cuda_synchronizations
    x = host_values(0.25, zeros=0.6)
    step = swapped_and_compared(["GPU:0"], 4, lazy=False, codec=codec, tier=tier)
    assert step(x, tf.constant(0.0))
    before = waits()
    assert step(x, tf.constant(1.0))
    return int(waits() - before)
