"""One training at a time uses a process's devices: a second is refused, an idle one yields."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import MIB, compiled, convolutions, deterministic, images

import tfswap
from tfswap.devices.swap_session import DeviceBusy

BATCHES = 6


@pytest.fixture(autouse=True)
def determinism() -> None:
    deterministic()


class _Steps(keras.callbacks.Callback):
    """Record losses, and run functions after some of the steps."""

    def __init__(self, after: dict[int, Callable[[], Any]] | None = None) -> None:
        super().__init__()
        self.after = after or {}
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        self.after.get(len(self.losses), lambda: None)()


def _fit(callbacks: list[Any], epochs: int = 2) -> None:
    keras.utils.set_random_seed(6)
    x, y = images(32 * BATCHES)
    compiled(convolutions(depth=6)).fit(
        x, y, batch_size=32, shuffle=False, verbose=0, epochs=epochs, callbacks=callbacks
    )


def _small_fit(swap: tfswap.AutoSwap) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[swap])


@pytest.fixture(scope="module")
def unswapped() -> tuple[list[float], int]:
    """Return losses without tfswap, and the bytes that training needs."""
    deterministic()
    before = tfswap.memory_stats()["bytes_in_use"]
    tfswap.reset_memory_stats()
    steps = _Steps()
    _fit([steps])
    return steps.losses, tfswap.memory_stats()["peak_bytes"] - before


def _budget(unswapped: tuple[list[float], int]) -> int:
    keras.utils.clear_session()
    gc.collect()
    return tfswap.memory_stats()["bytes_in_use"] + int(0.6 * unswapped[1])


def _in_a_thread(todo: Callable[[], Any]) -> BaseException | None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            todo()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="second")
    thread.start()
    thread.join()
    return raised[0] if raised else None


def _nothing_is_left() -> None:
    gc.collect()
    stats = tfswap.memory_stats()
    assert stats["budget_bytes"] is None and stats["host_limit_bytes"] is None
    assert stats["host_bytes_in_use"] == stats["host_bytes_cached"] == 0
    assert tfswap.status()["trainings"] == []


@pytest.mark.filterwarnings("ignore:tfswap.*did not run:UserWarning")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same thread", "another thread"])
def test_a_second_fit_is_refused_and_the_first_continues(
    unswapped: tuple[list[float], int], elsewhere: bool
) -> None:
    budget = _budget(unswapped)
    found: list[BaseException | None] = []

    def begin_another() -> None:
        second = tfswap.AutoSwap(budget=budget, verbose=0)
        if elsewhere:
            found.append(_in_a_thread(lambda: _small_fit(second)))
            return
        with pytest.raises(DeviceBusy) as refused:
            _small_fit(second)
        found.append(refused.value)

    steps = _Steps({4: begin_another})
    first = tfswap.AutoSwap(budget=budget, verbose=0)
    tfswap.reset_memory_stats()
    _fit([first, steps])
    where = "in thread 'MainThread'" if elsewhere else "in this thread"
    said = str(found[0])
    assert isinstance(found[0], DeviceBusy) and f"another training is under way {where}" in said
    assert "one tfswap.Session" in said and "`tfswap broker`" in said
    assert steps.losses == unswapped[0]
    assert first.report.outcome == "swapped"
    assert tfswap.memory_stats()["peak_bytes"] <= budget
    _nothing_is_left()


def test_a_fit_in_another_thread_after_the_first_one_trains() -> None:
    for _ in range(2):
        assert _in_a_thread(lambda: _small_fit(tfswap.AutoSwap(budget="1GiB", verbose=0))) is None
    _nothing_is_left()


@pytest.mark.filterwarnings("ignore:tfswap.*did not run:UserWarning")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["same thread", "another thread"])
def test_a_session_yields_to_a_fit_between_its_calls_and_continues_afterwards(
    elsewhere: bool,
) -> None:
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ weights) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    budget = tfswap.memory_stats()["bytes_in_use"] + 200 * MIB
    with tfswap.Session(budget=budget, verbose=0):
        step(tf.ones([2, 4]))
        inner = tfswap.AutoSwap(budget="1GiB", verbose=0)
        if elsewhere:
            assert _in_a_thread(lambda: _small_fit(inner)) is None
        else:
            _small_fit(inner)
        assert tfswap.memory_stats()["budget_bytes"] == budget
        step(tf.ones([2, 4]))
        assert tfswap.memory_stats()["budget_bytes"] == budget
    _nothing_is_left()


def test_a_session_cannot_be_entered_during_a_fit() -> None:
    found: list[BaseException | None] = []

    def enter() -> None:
        with tfswap.Session(budget="1GiB", verbose=0):
            pass

    after = _Steps({1: lambda: found.append(_in_a_thread(enter))})
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    swap = tfswap.AutoSwap(budget="1GiB", verbose=0)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[swap, after])
    assert isinstance(found[0], DeviceBusy)
    _nothing_is_left()


def test_concurrent_calls_of_another_thread_run_within_the_budget() -> None:
    weights = [tf.Variable(tf.ones([4, 1])) for _ in range(2)]
    budget = tfswap.memory_stats()["bytes_in_use"] + 200 * MIB

    def make(place: int) -> Any:
        @tfswap.swap(budget=budget, verbose=0)
        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((x @ weights[place]) ** 2)
            weights[place].assign_sub(1e-3 * tape.gradient(loss, weights[place]))
            return loss

        return step

    steps = [make(0), make(1)]
    losses: list[list[float]] = [[], []]

    def train(place: int) -> None:
        losses[place] += [float(steps[place](tf.ones([2, 4]))) for _ in range(12)]

    threads = [threading.Thread(target=train, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert losses[0] == losses[1] and len(losses[0]) == 12
    steps[0].release()
    _nothing_is_left()


def test_a_share_without_a_broker_is_refused() -> None:
    for share in ("weight=2", tfswap.Share(weight=2)):
        with pytest.raises(ValueError, match=r"tfswap broker.*tfswap\.Session"):
            tfswap.AutoSwap(share=share)
