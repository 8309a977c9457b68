"""Faults in Python: exceptions, interrupts, forks, trainings inside of trainings."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfswap
from benchmarks.faults.cases import Case
from tfswap.ops import library

_CHILD_S = 20.0


class Boom(Exception):
    """The error of a callback or of data."""


class AtStep(keras.callbacks.Callback):
    """Call a function when a step begins.

    Args:
        step: The step's number, from 0.
        act: The function.
    """

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        super().__init__()
        self._step, self._act, self._begun = step, act, 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begun += 1
        if self._begun == self._step + 1:
            self._act()


def core_fault(case: Case) -> AtStep:
    """Return a callback that makes the core fail from a step on."""
    return AtStep(case.step, lambda: library.load().set_faults(case.fault))


class Raises(keras.callbacks.Callback):
    """Raise in one of the callback's methods.

    Args:
        hook: The method's name.
        step: The step in which a step's method raises.
    """

    def __init__(self, hook: str, step: int) -> None:
        super().__init__()
        self._left = step if hook.startswith("on_train_batch") else 0
        setattr(self, hook, self._boom)

    def _boom(self, *arguments: Any, **others: Any) -> None:
        if self._left == 0:
            raise Boom("a callback has failed")
        self._left -= 1


def raising(arrays: tuple[Any, Any], batch: int, step: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches until it raises."""
    x, y = arrays
    for i in range(step):
        yield x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch]
    raise Boom("the data have ended")


class Batches(keras.utils.PyDataset):
    """Batches from worker processes."""

    def __init__(self, x: Any, y: Any, batch: int, steps: int) -> None:
        super().__init__(workers=2, use_multiprocessing=True, max_queue_size=4)
        self._x, self._y, self._batch, self._steps = x, y, batch, steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        part = slice(index * self._batch, (index + 1) * self._batch)
        return self._x[part].copy(), self._y[part].copy()


@contextlib.contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Send SIGINT after a delay, unless the block has ended by then."""
    armed = True

    def handle(number: int, frame: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        armed = False
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)


def _work_in_child(kept: list[Any]) -> None:
    """Work like a data loader's process, and end."""
    values = np.random.default_rng(0).random((64, 64))
    assert float((values @ values).sum()) > 0
    kept.clear()  # tensors of the parent
    gc.collect()
    assert float(tf.reduce_sum(tf.ones([1 << 12]))) == 1 << 12


def fork_and_wait() -> None:
    """Fork a process that works and ends, like those of multiprocessing.

    Raises:
        RuntimeError: It did not end well.
    """
    kept = [tf.zeros([1 << 18])]
    child = multiprocessing.get_context("fork").Process(target=_work_in_child, args=(kept,))
    child.start()
    child.join(_CHILD_S)
    if child.exitcode != 0:
        child.kill()
        raise RuntimeError(f"the forked process has not ended but with {child.exitcode}")


class InThread:
    """Run a function in another thread, and keep its result.

    Args:
        act: The function.
        delay_s: The delay.
    """

    def __init__(self, act: Callable[[], Any], delay_s: float = 0) -> None:
        self.error: BaseException | None = None
        self.answer: Any = None
        self._act, self._delay_s = act, delay_s
        self._thread = threading.Thread(target=self._run, name="tfswap-faults")

    def _run(self) -> None:
        threading.Event().wait(self._delay_s)
        try:
            self.answer = self._act()
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()


def no_faults() -> None:
    """Disable all faults."""
    library.load().set_faults("")


def struck(case: Case) -> int:
    """Return how often the core's fault took effect."""
    return library.load().fault_counts().get(case.kind, (0, 0))[1]


__all__ = ["AtStep", "Batches", "Boom", "InThread", "Raises", "core_fault", "fork_and_wait",
           "interrupted", "no_faults", "raising", "struck", "tfswap"]  # fmt: skip
