"""A failed call of the GPU's driver ends its step with the driver's error, not with wrong bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tfswap.ops import library

pytestmark = [
    pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`"),
    pytest.mark.skipif(os.environ.get("TEST_GPU") == "real", reason="uses the fake GPU"),
]

# A GPU is not used again after a failure, so each runs in a process of its own.
PROGRAM = """
import ctypes, sys
import tensorflow as tf
import tfswap
from swaps import host_values, swapped_and_compared
from tfswap.ops import library

fails, before_the_first_op, budget_mib = sys.argv[1].encode(), sys.argv[2] == "first", sys.argv[3]
then, codec = sys.argv[4:]
fail = ctypes.CDLL("libcuda.so.1").fake_cuda_fail
if before_the_first_op:
    fail(fails)
x = host_values(4)
step = swapped_and_compared(["GPU:0"], 6, lazy=budget_mib != "0", codec=codec)
if not before_the_first_op:
    assert step(x, tf.constant(0.0))
    if budget_mib != "0":
        in_use = tfswap.memory_stats("GPU:0")["bytes_in_use"]
        tfswap.set_budget(in_use + int(budget_mib) * 2**20, "GPU:0")
    fail(fails)
lib = library.load()
try:
    if then == "record":
        device = tfswap.state.device_number("GPU:0")
        lib.start_recording(device)
        step(x, tf.constant(0.5))
        lib.stop_recording(device)
    elif then:
        getattr(lib, then)()
    print("right" if step(x, tf.constant(1.0)) else "WRONG")
except tf.errors.OpError as error:
    print("error", str(error)[:2000])
"""


def outcome_of(
    fails: str, when: str = "later", budget_mib: int = 0, then: str = "", codec: str = ""
) -> str:
    """Run the program; return its last line and what follows.

    Args:
        fails: The functions that fail, separated by commas.
        when: "first": before TensorFlow's first op on the GPU; "later": after a right step.
        budget_mib: A budget above what is in use; 0: none, and all swaps are planned.
        then: A function of the library to call after that; "record": a step is recorded.
        codec: The codec of the swaps.
    """
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, fails, when, str(budget_mib), then, codec],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.parametrize(
    "function, doing",
    [
        ("cuCtxPushCurrent_v2", "making its context current"),
        ("cuStreamWaitEvent", "waiting for an event"),
        ("cuEventRecord", "recording an event"),
        ("cuEventQuery", "looking at an event"),
        ("cuMemcpyDtoHAsync_v2", "copying out"),
        ("cuMemcpyHtoDAsync_v2", "copying in"),
    ],
)
def test_a_failed_call_ends_its_step(function: str, doing: str) -> None:
    outcome = outcome_of(function)
    assert outcome.startswith("error") and f"{doing}: an error of the fake GPU" in outcome


@pytest.mark.parametrize(
    "function, doing",
    [
        ("cuStreamGetCtx", "no context of TensorFlow's stream"),
        ("cuCtxGetStreamPriorityRange", "asking for priorities"),
        ("cuStreamCreateWithPriority", "making a stream"),
        ("cuEventCreate", "making an event"),
    ],
)
def test_a_gpu_that_cannot_be_prepared_is_an_error_of_the_first_swap(
    function: str, doing: str
) -> None:
    outcome = outcome_of(function, when="first")
    assert outcome.startswith("error") and f"{doing}: an error of the fake GPU" in outcome


def test_a_kernel_that_cannot_be_launched_ends_its_step() -> None:
    if not (library.NATIVE / "codec_kernels.fatbin").exists():
        pytest.skip("built without nvcc")
    outcome = outcome_of("cuLaunchKernel", codec="zvc")
    assert outcome.startswith("error") and "an error of the fake GPU" in outcome


@pytest.mark.parametrize(
    "function, doing",
    [
        ("cuEventSynchronize", "waiting for an event"),
        ("cuEventElapsedTime", "reading a time"),
    ],
)
def test_times_that_cannot_be_read_end_the_next_step(function: str, doing: str) -> None:
    outcome = outcome_of(function, then="record")
    assert outcome.startswith("error") and f"{doing}: an error of the fake GPU" in outcome


@pytest.mark.parametrize("codec_fails", ["cuModuleLoadData", "cuModuleGetFunction"])
def test_without_kernels_encoded_swaps_are_plain(codec_fails: str) -> None:
    assert outcome_of(codec_fails, when="first", codec="zvc").startswith("right")


def test_memory_that_cannot_be_registered_is_allocated_by_the_driver() -> None:
    assert outcome_of("cuMemHostRegister_v2", budget_mib=18).startswith("right")


def test_memory_that_cannot_be_unpinned_ends_the_next_step() -> None:
    outcome = outcome_of("cuMemHostUnregister", then="trim_host")
    assert "unpinning host memory: an error of the fake GPU" in outcome


def test_refused_pinning_is_named_when_memory_runs_out() -> None:
    refused = "cuMemHostRegister_v2,cuMemHostAlloc"
    outcome = outcome_of(refused, when="first")
    assert outcome.startswith("right")  # nothing can leave, and all fits
    outcome = outcome_of(refused, budget_mib=18)
    assert "pinning" in outcome and "an error of the fake GPU" in outcome
    assert "host_limit" not in outcome
