"""Swaps from a GPU to the file and back, through pinned memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from swaps import host_values, settled, swapped_and_compared, synchronizations
from trainings import trained

import tfswap
from tests.copy_ops import copy_from_host, copy_to_host
from tfswap.ops import library
from tfswap.ops.loaded_library import Library, LibraryError

MIB = 1 << 20
# The least pinned memory for copies to the file, and the amount without a limit.
LEAST, MOST = 4 * MIB, 16 * MIB

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")
on_fake_gpu = pytest.mark.skipif(os.environ.get("TEST_GPU") == "real", reason="asks the fake GPU")


@pytest.fixture
def lib(number: int, disk: Path) -> Iterator[Library]:
    """Open the file for a test."""
    lib = library.load()
    lib.open_file(str(disk))
    yield lib
    lib.set_faults("")
    lib.open_file(None)
    lib.trim_host()


def with_host_memory(lib: Library, disk: Path, limit_bytes: int) -> None:
    """Open the file while host memory is limited."""
    lib.open_file(None)
    lib.trim_host()
    lib.set_host_limit(limit_bytes)
    lib.open_file(str(disk))


def drained() -> dict[str, int]:
    """Return the statistics after threads have released the last buffer."""
    for _ in range(200):
        stats = settled()
        if stats["far_buffers"] == 0:
            break
        time.sleep(0.01)
    assert stats["far_buffers"] == stats["far_file_bytes_in_use"] == 0
    return stats


# Single swaps.


@pytest.mark.parametrize("limit_bytes", [None, 6 * MIB])
@pytest.mark.parametrize("elements", [301, MIB // 4, 1_000_003, 9 * MIB // 4 + 7])
def test_every_byte_comes_back(
    lib: Library, disk: Path, elements: int, limit_bytes: int | None
) -> None:
    """Sizes below one piece, of whole pieces, and of several pieces and a remainder."""
    if limit_bytes is not None:
        with_host_memory(lib, disk, limit_bytes)
    with tf.device("CPU:0"):
        x = host_values(10)[:elements]
    step = swapped_and_compared(["GPU:0"], 3, lazy=False, tier="file")
    for k in range(2):
        assert step(x, tf.constant(float(k)))
    stats = drained()
    assert stats["copies_out"] == stats["copies_in"] == stats["far_file_copies_out"] == 6
    assert stats["far_file_bytes_out"] == stats["far_file_bytes_in"] == 6 * 4 * elements
    assert stats["far_file_kept_bytes_out"] == 6 * 4 * elements
    assert stats["far_file_peak_bytes"] == 3 * 4 * elements <= stats["file_bytes"]
    assert stats["far_host_copies_out"] == stats["far_moved_on"] == stats["file_errors"] == 0
    assert min(stats["far_file_busy_out_ns"], stats["far_file_busy_in_ns"]) > 0
    assert stats["host_bytes_in_use"] == (MOST if limit_bytes is None else LEAST)
    # A swap-out has released its memory when its op ends, so two tensors are resident.
    assert stats["peak_load_bytes"] < 3 * 4 * elements + MIB


def test_an_odd_number_of_bytes(lib: Library) -> None:
    with tf.device("CPU:0"):
        x = tf.cast(host_values(20)[: 4 * MIB + 77], tf.uint8)
    assert swapped_and_compared(["GPU:0"], 2, lazy=False, tier="file")(x, tf.constant(0.0))
    assert drained()["far_file_bytes_out"] == 2 * (4 * MIB + 77)


@on_fake_gpu
def test_the_host_waits_for_no_copy(lib: Library) -> None:
    assert synchronizations("", tier="file") == synchronizations("")  # TensorFlow's own


def test_swaps_are_verified(lib: Library, number: int) -> None:
    lib.set_verify(number, True)
    step = swapped_and_compared(["GPU:0"], 2, lazy=False, tier="file")
    assert step(host_values(5), tf.constant(0.0))


def test_one_file_for_all_devices(lib: Library) -> None:
    tfswap.reset_memory_stats("CPU:0")
    step = swapped_and_compared(["GPU:0", "CPU:0"], 3, lazy=False, tier="file")
    assert step(host_values(1), tf.constant(0.0))
    gpu, cpu = drained(), tfswap.memory_stats("CPU:0")
    assert gpu["far_file_copies_out"] == cpu["far_file_copies_out"] == 3
    assert gpu["file_bytes"] == cpu["file_bytes"] > 0


def test_without_a_file_it_is_host_memory(lib: Library) -> None:
    lib.open_file(None)
    assert swapped_and_compared(["GPU:0"], 2, lazy=False, tier="file")(
        host_values(1), tf.constant(0.0)
    )
    stats = drained()
    assert stats["far_host_copies_out"] == stats["far_moved_on"] == 2
    assert stats["host_bytes_in_use"] == 0


# Limited host memory.


@pytest.mark.parametrize("tier", ["host", "file"])
def test_on_demand_swaps_keep_the_budget(lib: Library, disk: Path, number: int, tier: str) -> None:
    with_host_memory(lib, disk, LEAST + 2 * MIB)
    x = host_values(1)
    step = swapped_and_compared(["GPU:0"], 8, lazy=True, tier=tier)
    assert step(x, tf.constant(0.0))
    assert drained()["copies_out"] == 0
    lib.set_budget(number, tfswap.memory_stats("GPU:0")["bytes_in_use"] + 4 * MIB)
    tfswap.reset_memory_stats("GPU:0")
    for k in range(3):
        assert step(x, tf.constant(float(k)))
    stats = drained()
    assert stats["peak_bytes"] <= stats["budget_bytes"]
    assert stats["host_peak_bytes"] <= LEAST + 2 * MIB
    assert 0 < stats["far_file_copies_out"] <= stats["copies_out"] < 3 * 8
    assert (stats["far_host_copies_out"] > 0) == (tier == "host")
    assert stats["far_moved_on"] == (stats["far_file_copies_out"] if tier == "host" else 0)


def test_a_swap_in_during_the_swap_out_gets_the_tensor(lib: Library, disk: Path) -> None:
    with_host_memory(lib, disk, LEAST)
    lib.set_faults("slow-disk")
    # The request is for host memory, so the op ends before the disk write.
    step = swapped_and_compared(["GPU:0"], 3, lazy=False, tier="host")
    for k in range(2):
        assert step(host_values(2), tf.constant(float(k)))
    stats = drained()
    assert stats["copies_in"] < stats["copies_out"] == stats["far_moved_on"] == 6


def test_without_pinned_memory_the_file_is_unused(lib: Library, disk: Path) -> None:
    with pytest.raises(
        LibraryError, match=r"need 4\.0 MiB of pinned host memory.*Raise host_limit"
    ):
        with_host_memory(lib, disk, LEAST - 1)
    stats = settled()
    assert stats["file_bytes"] == stats["host_bytes_in_use"] == 0


def test_a_closed_file_still_returns_its_buffers(lib: Library) -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device("GPU:0"):
            handle = copy_to_host(tf.identity(x), tier="file")
        with tf.control_dependencies([handle]), tf.device("CPU:0"):
            closed = tf.py_function(lambda: lib.open_file(None), [], [])
        with tf.control_dependencies([closed]), tf.device("GPU:0"):
            return tf.identity(copy_from_host(handle, x.dtype))

    x = host_values(5)
    np.testing.assert_array_equal(step(x).numpy(), x.numpy())
    stats = drained()
    assert stats["far_file_copies_out"] == stats["copies_in"] == 1
    assert stats["file_bytes"] == stats["host_bytes_in_use"] == 0


# When the disk fails.


@pytest.mark.parametrize(
    ("kind", "text", "errors"),
    [("disk-full", "No space left", 0), ("write-error", "Input/output error", 4)],
)
def test_tensors_that_cannot_be_written_go_to_host_memory(
    lib: Library, kind: str, text: str, errors: int
) -> None:
    lib.set_faults(kind)
    step = swapped_and_compared(["GPU:0"], 2, lazy=False, tier="file")
    for k in range(2):
        assert step(host_values(5), tf.constant(float(k)))
    stats = drained()
    assert stats["far_host_copies_out"] == stats["far_moved_on"] == stats["copies_in"] == 4
    assert stats["far_file_copies_out"] == 0 and stats["file_errors"] == errors
    assert text in lib.file_problem()


def test_a_tensor_that_fits_nowhere_stays_and_the_error_says_why(
    lib: Library, disk: Path, number: int
) -> None:
    with_host_memory(lib, disk, LEAST)
    lib.set_faults("disk-full")
    step = swapped_and_compared(["GPU:0"], 4, lazy=False, tier="file")
    assert step(host_values(1), tf.constant(0.0))
    assert drained()["copies_declined"] == 4
    lib.set_budget(number, tfswap.memory_stats("GPU:0")["bytes_in_use"] + 3 * MIB)
    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        step(host_values(1), tf.constant(1.0))
    assert "The file tier is full as well: no space for 1.0 MiB" in str(error.value)
    lib.set_faults("")
    assert step(host_values(1), tf.constant(2.0))


def test_short_transfers_are_continued(lib: Library) -> None:
    step = swapped_and_compared(["GPU:0"], 2, lazy=False, tier="file")
    for kind in ("short-write", "short-read"):
        lib.set_faults(kind)
        assert step(host_values(5), tf.constant(0.0))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("read-error", "Input/output error"),
        ("end-of-file", "it is shorter than when it was written"),
        ("file-bit-flip", "are not the ones that were written"),
    ],
)
def test_a_failed_read_is_an_error_never_a_wrong_number(lib: Library, kind: str, text: str) -> None:
    step = swapped_and_compared(["GPU:0"], 3, lazy=False, tier="file")
    assert step(host_values(9), tf.constant(0.0))
    lib.set_faults(kind)
    with pytest.raises(tf.errors.InternalError, match="swapping in") as error:
        step(host_values(9), tf.constant(1.0))
    assert text in str(error.value)
    drained()
    lib.set_faults("")
    assert step(host_values(9), tf.constant(2.0))


@pytest.mark.parametrize("kind", ["copy-out-fails", "copy-in-fails"])
def test_a_failing_copy_is_an_error_and_the_next_step_works(
    lib: Library, number: int, kind: str
) -> None:
    step = swapped_and_compared(["GPU:0"], 2, lazy=False, tier="file")
    lib.set_faults(kind)
    with pytest.raises(tf.errors.InternalError, match="injected fault"):
        step(host_values(1), tf.constant(1.0))
    lib.set_faults("")
    assert step(host_values(1), tf.constant(2.0))
    drained()


# Trainings.


def test_a_training_that_needs_the_file_has_the_same_losses(disk: Path) -> None:
    told = trained(budget="8MiB", host_limit=LEAST + 2 * MIB, spill_dir=str(disk), codec=None)
    assert "file" in told["planned"], told["notes"]
    assert told["tiers"]["file"][0] > 0
    assert not any("file" in warning for warning in told["warnings"])
    assert told["stats"]["far_file_bytes_in"] > 0 == told["stats"]["file_errors"]
    assert told["stats"]["far_file_bytes_in_use"] == told["stats"]["file_bytes"] == 0
