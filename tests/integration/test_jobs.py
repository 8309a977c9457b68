"""Several trainings in one process at once: one budget, the same numbers, nothing left behind."""

from __future__ import annotations

import gc
import random
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, compiled, convolutions, deterministic, images

import tfswap
from tests.support.allocators import Chain
from tfswap.ops.loaded_library import Library

EPOCHS = 3
BATCHES = 8


@pytest.fixture(autouse=True)
def determinism() -> None:
    deterministic()


@pytest.fixture
def chain(lib: Library) -> Iterator[Chain]:
    with Chain("statistics recording slab budget system", 64 * MIB) as made:
        for job in (1001, 1002):
            made.begin_job(job, 28 * MIB)
        yield made
        lib.set_threads_job(0)
        for job in (1001, 1002):
            made.end_job(job)
        assert made.stats()["bytes_in_use"] == made.stats()["budget_in_use"] == 0


def test_a_share_is_hard_and_no_business_of_the_others(chain: Chain, lib: Library) -> None:
    lib.set_threads_job(1001)
    first = chain.allocate(20 * MIB)
    assert first and chain.job_bytes(1001) == 20 * MIB
    assert chain.allocate(9 * MIB, retry=False) == 0
    lib.set_threads_job(1002)
    second = chain.allocate(28 * MIB)
    assert second and chain.job_bytes(1002) == 28 * MIB
    lib.set_threads_job(0)
    everybodys = chain.allocate(16 * MIB)
    assert everybodys and chain.job_bytes(0) == 16 * MIB
    assert chain.allocate(MIB, retry=False) == 0  # the budget is full
    # Whoever frees it, it was the first job's.
    chain.free(first)
    assert chain.job_bytes(1001) == 0 and chain.job_bytes(1002) == 28 * MIB
    for each in (second, everybodys):
        chain.free(each)


def test_what_a_job_leaves_behind_is_nobodys(chain: Chain, lib: Library) -> None:
    lib.set_threads_job(1001)
    left = chain.allocate(20 * MIB)
    chain.end_job(1001)
    assert chain.job_bytes(0) == 20 * MIB
    later = 1001 + 2 * lib.most_jobs()  # where the first one was
    chain.begin_job(later, 28 * MIB)
    assert chain.job_bytes(later) == 0
    chain.free(left)
    assert chain.job_bytes(later) == chain.job_bytes(0) == 0
    chain.end_job(later)


def test_what_is_older_than_the_jobs_becomes_a_part_of_the_share_of_who_frees_it(
    lib: Library,
) -> None:
    with Chain("statistics recording slab budget system", 64 * MIB) as chain:
        variables = [chain.allocate(8 * MIB) for _ in range(5)]
        chain.begin_job(1001, 12 * MIB)
        chain.begin_job(1002, 12 * MIB)
        later = chain.allocate(MIB // 2)  # nobody's, but no older
        lib.set_threads_job(1001)
        # Each value is made before the one that it replaces is gone.
        for place, value in enumerate(variables):
            variables[place] = chain.allocate(8 * MIB, retry=False)
            assert variables[place], place
            chain.free(value)
        assert chain.job_bytes(1001) == 40 * MIB and chain.job_bytes(0) == MIB // 2
        chain.free(later)
        assert chain.allocate(13 * MIB, retry=False) == 0
        lib.set_threads_job(1002)
        others = chain.allocate(12 * MIB, retry=False)  # as ever
        assert others and chain.allocate(MIB, retry=False) == 0
        assert chain.stats()["budget_peak"] <= 64 * MIB
        lib.set_threads_job(0)
        for block in (*variables, others):
            chain.free(block)
        chain.end_job(1001)
        chain.end_job(1002)


def test_a_share_that_is_waited_for_comes_from_the_jobs_own_thread(
    chain: Chain, lib: Library
) -> None:
    lib.set_threads_job(1001)
    held = chain.allocate(20 * MIB)
    freed = threading.Timer(0.03, lambda: chain.free(held))
    freed.start()
    got = chain.allocate(20 * MIB)
    freed.join()
    assert got
    chain.free(got)


def test_jobs_are_counted_apart_whoever_frees(chain: Chain, lib: Library) -> None:
    jobs = (0, 1001, 1002)
    held: dict[int, list[tuple[int, int]]] = {job: [] for job in jobs}
    lock = threading.Lock()
    problems: list[str] = []

    def work(job: int, seed: int) -> None:
        lib.set_threads_job(job)
        dice = random.Random(seed)
        for _ in range(400):
            if dice.random() < 0.5:
                size = dice.choice((64, 5000, 100_000, MIB))
                address = chain.allocate(size)
                if not address:
                    problems.append(f"{size} bytes were refused")
                    return
                with lock:
                    held[job].append((address, size))
            else:
                with lock:
                    full = [each for each in jobs if len(held[each]) > 3]
                    block = held[dice.choice(full)].pop() if full else None
                if block:
                    chain.free(block[0])

    threads = [threading.Thread(target=work, args=(job, i)) for i, job in enumerate(jobs * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    for job in (1001, 1002):
        counted = sum(size for _, size in held[job] if size >= 4096)
        assert counted <= chain.job_bytes(job) <= counted + sum(size for _, size in held[job])
    for address, _ in sum(held.values(), []):
        chain.free(address)
    assert [chain.job_bytes(job) for job in jobs] == [0, 0, 0]


class _Steps(keras.callbacks.Callback):
    """Losses, and what has been said to happen after some of them."""

    def __init__(self, after: dict[int, Callable[[], Any]] | None = None) -> None:
        super().__init__()
        self.after = after or {}
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        self.after.get(len(self.losses), lambda: None)()


def _model(depth: int) -> keras.Model:
    keras.utils.set_random_seed(depth)
    return compiled(convolutions(depth=depth))


def _fit(model: keras.Model, callbacks: list[Any], epochs: int = EPOCHS) -> None:
    x, y = images(32 * BATCHES)
    model.fit(x, y, batch_size=32, shuffle=False, verbose=0, epochs=epochs, callbacks=callbacks)


def _at_once(*todo: Callable[[], Any]) -> list[BaseException | None]:
    """Runs them in threads; answers what each raised."""
    raised: list[BaseException | None] = [None] * len(todo)

    def run(place: int) -> None:
        try:
            todo[place]()
        except BaseException as error:
            raised[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(todo))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


DEPTHS = (6, 8)


@pytest.fixture(scope="module")
def alone() -> dict[int, tuple[list[float], int]]:
    """Of each depth, the losses and what training needs beside what is there."""
    deterministic()
    found = {}
    for depth in DEPTHS:
        keras.utils.clear_session()
        gc.collect()
        before = tfswap.memory_stats()["bytes_in_use"]
        tfswap.reset_memory_stats()
        steps = _Steps()
        _fit(_model(depth), [steps], EPOCHS + 1)
        found[depth] = steps.losses, tfswap.memory_stats()["peak_bytes"] - before
    return found


def _budget(alone: dict[int, tuple[list[float], int]], part: float) -> int:
    keras.utils.clear_session()
    gc.collect()
    needed = sum(alone[depth][1] for depth in DEPTHS)
    return tfswap.memory_stats()["bytes_in_use"] + int(part * needed)


def _nothing_is_left(lib: Library) -> None:
    gc.collect()
    stats = tfswap.memory_stats()
    assert stats["budget_bytes"] is None and stats["host_limit_bytes"] is None
    assert stats["host_bytes_in_use"] == stats["host_bytes_cached"] == 0
    assert tfswap.status()["trainings"] == []
    assert lib.everybodys_bytes(0) == stats["bytes_in_use"]


def test_two_fits_at_once_have_their_losses_within_one_budget(alone, lib) -> None:
    budget = _budget(alone, 0.6)
    models = [_model(depth) for depth in DEPTHS]
    steps = [_Steps() for _ in DEPTHS]
    swaps = [tfswap.AutoSwap(budget=budget, verbose=0) for _ in DEPTHS]
    shares: list[list[int]] = []

    def look() -> None:
        found = [each["share_bytes"] for each in tfswap.status()["trainings"]]
        if len(found) == 2 and None not in found:
            shares.append(found)

    for each in steps:
        each.after = dict.fromkeys(range(1, EPOCHS * BATCHES), look)
    tfswap.reset_memory_stats()
    raised = _at_once(
        *(lambda i=i: _fit(models[i], [swaps[i], steps[i]]) for i in range(len(DEPTHS)))
    )
    assert raised == [None, None]
    for depth, each in zip(DEPTHS, steps, strict=True):
        assert each.losses == alone[depth][0][: EPOCHS * BATCHES]
    assert tfswap.memory_stats()["peak_bytes"] <= budget
    assert shares and all(sum(each) <= budget for each in shares)
    for swap in swaps:
        report = swap.report
        assert report["outcome"] in ("swapped", "fits")
        assert 0 < report["measured_peak_bytes"] <= report["budget_bytes"] <= budget
    assert tfswap.memory_stats()["copies_out"] > 0
    _nothing_is_left(lib)


def test_one_joins_midway_and_the_other_has_all_again_afterwards(alone, lib) -> None:
    budget = _budget(alone, 0.6)
    models = [_model(depth) for depth in DEPTHS]
    begin, over = threading.Event(), threading.Event()
    steps = [_Steps({10: begin.set, 18: over.wait}), _Steps()]
    swaps = [tfswap.AutoSwap(budget=budget, verbose=0) for _ in DEPTHS]

    def later() -> None:
        begin.wait()
        try:
            _fit(models[1], [swaps[1], steps[1]], 1)
        finally:
            over.set()

    tfswap.reset_memory_stats()
    raised = _at_once(lambda: _fit(models[0], [swaps[0], steps[0]], EPOCHS + 1), later)
    assert raised == [None, None]
    assert steps[0].losses == alone[DEPTHS[0]][0]
    assert steps[1].losses == alone[DEPTHS[1]][0][:BATCHES]
    assert tfswap.memory_stats()["peak_bytes"] <= budget
    notes = swaps[0].report["notes"]
    assert any("2 trainings share the device" in note for note in notes)
    assert any("has the device for itself again" in note for note in notes)
    _nothing_is_left(lib)


def test_an_error_in_one_leaves_the_other_alone(alone, lib) -> None:
    budget = _budget(alone, 0.6)
    models = [_model(depth) for depth in DEPTHS]

    def fail() -> None:
        raise RuntimeError("on purpose")

    steps = [_Steps(), _Steps({6: fail})]
    swaps = [tfswap.AutoSwap(budget=budget, verbose=0) for _ in DEPTHS]
    raised = _at_once(
        *(lambda i=i: _fit(models[i], [swaps[i], steps[i]], 2) for i in range(len(DEPTHS)))
    )
    assert raised[0] is None and "on purpose" in str(raised[1])
    assert steps[0].losses == alone[DEPTHS[0]][0][: 2 * BATCHES]
    assert steps[1].losses == alone[DEPTHS[1]][0][:6]
    raised.clear()
    _nothing_is_left(lib)


def test_functions_of_two_threads_share_a_budget(lib) -> None:
    def make(seed: int) -> tuple[Callable[[], tf.Tensor], Any]:
        kernel = tf.Variable(tf.random.stateless_normal([256, 256], [seed, 0]) / 16)
        batch = tf.random.stateless_normal([4096, 256], [seed, 1])

        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                hidden = batch
                for _ in range(8):
                    hidden = tf.tanh(hidden @ kernel)
                loss = tf.reduce_mean(hidden**2)
            kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
            return loss

        return step, kernel

    def losses(step: Callable[[], tf.Tensor]) -> list[float]:
        return [float(step()) for _ in range(12)]

    unswapped = [losses(tf.function(make(seed)[0])) for seed in (1, 2)]
    gc.collect()
    budget = tfswap.memory_stats()["bytes_in_use"] + 110 * MIB
    found: dict[int, list[float]] = {}
    swapped = []
    for seed in (1, 2):
        step, kernel = make(seed)
        swapped.append(tfswap.swap(tf.function(step), budget=budget, verbose=0))
        assert kernel is not None
    barrier = threading.Barrier(2)

    def run(place: int) -> None:
        first = float(swapped[place]())
        barrier.wait()
        found[place] = [first, *(float(swapped[place]()) for _ in range(11))]

    tfswap.reset_memory_stats()
    assert _at_once(lambda: run(0), lambda: run(1)) == [None, None]
    assert [found[0], found[1]] == unswapped
    assert tfswap.memory_stats()["peak_bytes"] <= budget
    for each in swapped:
        assert each.report["budget_bytes"] < budget
        each.release()
    _nothing_is_left(lib)


def test_a_share_that_does_not_do_is_told_of(lib) -> None:
    budget = tfswap.memory_stats()["bytes_in_use"] + 100 * MIB
    weights = [tf.Variable(tf.ones([4, 4096])) for _ in range(2)]

    def make(place: int) -> Any:
        @tfswap.swap(budget=budget, verbose=0)
        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((x @ weights[place]) ** 2)
            weights[place].assign_sub(1e-9 * tape.gradient(loss, weights[place]))
            return loss

        return step

    steps = [make(0), make(1)]
    both = threading.Barrier(2)

    def large() -> None:
        steps[0](tf.ones([2, 4]))
        both.wait()
        try:
            steps[0](tf.ones([4096, 4]))  # makes 64 MiB
        finally:
            both.wait()

    def small() -> None:
        steps[1](tf.ones([2, 4]))
        both.wait()
        for _ in range(5):
            steps[1](tf.ones([2, 4]))
        both.wait()

    failed, fine = _at_once(large, small)
    assert isinstance(failed, tf.errors.ResourceExhaustedError) and fine is None
    text = str(failed)
    assert re.search(r"which is what this training has of 1\d\d.* beside others, is exceeded", text)
    assert "let another training end first, or give this one a minimum" in text
    for step in steps:
        step.release()
    _nothing_is_left(lib)


@pytest.mark.filterwarnings("ignore:tfswap.*did not run:UserWarning")
def test_options_that_differ_are_told_of() -> None:
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with tfswap.Session(budget="1GiB", verbose=0):
            step = tf.function(lambda x: x + 1)
            step(tf.constant(1.0))
            begun.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    try:
        inner = tfswap.AutoSwap(budget="1GiB", verbose=0, stream_weights=True)
        outer = keras.Sequential([keras.layers.Dense(1)])
        outer.compile("sgd", "mse", jit_compile=False)
        # The session is between two calls, so it gives way.
        outer.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[inner])
    finally:
        over.set()
        thread.join()
