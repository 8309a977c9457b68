"""Steps that only move bytes, for tests that compare each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfswap.ops.copy import copy_from_host, copy_to_host

MIB = 1 << 20


def host_values(mib: int) -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.constant(np.random.default_rng(0).random(mib * MIB // 4, dtype=np.float32))


def swapped_and_compared(devices: list[str], count: int, lazy: bool, then: str = "") -> Any:
    """A step that sends tensors to each of the devices and to far memory, then gets them all back.

    `then` is a device that those that came back are copied to, and swapped on, before they are
    compared.
    """

    def there_and_back(device: str, values: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return copy_from_host(copy_to_host(tf.identity(values)), tf.float32)

    @tf.function
    def step(x: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
        same = []
        for device in devices:
            sent, last = [], []
            for i in range(count):
                with tf.device("CPU:0"), tf.control_dependencies(last):
                    host = x + (k + float(i))
                with tf.device(device):
                    handle = copy_to_host(tf.identity(host), lazy=lazy, next_use=count - i)
                sent.append((host, handle))
                last = [handle]
            for host, handle in reversed(sent):
                with tf.device(device):
                    with tf.control_dependencies(last):
                        back = copy_from_host(tf.identity(handle), tf.float32)
                    back = tf.identity(back)
                if then:
                    back = there_and_back(then, back)
                with tf.device("CPU:0"):
                    same.append(tf.reduce_all(tf.equal(tf.identity(back), host)))
                last = [same[-1]]
        with tf.device("CPU:0"):
            return tf.reduce_all(tf.stack(same))

    return step
