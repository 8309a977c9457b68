"""The two copy ops."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import tfswap
from tests.copy_ops import copy_from_host, copy_to_host

MIB = 1 << 20

PLAIN_DTYPES = [
    tf.float16,
    tf.bfloat16,
    tf.float32,
    tf.float64,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
    tf.uint32,
    tf.uint64,
    tf.bool,
    tf.complex64,
    tf.complex128,
]


def memory_after(seconds: float = 2.0):
    """Return the memory in use once the copy threads have released theirs, or after a while."""
    deadline = time.monotonic() + seconds
    while True:
        stats = tfswap.memory_stats()
        if stats["far_buffers"] == 0 or time.monotonic() > deadline:
            return stats
        time.sleep(0.01)


def round_trip(**options):
    @tf.function
    def trip(x):
        y = tf.identity(x) if x.dtype == tf.bool else x + tf.cast(1, x.dtype)
        return y, copy_from_host(copy_to_host(y, **options), y.dtype)

    return trip


@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("lazy", [False, True])
def test_every_plain_dtype_is_restored_bit_for_bit(dtype, lazy):
    values = np.random.default_rng(1).integers(0, 100, (7, 33, 5))
    there, back = round_trip(lazy=lazy)(tf.cast(tf.constant(values), dtype))
    assert back.dtype == dtype and back.shape == there.shape
    assert np.array_equal(back.numpy(), there.numpy())


@pytest.mark.parametrize("shape", [[], [0], [3, 0, 2], [1], [1, 1, 1, 1, 1, 1]])
def test_odd_shapes(shape):
    there, back = round_trip()(tf.ones(shape))
    assert np.array_equal(back.numpy(), there.numpy())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_restores_every_bit(threads):
    values = np.random.default_rng(1).standard_normal((512, 1031)).astype(np.float32)
    sparse = tf.nn.relu(tf.constant(values)) - 1.0  # of which the round trip adds 1
    there, back = round_trip(codec="zvc", threads=threads)(sparse)
    assert np.array_equal(back.numpy(), there.numpy())
    stats = tfswap.memory_stats()
    assert 0 < stats["far_compressed_kept_bytes_out"] < 0.6 * stats["far_compressed_bytes_out"]


def test_strings_pass_by_reference():
    @tf.function
    def trip(x):
        return copy_from_host(copy_to_host(tf.strings.join([x, "!"])), tf.string)

    assert trip(tf.constant(["a", "b"])).numpy().tolist() == [b"a!", b"b!"]
    assert tfswap.memory_stats()["copies_out"] == 0


def test_small_tensors_pass_by_reference(megabytes):
    round_trip(min_bytes=2 * MIB)(megabytes(1))
    assert tfswap.memory_stats()["copies_out"] == 0
    round_trip(min_bytes=2 * MIB)(megabytes(2))
    assert tfswap.memory_stats()["copies_out"] == 1


def test_evictable_tensors_stay_while_there_is_room(megabytes):
    round_trip(lazy=True)(megabytes(4))
    stats = tfswap.memory_stats()
    assert stats["copies_out"] == stats["copies_in"] == 0


def test_the_evictable_tensor_needed_last_leaves_first(megabytes, lib):
    x = megabytes(4)
    base = tfswap.memory_stats()["bytes_in_use"]

    @tf.function
    def step(x):
        first = copy_to_host(x + 1.0, lazy=True, next_use=1)
        last = copy_to_host(x + 2.0, lazy=True, next_use=2)
        with tf.control_dependencies([first, last]):
            big = tf.concat([x, x], 0)
        with tf.control_dependencies([tf.identity(big)]):
            a = copy_from_host(tf.identity(first), x.dtype)
        with tf.control_dependencies([a]):
            b = copy_from_host(tf.identity(last), x.dtype)
        return tf.reduce_sum(a), tf.reduce_sum(b), tf.reduce_sum(big)

    expected = step(x)
    assert tfswap.memory_stats()["copies_out"] == 0
    tfswap.reset_memory_stats()
    tfswap.set_budget(base + 13 * MIB)  # 4 + 4 + 8 do not fit
    for steps in range(1, 31):  # no step moves more than necessary
        assert [v.numpy() for v in step(x)] == [v.numpy() for v in expected]
        stats = tfswap.memory_stats()
        assert stats["copies_out"] == stats["copies_in"] == steps
    assert stats["peak_bytes"] <= base + 13 * MIB


def test_one_far_copy_serves_several_returns(megabytes):
    x = megabytes(2)

    @tf.function
    def step(x):
        y = x * 3.0
        handle = copy_to_host(y, returns=2)
        first = copy_from_host(handle, y.dtype)
        with tf.control_dependencies([first]):
            second = copy_from_host(tf.identity(handle), y.dtype)
        return first, second, y

    first, second, y = step(x)
    assert np.array_equal(first, y) and np.array_equal(second, y)
    stats = tfswap.memory_stats()
    assert (stats["copies_out"], stats["copies_in"]) == (1, 2)
    assert stats["host_bytes_in_use"] == 0


def test_far_memory_is_reused_between_steps(megabytes):
    trip, x = round_trip(), megabytes(3)
    for _ in range(20):
        trip(x)
    stats = tfswap.memory_stats()
    assert stats["host_bytes_cached"] == 3 * MIB  # exact, and one block only
    assert stats["host_bytes_in_use"] == 0


def test_the_host_limit_holds_and_the_tensor_stays(megabytes, lib):
    lib.trim_host()
    lib.set_host_limit(2 * MIB)
    x = megabytes(4)
    there, back = round_trip()(x)
    assert np.array_equal(back, there)
    stats = tfswap.memory_stats()
    assert stats["copies_declined"] == 1 and stats["copies_out"] == 0
    assert stats["host_peak_bytes"] <= 2 * MIB


def test_an_emulated_link_takes_its_time(megabytes, lib):
    trip, x = round_trip(), megabytes(4)
    trip(x)
    lib.emulate_link(0, 40 * MIB)  # 0.1 s each way
    start = time.perf_counter()
    trip(x)
    assert time.perf_counter() - start >= 0.2


def test_an_allocation_waits_for_a_slow_swap_in_that_will_free_memory(megabytes, lib):
    x = megabytes(8)
    base = tfswap.memory_stats()["bytes_in_use"]

    @tf.function
    def step(x):
        handle = copy_to_host(x + 1.0)
        with tf.control_dependencies([handle]):
            kept = x * 2.0
        with tf.control_dependencies([kept]):
            # 20 of 8 + 8 + 8 MiB: `late` must wait until `back` has returned and been read.
            back = copy_from_host(tf.identity(handle), x.dtype)
            late = x - 3.0
        return tf.reduce_sum(back + kept), tf.reduce_sum(late)

    expected = step(x)
    lib.emulate_link(0, 20e6)  # 0.4 s each way
    tfswap.set_budget(base + 20 * MIB)
    assert [v.numpy() for v in step(x)] == [v.numpy() for v in expected]


@pytest.mark.parametrize(
    "kind, error, text",
    [
        ("copy-out-fails", tf.errors.InternalError, "swapping out 'CopyToHost' failed"),
        ("copy-in-fails", tf.errors.InternalError, "swapping in 'CopyToHost' failed"),
        ("bit-flip", tf.errors.DataLossError, "came back from far memory changed"),
    ],
)
def test_a_failing_copy_fails_the_step_with_its_cause_and_leaks_nothing(
    megabytes, lib, kind, error, text
):
    x = megabytes(2)
    trip = round_trip()
    trip(x)  # its constants stay on the device
    base = tfswap.memory_stats()["bytes_in_use"]
    lib.set_verify(0, True)
    lib.set_faults(kind)
    with pytest.raises(error, match=text):
        trip(x)
    lib.set_faults("")
    stats = memory_after()
    assert stats["bytes_in_use"] == base
    assert stats["host_bytes_in_use"] == 0
    assert stats["far_buffers"] == 0
    there, back = trip(x)
    assert np.array_equal(back, there)


def test_cancellation_during_a_step_leaks_nothing(megabytes, lib):
    x = megabytes(4)

    @tf.function
    def step(x, limit):
        y = copy_from_host(copy_to_host(x + 1.0), x.dtype)
        with tf.control_dependencies([tf.debugging.Assert(x[0] < limit, ["stop"])]):
            return tf.reduce_sum(y)

    good, bad = tf.constant(2.0), tf.constant(-1.0)
    step(x, good)
    base = tfswap.memory_stats()["bytes_in_use"]
    lib.emulate_link(0, 20 * MIB)
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(x, bad)
    stats = memory_after()
    assert stats["bytes_in_use"] == base
    assert stats["host_bytes_in_use"] == 0 and stats["far_buffers"] == 0


def test_copies_hold_no_executor_thread(megabytes, lib):
    """Other work of a step continues while every copy waits for a slow link."""
    x = megabytes(2)
    lib.emulate_link(0, 10 * MIB)  # 0.2 s per copy
    started = threading.Event()

    @tf.function
    def step(x):
        handles = [copy_to_host(x + float(i)) for i in range(4)]
        tf.py_function(lambda: started.set() or 0, [], tf.int32)
        return [copy_from_host(h, x.dtype) for h in handles]

    thread = threading.Thread(target=step, args=(x,))
    thread.start()
    assert started.wait(timeout=30)
    thread.join()


def test_a_handle_of_another_dtype_is_refused(megabytes):
    @tf.function
    def trip(x):
        return copy_from_host(copy_to_host(x * 1.0), tf.int32)

    with pytest.raises(tf.errors.InvalidArgumentError, match="wants int32 but"):
        trip(megabytes(1))
