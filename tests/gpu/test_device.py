"""The GPU device, its allocator and its copies, on a card that has streams but no arithmetic.

Run by ``make test-gpu``. What reaches the card comes from the host and goes back there, so that
each byte can be compared; the card's streams fall behind and overtake one another at random.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfswap
from tfswap.ops import library
from tfswap.ops.copy import copy_from_host, copy_to_host

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")


@pytest.fixture(autouse=True)
def device():
    lib = library.load()
    assert tf.config.list_logical_devices("GPU")
    with tf.device("GPU:0"):
        tf.identity(tf.constant(1.0)).numpy()
    yield
    lib.set_budget(tfswap.state.number_of("GPU:0"), None)
    tfswap.reset_memory_stats("GPU:0")


def host_values(mib: int) -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.constant(np.random.default_rng(0).random(mib * MIB // 4, dtype=np.float32))


def swapped_and_compared(count: int, lazy: bool):
    """A step that sends `count` tensors to the card and to far memory, then gets them all back."""

    @tf.function
    def step(x: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
        sent, last = [], []
        for i in range(count):
            with tf.device("CPU:0"), tf.control_dependencies(last):
                host = x + (k + float(i))
            with tf.device("GPU:0"):
                handle = copy_to_host(tf.identity(host), lazy=lazy, next_use=count - i)
            sent.append((host, handle))
            last = [handle]
        same = []
        for host, handle in reversed(sent):
            with tf.device("GPU:0"):
                with tf.control_dependencies(last):
                    back = copy_from_host(tf.identity(handle), tf.float32)
                back = tf.identity(back)
            with tf.device("CPU:0"):
                same.append(tf.reduce_all(tf.equal(tf.identity(back), host)))
            last = [same[-1]]
        return tf.reduce_all(tf.stack(same))

    return step


def test_the_device_is_ours_and_keeps_bytes() -> None:
    values = np.arange(MIB, dtype=np.float32)
    with tf.device("GPU:0"):
        there = tf.identity(tf.constant(values))
    assert there.device.endswith("GPU:0")
    np.testing.assert_array_equal(there.numpy(), values)
    assert tfswap.memory_stats("GPU:0")["bytes_in_use"] >= values.nbytes


@pytest.mark.parametrize("count", [2, 12])
def test_planned_swaps_bring_back_every_byte(count: int) -> None:
    x = host_values(4)
    step = swapped_and_compared(count, lazy=False)
    for k in range(6):
        assert step(x, tf.constant(float(k)))
    stats = tfswap.memory_stats("GPU:0")
    assert stats["copies_out"] == stats["copies_in"] == 6 * count
    assert stats["far_buffers"] == stats["host_bytes_in_use"] == 0
    # What leaves is gone at once, though the card still copies: two at a time are there.
    assert stats["peak_load_bytes"] < 3 * 4 * MIB


def test_lazy_swaps_keep_a_hard_budget_without_waiting() -> None:
    x = host_values(4)
    step = swapped_and_compared(12, lazy=True)
    assert step(x, tf.constant(0.0))
    assert tfswap.memory_stats("GPU:0")["copies_out"] == 0  # everything fitted
    base = tfswap.memory_stats("GPU:0")["bytes_in_use"]
    budget = base + 18 * MIB
    tfswap.set_budget(budget, "GPU:0")
    tfswap.reset_memory_stats("GPU:0")
    for k in range(6):
        assert step(x, tf.constant(float(k)))
    stats = tfswap.memory_stats("GPU:0")
    assert stats["peak_bytes"] <= budget
    assert 0 < stats["copies_out"] == stats["copies_in"] < 6 * 12  # no more than had to
    assert stats["wait_ns"] < 2e9


def test_out_of_memory_says_which_budget() -> None:
    base = tfswap.memory_stats("GPU:0")["bytes_in_use"]
    tfswap.set_budget(base + 4 * MIB, "GPU:0")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="memory budget"):
        with tf.device("GPU:0"):
            tf.fill([8 * MIB // 4], 1.0)


@pytest.mark.parametrize(("kind", "error"), [("out", "InternalError"), ("in", "InternalError")])
def test_a_copy_that_fails_is_an_error(kind: str, error: str) -> None:
    lib = library.load()
    x = host_values(4)
    step = swapped_and_compared(2, lazy=False)
    assert step(x, tf.constant(0.0))
    lib.inject_fault(tfswap.state.number_of("GPU:0"), kind)
    with pytest.raises(getattr(tf.errors, error), match="injected fault"):
        step(x, tf.constant(1.0))
    lib.inject_fault(tfswap.state.number_of("GPU:0"), "")
    assert step(x, tf.constant(2.0))


def test_a_changed_byte_in_far_memory_is_noticed() -> None:
    lib = library.load()
    number = tfswap.state.number_of("GPU:0")
    x = host_values(4)
    step = swapped_and_compared(2, lazy=False)
    assert step(x, tf.constant(0.0))
    lib.set_verify(number, True)
    assert step(x, tf.constant(1.0))
    lib.inject_fault(number, "corrupt")
    with pytest.raises(tf.errors.DataLossError, match="came back from far memory changed"):
        step(x, tf.constant(2.0))
    lib.inject_fault(number, "")
    lib.set_verify(number, False)
