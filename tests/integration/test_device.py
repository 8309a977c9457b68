"""The device: its budget, its counts, its errors."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager.cancellation import CancellationManager

import tfswap
from tests.copy_ops import copy_from_host, copy_to_host

MIB = 1 << 20


def test_counts_what_is_in_use_and_its_peak(megabytes):
    before = tfswap.memory_stats()["bytes_in_use"]
    tensor = megabytes(8)
    assert tfswap.memory_stats()["bytes_in_use"] == before + 8 * MIB
    del tensor
    stats = tfswap.memory_stats()
    assert stats["bytes_in_use"] == before
    assert stats["peak_bytes"] >= before + 8 * MIB
    tfswap.reset_memory_stats()
    assert tfswap.memory_stats()["peak_bytes"] == before


def test_an_allocation_beyond_the_budget_has_a_complete_message(megabytes):
    held = [megabytes(4), megabytes(6)]
    tfswap.set_budget(tfswap.memory_stats()["bytes_in_use"] + 2 * MIB)

    @tf.function
    def too_much(x):
        return tf.tile(x, [3], name="the_culprit")

    with pytest.raises(tf.errors.ResourceExhaustedError) as failure:
        too_much(held[0])
    text = str(failure.value)
    assert "tfswap: the memory budget of" in text
    assert "the_culprit' asks for 12.0 MiB while" in text
    assert "Largest holders: 6.0 MiB" in text
    # 10 MiB are in use, and the op needs 4 MiB beside the 12 MiB that it requests.
    what_to_do = text[text.index("What to do:\n  - A budget of ") :].splitlines()
    assert "or more, the least with room for this op" in what_to_do[1]
    share = re.match(r"  - A batch of (\d+) % of this one", what_to_do[2])
    assert share is not None and 0 < int(share[1]) < 100
    assert tfswap.memory_stats()["failures"] >= 1


def test_large_blocks_come_from_the_system_and_return_to_it(megabytes):
    before = tfswap.memory_stats()["bytes_in_use"]

    @tf.function
    def twice(x):
        return x + x

    for mib in (31, 32, 33, 64):  # malloc's, and tfswap's from 32 MiB on
        tensor = megabytes(mib)
        doubled = twice(tensor)
        in_use = tfswap.memory_stats()["bytes_in_use"]
        assert in_use == pytest.approx(before + 2 * mib * MIB, abs=4096)
        np.testing.assert_array_equal(doubled, tensor.numpy() * 2)
        resident = _resident_bytes()
        del doubled
        assert _resident_bytes() <= resident - (mib - 2) * MIB or mib < 32
        del tensor
    assert tfswap.memory_stats()["bytes_in_use"] <= before + 4096


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@tf.function
def tiled_beside_a_parked_tensor(x):
    kept = tf.identity(x + 1.0)  # as large as x; evicted when memory is short
    handle = copy_to_host(kept, lazy=True)
    with tf.control_dependencies([handle]):
        tiled = tf.tile(x, [3])
    with tf.control_dependencies([tiled]):
        back = copy_from_host(handle, x.dtype)
    return tf.reduce_sum(tiled) + tf.reduce_sum(back)


def test_with_active_swaps_the_error_names_a_sufficient_budget(megabytes):
    x = megabytes(8)
    base = tfswap.memory_stats()["bytes_in_use"]
    tfswap.set_budget(base + 20 * MIB)
    with pytest.raises(tf.errors.ResourceExhaustedError) as failure:
        tiled_beside_a_parked_tensor(x)
    text = str(failure.value)
    assert "Nothing of what is in use can be moved while this op runs" in text
    needed = re.search(r"A budget of ([0-9.]+) MiB or more", text)
    assert float(needed[1]) >= base / MIB + 24


def test_the_lack_is_counted_not_the_evicted_tensors(megabytes, lib):
    x = megabytes(8)
    for room, lacking in ((26, 6), (36, 0)):
        before = lib.step_counts(0)
        tfswap.set_budget(before["bytes_in_use"] + room * MIB)
        lib.restart_window(0)
        tiled_beside_a_parked_tensor(x)
        after = lib.step_counts(0)
        assert after["bytes_out"] - before["bytes_out"] == (8 * MIB if lacking else 0)
        # Plus scalars.
        assert 0 <= after["window_lack_bytes"] - lacking * MIB < MIB // 16


def test_the_budget_can_be_changed_while_in_use(megabytes):
    base = tfswap.memory_stats()["bytes_in_use"]
    tfswap.set_budget(base + 5 * MIB)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        megabytes(6)
    tfswap.set_budget(base + 20 * MIB)
    tensor = megabytes(6)
    tfswap.set_budget(None)
    assert tfswap.memory_stats()["budget_bytes"] is None
    np.testing.assert_array_equal(tensor, megabytes(6))


def test_the_peak_never_passes_the_budget_under_threads(megabytes):
    base = tfswap.memory_stats()["bytes_in_use"]
    budget = base + 24 * MIB
    tfswap.set_budget(budget)
    tfswap.reset_memory_stats()

    def work() -> None:
        for _ in range(20):
            try:
                tf.reduce_sum(megabytes(4) * 2.0)
            except tf.errors.ResourceExhaustedError:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tfswap.memory_stats()["peak_bytes"] <= budget
    tfswap.set_budget(None)
    assert tfswap.memory_stats()["bytes_in_use"] == base


def test_an_allocation_waits_for_a_running_swap_out(megabytes, lib):
    x = megabytes(8)
    lib.emulate_link(0, 100e6)  # 80 ms for 8 MiB
    tfswap.set_budget(tfswap.memory_stats()["bytes_in_use"] + 20 * MIB)

    @tf.function
    def step(x):
        y = x + 1.0
        handle = copy_to_host(y)
        # Only the budget orders this after the copy: 16 MiB do not fit beside y.
        z = tf.concat([x, x], 0) * 1.0
        with tf.control_dependencies([z]):
            late = tf.constant(1.0)
        with tf.control_dependencies([late]):
            back = copy_from_host(tf.identity(handle), y.dtype)
        return tf.reduce_sum(z) + tf.reduce_sum(back)

    expected = 2 * np.sum(x.numpy(), dtype=np.float64) + np.sum(x.numpy() + 1, dtype=np.float64)
    np.testing.assert_allclose(step(x).numpy(), expected, rtol=1e-3)
    assert tfswap.memory_stats()["copies_out"] == 1


def test_an_allocation_waits_while_other_threads_work(megabytes):
    """Wait while a running thread may free memory; fail soon when all threads sleep."""
    held = [megabytes(8)]
    tfswap.set_budget(tfswap.memory_stats()["bytes_in_use"] + 4 * MIB)

    def needs() -> float:
        start = time.monotonic()
        tf.ones([8 * MIB // 4])
        return time.monotonic() - start

    def busy() -> None:
        data = bytes(64 * MIB)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            zlib.crc32(data)  # without the GIL
        held.clear()

    start = time.monotonic()
    with pytest.raises(tf.errors.ResourceExhaustedError):
        needs()
    assert time.monotonic() - start < 5
    thread = threading.Thread(target=busy)
    thread.start()
    waited_s = needs()
    thread.join()
    assert waited_s > 0.4  # longer than when all threads sleep


def test_a_cancelled_step_does_not_report_the_end_of_its_data():
    # In stock TensorFlow, about one in ten of these reports the end of a range of 100,000.
    numbers = tf.data.Dataset.range(100_000).prefetch(2)

    @tf.function
    def add(iterator):
        total = tf.zeros([], tf.int64)
        for _ in tf.range(3_000):
            total += iterator.get_next()
        return total

    added = add.get_concrete_function(iter(numbers))
    for delay_s in np.random.default_rng(0).uniform(0, 0.03, 200):
        cancelling = CancellationManager()
        timer = threading.Timer(delay_s, cancelling.start_cancel)
        timer.start()
        with contextlib.suppress(tf.errors.CancelledError):
            cancelling.get_cancelable_function(added)(iter(numbers))
        timer.join()


def test_unknown_devices_are_refused():
    # Work of an earlier test may still be running.
    pairs = ((tfswap.memory_stats("CPU:0"), tfswap.memory_stats(0)) for _ in range(100))
    assert any(named == numbered for named, numbered in pairs)
    assert tfswap.memory_stats("/job:localhost/replica:0/task:0/device:CPU:0")
    with pytest.raises(ValueError, match="tfswap manages 'CPU:0'"):
        tfswap.memory_stats("TPU:0")


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )


def test_loading_after_tensorflow_began_raises_an_error_with_advice():
    ran = _python(
        "import tensorflow as tf; tf.constant(1) + 1\n"
        "import tfswap\n"
        "print('imported', tfswap.status()['loaded'])\n"
        "try: tfswap.memory_stats()\n"
        "except tfswap.LibraryError as error: print(error)\n"
    )
    assert "imported False" in ran.stdout, ran.stderr
    assert "Import tfswap before the first TensorFlow operation" in ran.stdout
    assert ran.returncode == 0


@pytest.mark.slow
def test_logical_cpu_devices_have_separate_budgets():
    ran = _python(
        "import tfswap, tensorflow as tf\n"
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "config = tf.config.LogicalDeviceConfiguration()\n"
        "tf.config.set_logical_device_configuration(cpu, [config, config])\n"
        "tfswap.set_budget(4 << 20, 'CPU:1')\n"
        "with tf.device('CPU:0'): print('first', tf.zeros([4 << 20]).shape)\n"
        "try:\n"
        "    with tf.device('CPU:1'): tf.zeros([4 << 20])\n"
        "except tf.errors.ResourceExhaustedError as error: print('second', 'CPU:1' in str(error))\n"
    )
    assert "first (4194304,)" in ran.stdout, ran.stderr
    assert "second True" in ran.stdout, ran.stderr
