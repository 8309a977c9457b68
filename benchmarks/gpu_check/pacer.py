"""Time blocks of a training's steps and record its losses, as a Keras callback."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import keras

from benchmarks.gpu_check.machine import GPU

if TYPE_CHECKING:
    from benchmarks.gpu_check.subject import Trained

# Steps before the first timed one: tracing and warm-up.
_WARM_STEPS = 3
# A training that changes its plan for longer than this is timed anyway.
_MAX_SETTLING_STEPS = 28
_STEADY = "steady"


class Pacer(keras.callbacks.Callback):
    """Goes before `AutoSwap` in the list: its work at a step's end is part of the step's time.

    The host runs ahead of the GPU, so steps are timed in blocks, between two moments at which the
    GPU is idle. Within a block nothing is read from it: losses stay on the GPU until the block has
    ended.
    """

    def __init__(self, blocks: int, steps_a_block: int, least_steps: int, seconds: float) -> None:
        super().__init__()
        self.most_steps = max(_MAX_SETTLING_STEPS + blocks * steps_a_block, least_steps)
        self._blocks, self._steps_a_block = blocks, steps_a_block
        self._least_steps = least_steps
        self._end_s = time.monotonic() + seconds
        self._losses: list[Any] = []
        self._read: list[str] = []
        self._block_s: list[float] = []
        self._copied: list[tuple[int, int]] = []
        self._in_block = 0  # its steps that have ended
        self._begun_s: float | None = None
        self._before: dict[str, Any] = {}
        self._settled = True
        self._stopped = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        import tfswap

        done = len(self._losses)
        if self._begun_s is not None or len(self._block_s) == self._blocks or done < _WARM_STEPS:
            return
        trainings = tfswap.status()["trainings"]
        steady = not trainings or trainings[-1]["phase"] == _STEADY
        if not steady and done < _MAX_SETTLING_STEPS:
            return
        self._settled = self._settled and steady
        self._wait()
        self._before = tfswap.memory_stats(GPU)
        self._in_block = 0
        self._begun_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        import tfswap

        self._losses.append(logs["loss"])
        print(".", end="", flush=True)  # a long silence counts as a hang
        if self._begun_s is not None:
            self._in_block += 1
            if self._in_block < self._steps_a_block:
                return
            self._wait()
            seconds = time.perf_counter() - self._begun_s
            after = tfswap.memory_stats(GPU)
            self._begun_s = None
            self._block_s.append(seconds / self._steps_a_block)
            out, back = (after[key] - self._before[key] for key in ("bytes_out", "bytes_in"))
            self._copied.append((out // self._steps_a_block, back // self._steps_a_block))
        self._read_losses()
        if time.monotonic() > self._end_s:
            self._stopped = len(self._block_s) < self._blocks
            self.model.stop_training = True
        if len(self._block_s) == self._blocks and len(self._losses) >= self._least_steps:
            self.model.stop_training = True

    def describe(self, trained: Trained) -> None:
        """Add the results; read losses of a block that did not end."""
        trained.steps = len(self._losses)
        if trained.error is None:
            self._read_losses()
        trained.losses = self._read
        trained.block_s = self._block_s
        trained.settled, trained.stopped = self._settled, self._stopped
        if self._block_s:
            trained.step_s = statistics.median(self._block_s)
            trained.bytes_out = int(statistics.median(out for out, _ in self._copied))
            trained.bytes_in = int(statistics.median(back for _, back in self._copied))
        self._losses = []

    def _read_losses(self) -> None:
        # A running mean is a function of all losses so far: equal bits mean equal losses.
        for position in range(len(self._read), len(self._losses)):
            self._read.append(float(self._losses[position]).hex())
            self._losses[position] = None

    @staticmethod
    def _wait() -> None:
        import tensorflow as tf

        tf.test.experimental.sync_devices()
