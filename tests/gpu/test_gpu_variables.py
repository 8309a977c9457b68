"""Streamed variables on a GPU: readers find their values, in the order of the host.

Values come from the host and are compared there, so the simulated GPU need not compute anything.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from streamed_weights import COUNT, EACH, MIB, ROOM, Streamed, Weights
from swaps import settled
from trainings import ran

import tfswap
from tfswap.ops import library

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")
on_fake_gpu = pytest.mark.skipif(os.environ.get("TEST_GPU") == "real", reason="asks the fake GPU")


@pytest.fixture
def streamed(number: int) -> Iterator[Streamed]:
    made = Streamed()
    yield made
    made.lib.set_faults("")
    made.lib.set_budget(number, None)
    assert made.lib.stream_variables(number, False) == ""
    made.__dict__.clear()  # pytest keeps it until the next test begins
    gc.collect()
    assert settled()["host_bytes_in_use"] == 0


def test_a_step_whose_variables_exceed_the_budget(streamed: Streamed) -> None:
    for _ in range(4):
        assert streamed.weights.are_right()
    stats = streamed.stats()
    # An unchanged value is swapped out without a copy.
    assert stats["bytes_in"] >= 4 * (COUNT * EACH - ROOM) and stats["bytes_out"] == 0
    assert stats["host_bytes_in_use"] <= COUNT * EACH


@on_fake_gpu
def test_the_host_waits_for_no_copy(streamed: Streamed) -> None:
    waits = ctypes.CDLL("libcuda.so.1").fake_cuda_synchronizations
    counts = []
    for budget in (streamed.budget_bytes, None):
        streamed.lib.set_budget(streamed.number, budget)
        assert streamed.weights.are_right()
        before = waits()
        assert streamed.weights.are_right()
        counts.append(waits() - before)
    assert counts[0] == counts[1]  # TensorFlow's own


def test_readers_outside_of_a_step_see_the_right_value(streamed: Streamed, tmp_path: Path) -> None:
    weights = streamed.weights
    for variable, value in zip(weights.there, weights.values, strict=True):
        assert np.array_equal(variable.numpy(), value)
    point = tf.train.Checkpoint(weights=weights.there).save(os.fspath(tmp_path / "point"))
    reader = tf.train.load_checkpoint(point)
    for i, value in enumerate(weights.values):
        found = reader.get_tensor(f"weights/{i}/.ATTRIBUTES/VARIABLE_VALUE")
        assert np.array_equal(found, value)
    assert streamed.stats()["bytes_in"] > 0


def test_written_values_are_read_later(streamed: Streamed) -> None:
    weights = streamed.weights
    for i in (2, 5, 9):
        weights.give(i, weights.values[i] * 2 + 1)
    for _ in range(3):  # they are swapped out, with copies
        assert weights.are_right()
    stats = streamed.stats()
    assert 3 * EACH <= stats["bytes_out"] <= 4 * EACH
    assert np.array_equal(weights.there[5].numpy(), weights.values[5])


def test_a_referenced_value_stays(streamed: Streamed) -> None:
    weights = streamed.weights
    with tf.device("GPU:0"):
        held = weights.there[4].read_value()
    for _ in range(2):
        assert weights.are_right()
    before = weights.values[4]
    weights.give(4, before + 1)
    assert weights.are_right()
    assert np.array_equal(held.numpy(), before)
    streamed.stats()


def test_all_are_restored_when_it_ends(streamed: Streamed) -> None:
    weights = streamed.weights
    streamed.lib.set_budget(streamed.number, None)
    assert streamed.lib.stream_variables(streamed.number, False) == ""
    stats = settled()
    assert stats["bytes_in_use"] >= streamed.others_bytes + COUNT * EACH
    assert stats["host_bytes_in_use"] == 0
    for variable, value in zip(weights.there, weights.values, strict=True):
        assert np.array_equal(variable.numpy(), value)


def test_values_that_do_not_fit_at_the_end_are_still_correct(streamed: Streamed) -> None:
    problem = streamed.lib.stream_variables(streamed.number, False)
    assert "not enough memory to restore a variable of 4.0 MiB" in problem
    streamed.stats()
    streamed.lib.set_budget(streamed.number, None)
    assert streamed.weights.are_right()


def test_deleted_variables_release_their_copies(streamed: Streamed) -> None:
    assert streamed.stats()["host_bytes_in_use"] >= COUNT * EACH - ROOM
    del streamed.weights
    gc.collect()
    assert settled()["host_bytes_in_use"] == 0


def test_values_in_host_memory_are_left_alone(number: int) -> None:
    lib = library.load()
    assert lib.stream_variables(number, True) == ""
    with tf.device("GPU:0"):
        counts = tf.Variable(tf.range(MIB, dtype=tf.int32))
    held = settled()["bytes_in_use"]
    lib.set_budget(number, held // 2)
    lib.make_room(number)
    lib.set_budget(number, None)
    assert settled()["copies_out"] == 0
    assert np.array_equal(counts.numpy(), np.arange(MIB))
    assert lib.stream_variables(number, False) == ""


# Copies that fail.


def test_a_copy_in_that_fails_is_an_error(streamed: Streamed) -> None:
    streamed.lib.set_faults("copy-in-fails")
    with pytest.raises(
        tf.errors.InternalError, match="swapping in a variable failed: injected fault"
    ):
        streamed.weights.are_right()
    streamed.lib.set_faults("")
    assert streamed.weights.are_right()


def test_values_that_cannot_be_copied_out_stay(streamed: Streamed) -> None:
    weights = streamed.weights
    streamed.lib.set_faults("copy-out-fails")
    with pytest.raises(tf.errors.OpError, match="Dst tensor is not initialized|memory budget"):
        for i in range(COUNT):
            weights.give(i, weights.values[i] + 1)
    streamed.lib.set_faults("")
    assert weights.are_right()
    streamed.stats()


def test_a_changed_byte_in_far_memory_is_detected(streamed: Streamed) -> None:
    weights = streamed.weights
    streamed.lib.set_verify(streamed.number, True)
    for i in range(COUNT):
        weights.give(
            i, weights.values[i] + 1
        )  # so that all get checksums when they are swapped out
    assert weights.are_right() and weights.are_right()
    streamed.lib.set_faults("bit-flip")
    with pytest.raises(tf.errors.DataLossError, match="came back from far memory changed"):
        for variable in reversed(weights.there):  # against the order in which they are fetched
            variable.numpy()
    streamed.lib.set_faults("")
    del weights, variable, streamed.weights
    gc.collect()


# Planned swaps.


def moved(op: str, variable: tf.Variable, **attributes: Any) -> tf.Operation:
    """Run `_VariableToHost` or `_VariableFromHost` on a variable."""
    from tensorflow.core.framework import attr_value_pb2

    attrs = {}
    for key, value in attributes.items():
        is_text = isinstance(value, str)
        attrs[key] = attr_value_pb2.AttrValue(
            **({"s": value.encode()} if is_text else {"b": value})
        )
    graph = tf.compat.v1.get_default_graph()
    return graph._create_op_internal(op, [variable.handle], dtypes=[], attrs=attrs, name="moved")


def planned_step(weights: Weights, **attributes: Any) -> Any:
    """Assign each variable and swap it out; swap it in once the one two before it is out."""

    @tf.function
    def step(expected: list[tf.Tensor]) -> tf.Tensor:
        same: list[tf.Tensor] = []
        last: list[Any] = []
        for i, host in enumerate(expected):
            with tf.device("GPU:0"), tf.control_dependencies(last):
                read = tf.identity(weights.there[i].read_value())
            with tf.device("CPU:0"):
                same.append(tf.reduce_all(tf.equal(tf.identity(read), host)))
            with tf.device("CPU:0"), tf.control_dependencies([same[-1]]):
                new = host * 2.0
            with tf.device("GPU:0"):
                given = weights.there[i].assign(tf.identity(new), read_value=False)
                with tf.control_dependencies([given]):
                    out = moved("_VariableToHost", weights.there[i], **attributes)
                with tf.control_dependencies([out]):
                    last = [moved("_VariableFromHost", weights.there[(i + 2) % COUNT])]
        with tf.device("CPU:0"):
            return tf.reduce_all(tf.stack(same))

    def run() -> bool:
        with tf.device("CPU:0"):
            same = bool(step([tf.constant(value) for value in weights.values]))
        weights.values = [value * 2 for value in weights.values]
        return same

    return run


@pytest.mark.parametrize("attributes", [{}, {"detached": True}, {"tier": "compressed"}])
def test_planned_swaps_of_variables(streamed: Streamed, attributes: dict[str, Any]) -> None:
    weights = streamed.weights
    if "tier" in attributes:
        attributes = {**attributes, "codec": "zvc"}
        for i in range(COUNT):
            weights.give(i, np.where(weights.values[i] < 0.6, 0, weights.values[i]))
        assert weights.are_right()
    step = planned_step(weights, **attributes)
    assert step()
    tfswap.reset_memory_stats("GPU:0")
    for _ in range(3):
        assert step()
    stats = streamed.stats()
    # A value that TensorFlow's copy from the host still references stays.
    assert stats["copies_out"] > 2 * COUNT and stats["copies_in"] > 2 * COUNT
    if "tier" in attributes:
        # Values that were evicted before their planned swap-out were not encoded.
        assert stats["far_compressed_copies_out"] > COUNT
        assert stats["far_compressed_kept_bytes_out"] < 0.7 * stats["far_compressed_bytes_out"]
    assert weights.are_right()


@pytest.fixture
def with_file(number: int, disk: Path, request: pytest.FixtureRequest) -> Iterator[Streamed]:
    """Open the file behind host memory whose limit is the fixture's parameter."""
    lib = library.load()
    lib.trim_host()
    lib.set_host_limit(request.param)
    lib.open_file(str(disk))
    made = Streamed()
    yield made
    lib.set_budget(number, None)
    assert lib.stream_variables(number, False) == ""
    lib.open_file(None)
    lib.set_host_limit(None)
    lib.trim_host()
    assert settled()["far_file_bytes_in_use"] == settled()["host_bytes_in_use"] == 0


@pytest.mark.parametrize("with_file", [None], indirect=True)
@pytest.mark.parametrize("detached", [False, True])
def test_planned_swaps_of_variables_to_the_file(with_file: Streamed, detached: bool) -> None:
    step = planned_step(with_file.weights, tier="file", detached=detached)
    for _ in range(3):
        assert step()
    assert with_file.weights.are_right()
    stats = with_file.stats()
    assert stats["far_file_copies_out"] >= COUNT and stats["file_errors"] == 0


@pytest.mark.parametrize("with_file", [20 * MIB], indirect=True)
def test_without_host_memory_they_go_to_the_file(with_file: Streamed) -> None:
    weights = with_file.weights
    for _ in range(2):
        for i in range(COUNT):
            weights.give(i, weights.values[i] + 1)
        assert weights.are_right()
    stats = with_file.stats()
    assert stats["far_file_copies_out"] > 0 and stats["file_errors"] == 0
    assert stats["host_bytes_in_use"] <= 20 * MIB


@pytest.mark.parametrize("with_file", [None], indirect=True)
def test_a_failed_read_of_the_file_is_an_error(with_file: Streamed) -> None:
    step = planned_step(with_file.weights, tier="file")
    assert step()
    with_file.lib.set_faults("read-error")
    with pytest.raises(tf.errors.InternalError, match="swapping in a variable failed: reading"):
        with_file.weights.are_right()
    with_file.lib.set_faults("")
    assert with_file.weights.are_right()


def test_a_plans_copy_that_fails_is_an_error(streamed: Streamed) -> None:
    weights = streamed.weights
    step = planned_step(weights, detached=True)
    assert step()
    streamed.lib.set_faults("copy-out-fails")
    # The first copy reports it: the plan's op, or an allocation that needs the memory.
    with pytest.raises(
        (tf.errors.InternalError, tf.errors.ResourceExhaustedError),
        match="swapping out a variable failed: injected fault|tfswap: the memory budget of",
    ):
        step()
    streamed.lib.set_faults("")
    for i, value in enumerate(weights.values):
        weights.give(i, value)
    assert step()
    assert weights.are_right()


# Several GPUs, and memory in the order of the compute stream.

ON_EACH = """
import json
import tensorflow as tf
from test_gpu_variables import Streamed

told = {}
for device in [gpu.name.split("device:")[1] for gpu in tf.config.list_logical_devices("GPU")]:
    told[device] = Streamed(device)
right = all([each.weights.are_right() for _ in range(2) for each in told.values()])
for each in told.values():
    for i in (1, 6):
        each.weights.give(i, each.weights.values[i] * 2)
right &= all([each.weights.are_right() for _ in range(2) for each in told.values()])
stats = {device: each.stats() for device, each in told.items()}
for each in told.values():
    each.lib.set_budget(each.number, None)
    right &= each.lib.stream_variables(each.number, False) == "" and each.weights.are_right()
print(json.dumps({"right": right, "stats": stats}))
"""


@on_fake_gpu
@pytest.mark.parametrize(
    ("gpus", "environment"),
    [
        (2, {"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_MEMORY_MIB": "4096,2560"}),
        pytest.param(1, {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}, marks=pytest.mark.slow),
    ],
)
def test_each_gpu_moves_its_own(gpus: int, environment: dict[str, str]) -> None:
    told = ran(ON_EACH, **environment)
    assert told["right"] and len(told["stats"]) == gpus
    for stats in told["stats"].values():
        assert stats["peak_bytes"] <= stats["budget_bytes"]
        assert stats["bytes_in"] > 2 * (COUNT * EACH - ROOM) and stats["bytes_out"] >= 2 * EACH
