"""Faults in the middle of trainings: correct losses or one clear error, and nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import deterministic

import tfswap
from benchmarks.faults.__main__ import RIGHT
from benchmarks.faults.cases import HOOKS, KINDS, LAZY, PLANNED, Case, drawn
from benchmarks.faults.disk_folder import disk_folder
from benchmarks.faults.happenings import fork_and_wait
from benchmarks.faults.one_case import run
from benchmarks.faults.subjects import subject

MAX_LOOKED_AT = 40


@pytest.fixture(autouse=True)
def determinism() -> None:
    deterministic()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    try:
        found = disk_folder()
    except OSError as error:
        pytest.skip(str(error))
    yield found
    shutil.rmtree(found)
    subject.cache_clear()


def settled() -> dict[str, int]:
    """Return what is in use once the copy threads have released theirs."""
    deadline_s = time.monotonic() + 2
    while tfswap.memory_stats()["far_buffers"] and time.monotonic() < deadline_s:
        time.sleep(0.01)
    stats = tfswap.memory_stats()
    return {name: stats[name] for name in ("bytes_in_use", "host_bytes_in_use", "far_buffers")}


def check_case(case: Case, folder: Path) -> None:
    answer = run(case, folder)
    assert answer["outcome"] in RIGHT, f"{case}: {answer}"


# One of each, under on-demand swaps or a plan, with a fault that takes effect.
QUICK = [
    Case(0, "copy-out-fails", "", "convolutions", PLANNED, (), 1, 1, 1, 0.5),
    Case(1, "copy-in-fails", "", "convolutions", PLANNED, (), 1, 2, 1, 0.5),
    Case(2, "copy-throws", "", "convolutions", LAZY, (), 1, 3, 3, 0.5),
    Case(3, "bit-flip", "", "convolutions", PLANNED, ("verify",), 1, 2, 1, 0.3),
    Case(5, "file-bit-flip", "", "convolutions", LAZY, ("file",), 1, 1, 1, 0.3),
    Case(6, "allocation-fails", "", "convolutions", PLANNED, (), 2, 20, 1, 0.5),
    Case(7, "thread-dies", "", "convolutions", PLANNED, (), 1, 0, 3, 0.5),
    Case(8, "cancel", "", "convolutions", PLANNED, (), 1, 300, 1, 0.5),
    Case(9, "interrupt", "", "convolutions", PLANNED, (), 1, 0, 1, 0.6),
    Case(10, "callback-raises", "on_epoch_end", "convolutions", PLANNED, ("slab",), 1, 0, 1, 0.2),
    Case(11, "fork", "in a step", "convolutions", PLANNED, (), 1, 0, 1, 0.4),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK, ids=lambda case: f"{case.number}-{case.kind}")
def test_a_fault_ends_in_correct_losses_or_a_clear_error(case: Case, folder: Path) -> None:
    check_case(case, folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name in KINDS if name != "kill-9"])
def test_random_faults_end_in_correct_losses_or_a_clear_error(kind, folder) -> None:
    for case in drawn(11, 5, (kind,)):
        check_case(case, folder)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_flipped_bit_of_encoded_data_is_detected(part: float, folder: Path) -> None:
    options = ("codec", "verify")
    check_case(Case(0, "bit-flip", "", "convolutions", PLANNED, options, 1, 2, 1, part), folder)


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("part", [0.2, 0.8], ids=["in front", "behind"])
def test_every_callback_may_raise(hook: str, part: float, folder: Path) -> None:
    case = Case(0, "callback-raises", hook, "convolutions", LAZY, (), 1, 0, 1, part)
    check_case(case, folder)


@pytest.mark.slow
def test_a_training_can_be_cancelled_at_every_node_of_a_step(lib, folder: Path) -> None:
    """Cancel at random nodes; the test below tries every node of a smaller step."""
    case = Case(0, "cancel", "", "convolutions", PLANNED, (), 1, 0, 1, 0.5)
    for after in np.random.default_rng(0).integers(0, 600, MAX_LOOKED_AT):
        check_case(dataclasses.replace(case, after=int(after)), folder)


def test_a_step_cancelled_at_any_of_its_nodes_leaves_nothing(lib) -> None:
    from tests.copy_ops import copy_from_host, copy_to_host

    @tf.function
    def step(x):
        handles = []
        for _ in range(3):
            x = tf.nn.relu(x + 1.0)
            handles.append(copy_to_host(x))
        for handle in handles:
            x += copy_from_host(handle, tf.float32)
        return tf.reduce_sum(x)

    x = tf.ones([1 << 18])
    right = float(step(x))
    base = settled()
    lib.set_faults("cancel after=1000000000")
    step(x)
    nodes = lib.fault_counts()["cancel"][0]
    assert nodes > 10
    outcomes = set()
    for node in range(nodes):
        lib.set_faults(f"cancel after={node} times=1")
        try:
            assert float(step(x)) == right
            outcomes.add("right")
        except tf.errors.CancelledError as error:
            assert "tfswap: the step was cancelled before" in str(error)
            outcomes.add("cancelled")
        lib.set_faults("")
        assert float(step(x)) == right
    assert "cancelled" in outcomes
    assert settled() == base


@pytest.mark.slow
def test_the_process_can_be_forked_at_any_moment(folder: Path) -> None:
    """Fork in another thread during arbitrary steps of the training."""
    one = subject("convolutions")
    done = threading.Event()
    problems: list[BaseException] = []
    forks = 0

    def fork() -> None:
        nonlocal forks
        while not done.is_set() and not problems:
            try:
                fork_and_wait()
                forks += 1
            except RuntimeError as error:
                problems.append(error)

    thread = threading.Thread(target=fork)
    swap = one.swap(PLANNED, (), folder)
    thread.start()
    try:
        for _ in range(5):
            assert one.train([swap], 14) == one.losses[:14]
    finally:
        done.set()
        thread.join()
    assert problems == [] and forks > 5


FORKED = """
import os, sys
import tfswap, keras
from models import compiled, convolutions, trained
class Fork(keras.callbacks.Callback):
    child = 0
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            Fork.child = os.fork()
            if not Fork.child:
                raise SystemExit(0)  # through fit and all that takes things back
swap = tfswap.AutoSwap(budget="100MiB", spill_dir=sys.argv[1], verbose=0)
try:
    trained(lambda: compiled(convolutions(depth=4)), [swap, Fork()], epochs=2)
except SystemExit:
    os._exit(0)  # a forked interpreter with TensorFlow hangs at its end, without tfswap, too
print("child", os.waitpid(Fork.child, 0)[1], "file", tfswap.memory_stats()["budget_bytes"])
"""


@pytest.mark.slow
def test_a_forked_process_that_unwinds_a_training_releases_nothing(folder: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(folder)]
    path = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "child 0 file None" in ended.stdout


def test_a_flipped_bit_passes_without_verify(lib, folder: Path) -> None:
    """Show what `verify` is for: host memory has no checksums of its own."""
    one = subject("convolutions")
    losses = {}
    for options in ((), ("verify",)):

        class Flip(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if batch == 1:
                    # The sign of a float.
                    lib.set_faults("bit-flip bit=31")

        try:
            losses[options] = one.train([Flip(), one.swap(PLANNED, options, folder)], 4)
        except tf.errors.DataLossError:
            losses[options] = []
        lib.set_faults("")
    assert losses[("verify",)] == []
    assert len(losses[()]) == 4


def test_a_stored_exception_of_a_fit_does_not_keep_the_device(folder: Path) -> None:
    """Store the exception as a debugger or a notebook does, with all of its frames."""
    one = subject("convolutions")

    class Boom(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise RuntimeError("boom")

    keras.config.disable_traceback_filtering()
    kept = None
    try:
        try:
            one.train([one.swap(LAZY, (), folder), Boom()], 3)
        except RuntimeError as error:
            kept = error
        assert str(kept) == "boom"
        assert one.train([one.swap(LAZY, (), folder)], 3) == one.losses[:3]
    finally:
        del kept
        keras.config.enable_traceback_filtering()
