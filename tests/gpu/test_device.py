"""The GPU device, its allocator and its copies, on a GPU that has streams but no arithmetic.

Run by ``make test-gpu``. Tensors come from the host and go back to it, which compares every byte.
The simulated GPU's streams fall behind and overtake each other at random.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from swaps import host_values, swapped_and_compared

import tfswap
from tfswap.ops import library
from tfswap.step.trace import StepTrace

MIB = 1 << 20

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")


@pytest.fixture(autouse=True)
def device():
    lib = library.load()
    assert tf.config.list_logical_devices("GPU")
    with tf.device("GPU:0"):
        tf.identity(tf.constant(1.0)).numpy()
    yield
    lib.set_budget(tfswap.state.device_number("GPU:0"), None)
    tfswap.reset_memory_stats("GPU:0")


def test_the_device_is_tfswaps_and_keeps_bytes() -> None:
    values = np.arange(MIB, dtype=np.float32)
    with tf.device("GPU:0"):
        there = tf.identity(tf.constant(values))
    assert there.device.endswith("GPU:0")
    np.testing.assert_array_equal(there.numpy(), values)
    assert tfswap.memory_stats("GPU:0")["bytes_in_use"] >= values.nbytes


@pytest.mark.parametrize("count", [2, 12])
def test_planned_swaps_bring_back_every_byte(count: int) -> None:
    x = host_values(4)
    step = swapped_and_compared(["GPU:0"], count, lazy=False)
    for k in range(6):
        assert step(x, tf.constant(float(k)))
    stats = tfswap.memory_stats("GPU:0")
    assert stats["copies_out"] == stats["copies_in"] == 6 * count
    assert stats["far_buffers"] == stats["host_bytes_in_use"] == 0
    # Swap-outs release memory at once, while the GPU still copies, so two tensors are resident.
    assert stats["peak_load_bytes"] < 3 * 4 * MIB


def test_on_demand_swaps_keep_a_hard_budget_without_waiting() -> None:
    x = host_values(4)
    step = swapped_and_compared(["GPU:0"], 12, lazy=True)
    assert step(x, tf.constant(0.0))
    assert tfswap.memory_stats("GPU:0")["copies_out"] == 0  # everything fits
    base = tfswap.memory_stats("GPU:0")["bytes_in_use"]
    budget = base + 18 * MIB
    tfswap.set_budget(budget, "GPU:0")
    tfswap.reset_memory_stats("GPU:0")
    for k in range(6):
        assert step(x, tf.constant(float(k)))
    stats = tfswap.memory_stats("GPU:0")
    assert stats["peak_bytes"] <= budget
    assert 0 < stats["copies_out"] == stats["copies_in"] < 6 * 12  # no more than necessary
    assert stats["wait_ns"] < 2e9


def test_a_chunk_is_hardly_larger_than_the_request() -> None:
    def allocated(mib: int) -> tf.Tensor:
        with tf.device("GPU:0"):
            return tf.identity(tf.zeros((mib, MIB // 4)))

    before = tfswap.memory_stats("GPU:0")["bytes_in_use"]
    hole, after_it = allocated(48), allocated(1)
    del hole
    in_the_hole = allocated(40)  # TensorFlow's default gives it all of the hole
    held = tfswap.memory_stats("GPU:0")["bytes_in_use"] - before
    del in_the_hole, after_it
    assert 41 * MIB <= held < 41.2 * MIB


def test_the_link_is_measured_by_its_own_copies() -> None:
    lib = library.load()
    number = tfswap.state.device_number("GPU:0")
    before = tfswap.memory_stats("GPU:0")["bytes_in_use"]
    link = lib.measure_link(number, 16 * MIB, 5)
    assert set(link) == {f"{way}_bytes_per_s" for way in ("out", "in", "both_out", "both_in")}
    assert all(1e8 < speed < 1e13 for speed in link.values())
    assert tfswap.memory_stats("GPU:0")["bytes_in_use"] == before
    lib.set_budget(number, before + 16 * MIB)
    with pytest.raises(tfswap.LibraryError, match="no memory"):
        lib.measure_link(number, 16 * MIB, 1)
    assert tfswap.memory_stats("GPU:0")["bytes_in_use"] == before


def test_a_recording_has_the_gpus_times() -> None:
    lib = library.load()
    number = tfswap.state.device_number("GPU:0")
    x = host_values(4)
    step = swapped_and_compared(["GPU:0"], 6, lazy=False)
    assert step(x, tf.constant(0.0))
    lib.start_recording(number)
    assert step(x, tf.constant(1.0))
    trace = StepTrace.from_bytes(lib.stop_recording(number))
    ops = trace.ops
    on_gpu = ~np.isin(
        [trace.names[i] for i in ops["type"]], ["_CopyFromHost", "_Recv", "_HostRecv"]
    )
    assert on_gpu.sum() > 6 and (ops["end_ns"] >= ops["start_ns"]).all()
    # A GPU runs one kernel after the other, regardless of the host's threads.
    order = np.argsort(ops["end_ns"][on_gpu], kind="stable")
    start_ns, end_ns = ops["start_ns"][on_gpu][order], ops["end_ns"][on_gpu][order]
    assert (start_ns[1:] >= end_ns[:-1]).all()
    assert trace.start_ns <= start_ns[0] and end_ns[-1] <= trace.end_ns
    buffers = trace.buffers
    freed = (buffers["alloc_ns"] >= 0) & (buffers["free_ns"] >= 0)
    assert (buffers["free_ns"][freed] >= buffers["alloc_ns"][freed]).all()


def test_out_of_memory_says_which_budget() -> None:
    base = tfswap.memory_stats("GPU:0")["bytes_in_use"]
    tfswap.set_budget(base + 4 * MIB, "GPU:0")
    with pytest.raises(tf.errors.ResourceExhaustedError, match="memory budget"):
        with tf.device("GPU:0"):
            tf.fill([8 * MIB // 4], 1.0)


@pytest.mark.parametrize("kind", ["copy-out-fails", "copy-in-fails"])
def test_a_copy_that_fails_is_an_error(kind: str) -> None:
    lib = library.load()
    x = host_values(4)
    step = swapped_and_compared(["GPU:0"], 2, lazy=False)
    assert step(x, tf.constant(0.0))
    lib.set_faults(kind)
    with pytest.raises(tf.errors.InternalError, match="injected fault"):
        step(x, tf.constant(1.0))
    lib.set_faults("")
    assert step(x, tf.constant(2.0))


def test_a_changed_byte_in_far_memory_is_detected() -> None:
    lib = library.load()
    number = tfswap.state.device_number("GPU:0")
    x = host_values(4)
    step = swapped_and_compared(["GPU:0"], 2, lazy=False)
    assert step(x, tf.constant(0.0))
    lib.set_verify(number, True)
    assert step(x, tf.constant(1.0))
    lib.set_faults("bit-flip")
    with pytest.raises(tf.errors.DataLossError, match="came back from far memory changed"):
        step(x, tf.constant(2.0))
    lib.set_faults("")
    lib.set_verify(number, False)
