"""TensorFlow's options for GPUs keep their meaning with tfswap's device, and swaps work.

Run by ``make test-gpu``. Options apply to a process, so each function of `option_programs` that is
named ``in_...`` runs in a process of its own; several tests check its result. See `test_device` for
the GPU.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

MIB = 1 << 20
# Each function in it that is named `in_...` is a program.
PROGRAMS = Path(__file__).with_name("option_programs.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`"),
    pytest.mark.skipif(os.environ.get("TEST_GPU") == "real", reason="uses the fake GPU"),
]


@functools.cache
def ran(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAMS, program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def seen(program: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Return the result of a program in a process with that environment."""
    process = ran(program, *arguments, **environment)
    assert process.returncode == 0, process.stderr[-4000:]
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answer


GPUS = {"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_MEMORY_MIB": "4096,2560"}


def keep_every_byte(squeezed: dict[str, dict[str, Any]]) -> bool:
    """Return whether each device kept its budget by its own swaps, and all bytes are equal."""
    return all(
        stats["same"]
        and stats["peak_bytes"] <= stats["budget_bytes"]
        and 0 < stats["copies_out"] == stats["copies_in"]
        and stats["far_buffers"] == 0
        for stats in squeezed.values()
    )


def test_each_gpu_is_a_device() -> None:
    shown = seen("in_two_gpus", **GPUS)
    assert shown["names"] == ["GPU:0", "GPU:1"]
    # TensorFlow leaves a part of each GPU's memory to the system.
    assert 2 << 30 < shown["limits"]["GPU:0"] < 4 << 30
    assert 0 < shown["limits"]["GPU:1"] < 1 << 30


def test_a_budget_is_of_one_device() -> None:
    shown = seen("in_two_gpus", **GPUS)
    assert shown["budgets"] == {"GPU:0": None, "GPU:1": shown["limits"]["GPU:1"] // 2}
    assert shown["said"]["GPU:0"] == ""
    assert "the memory budget of 4.0 MiB is exceeded" in shown["said"]["GPU:1"]


def test_memory_is_counted_by_device() -> None:
    shown = seen("in_two_gpus", **GPUS)
    assert shown["in_use"]["GPU:0"] < MIB
    assert 16 * MIB <= shown["in_use"]["GPU:1"] < 17 * MIB
    for device, told in shown["told"].items():  # by TensorFlow: what was requested
        assert 0 <= shown["in_use"][device] - told < 4096


def test_copies_between_gpus_are_peer_copies() -> None:
    assert seen("in_two_gpus", **GPUS)["peer"] == {"copies": 1, "device": "GPU:0", "same": True}


def test_a_tensor_can_be_swapped_on_both_gpus_in_a_step() -> None:
    shown = seen("in_two_gpus", **GPUS)["swapped_on_both"]
    assert shown == {"same": True, "swaps": {"GPU:0": 4 * 3, "GPU:1": 4 * 3}}


def test_each_gpu_keeps_its_budget() -> None:
    assert keep_every_byte(seen("in_two_gpus", **GPUS)["squeezed"])


def test_only_visible_gpus_are_devices() -> None:
    shown = seen("in_a_growing_gpu", **GPUS)
    assert shown["names"] == ["GPU:0"]
    assert shown["limit"] == seen("in_two_gpus", **GPUS)["limits"]["GPU:1"]
    assert shown["first"][0] == shown["grown"][0] == 0  # nothing on the other one


def test_memory_grows() -> None:
    shown = seen("in_a_growing_gpu", **GPUS)
    assert 0 < shown["first"][1] < 16 * MIB
    assert 64 * MIB <= shown["grown"][1] < 256 * MIB
    assert keep_every_byte(shown["squeezed"])


def test_logical_devices_have_their_limits() -> None:
    shown = seen("in_logical_devices", **GPUS)
    assert shown["names"] == ["GPU:0", "GPU:1", "GPU:2"]
    assert shown["limits"] == {"GPU:0": 256 * MIB, "GPU:1": 384 * MIB, "GPU:2": 48 * MIB}
    assert shown["taken"] == [(256 + 384) * MIB, 48 * MIB]
    assert shown["halves"] == {"GPU:0": 128 * MIB, "GPU:1": 192 * MIB, "GPU:2": 24 * MIB}


def test_logical_devices_keep_their_budgets() -> None:
    assert keep_every_byte(seen("in_logical_devices", **GPUS)["squeezed"])


@pytest.mark.parametrize("budget", ["100%", "None"])
def test_a_full_device_swaps_at_once(budget: str) -> None:
    """TensorFlow's own allocator would wait for 10 s at each allocation."""
    shown = seen("in_logical_devices", **GPUS)["full"][budget]
    assert shown["same"]
    assert shown["copies_out"] > 0
    assert shown["seconds"] < 8


def test_a_process_may_take_a_part_of_a_gpu() -> None:
    shown = seen("in_a_part_of_the_gpu")
    assert shown["limit"] == shown["taken"] == 1 << 30  # of 4 GiB
    assert shown["half"] == 512 * MIB
    assert keep_every_byte(shown["squeezed"])


def test_host_memory_is_pinned_on_request() -> None:
    assert seen("in_a_part_of_the_gpu")["pinned"] >= 32 * MIB
    assert seen("in_two_gpus", **GPUS)["pinned"] == 0


@pytest.mark.parametrize(
    ("allocator", "name"), [("cuda_malloc_async", "gpu_async_1"), ("cuda_malloc", "gpu_debug")]
)
def test_other_allocators_are_kept(allocator: str, name: str) -> None:
    shown = seen("in_another_allocator", TF_GPU_ALLOCATOR=allocator, **GPUS)
    assert shown["taken"] < MIB  # BFC takes all of the GPU
    assert shown["same"]
    assert shown["said"]["GPU:0"] == ""
    assert name in shown["said"]["GPU:1"]
    assert "the memory budget of 4.0 MiB is exceeded" in shown["said"]["GPU:1"]
    assert keep_every_byte(shown["squeezed"])


def test_a_small_slice_trains_in_a_part_of_it() -> None:
    shown = seen("in_a_small_slice", FAKE_CUDA_MEMORY_MIB="1024")
    assert 600 * MIB < shown["limit"] < 1 << 30
    stats = shown["trained"]["stats"]["GPU:0"]
    assert shown["trained"]["budget_bytes"] == shown["limit"] // 10
    assert 0 < stats["peak_bytes"] <= shown["limit"] // 10
    assert stats["copies_out"] > 0


def test_a_training_on_two_gpus_keeps_each_ones_budget() -> None:
    """A part of each GPU is a logical device, and the training gets a part of that."""
    shown = seen("in_a_training_on_two_gpus", **GPUS)
    budgets = {"GPU:0": 80 * MIB, "GPU:1": 40 * MIB}
    assert shown["budgets"] == budgets
    assert shown["budget_bytes"] == budgets["GPU:0"]
    for device, stats in shown["stats"].items():
        assert stats["peak_bytes"] <= budgets[device]
        assert 0 < stats["copies_out"] <= stats["copies_in"]  # some come back for several ops
        assert stats["budget_bytes"] is None and stats["far_buffers"] == 0
