"""A model that is trained repeatedly from the same start, with and without a budget."""

from __future__ import annotations

import gc
import re
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gpu_check.machine import GPU
from benchmarks.models import Workload

_REPORTED = (
    "outcome",
    "budget_bytes",
    "unswapped_peak_bytes",
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "unswapped_step_s",
    "predicted_step_s",
    "predicted_wait_s",
    "least_wait_s",
    "step_s",
    "bytes_out_per_step",
    "bytes_in_per_step",
    "swapped_buffers",
    "host_peak_bytes",
    "corrections",
)
_REFUSAL = re.compile(r"the memory budget of .* is exceeded: .*")
_NEEDED = re.compile(r"The smallest budget that could work is ([\d.]+ ?\w+)")


@dataclass
class Trained:
    """The results of one training; bytes and seconds, None if unknown.

    Attributes:
        resident_bytes: On the device before it began: weights and optimizer state.
        steps: Number of steps.
        losses: After each step, as hexadecimal floats: equal text means equal bits.
        step_s: Median of the timed blocks, after everything had settled.
        block_s: Step time in each block.
        peak_bytes: Peak of the device over the whole training.
        bytes_out: Bytes swapped out in a timed step.
        bytes_in: Bytes swapped in.
        settled: Whether planning and measuring had ended when blocks were timed.
        seconds: Time of the whole training, including that for building graphs.
        error: The reason of an early end.
        needed_bytes: The smallest budget that could work, if the error names it.
        report: `AutoSwap`'s report.
    """

    budget_bytes: int | None = None
    resident_bytes: int = 0
    steps: int = 0
    losses: list[str] = field(default_factory=list)
    step_s: float | None = None
    block_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    bytes_out: int | None = None
    bytes_in: int | None = None
    far_peak_bytes: int = 0
    settled: bool = False
    stopped: bool = False
    seconds: float = 0.0
    error: str | None = None
    needed_bytes: int | None = None
    report: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def copied_bytes_per_s(self) -> float | None:
        """Return bytes out and in divided by the step's time."""
        if self.step_s is None or self.bytes_out is None or self.bytes_in is None:
            return None
        return (self.bytes_out + self.bytes_in) / self.step_s

    @property
    def over_budget(self) -> bool:
        """Return whether the training exceeded the budget; not if it began above it."""
        if self.budget_bytes is None:
            return False
        return self.peak_bytes > max(self.budget_bytes, self.resident_bytes)


class Subject:
    """A compiled model, its batch, and the initial values of all its variables."""

    def __init__(self, work: Workload) -> None:
        self.model = work.model
        self.x, self.y = work.x, work.y
        self.model.optimizer.build(self.model.trainable_variables)
        self._variables = [*self.model.variables, *self.model.optimizer.variables]
        self._first_values = [variable.numpy() for variable in self._variables]

    def take(self, x: Any, y: Any) -> None:
        """Train on another batch from now on."""
        self.x, self.y = x, y
        # Otherwise Keras builds one function for all batches, with unknown shapes.
        self.model.make_train_function(force=True)

    def train(
        self,
        swap: Any = None,
        *,
        budget_bytes: int | None = None,
        blocks: int = 3,
        steps_a_block: int = 2,
        least_steps: int = 0,
        seconds: float = float("inf"),
    ) -> Trained:
        """Train from the start, until the timed steps are done.

        Args:
            swap: An `AutoSwap` of this budget; None trains without.
            budget_bytes: Cap on the GPU's memory.
            blocks: Number of blocks of steps, after each of which the GPU is waited for.
            steps_a_block: Number of steps in a block.
            least_steps: Minimum number of steps.
            seconds: After that time, the next step is the last.
        """
        import tensorflow as tf

        import tfswap
        from benchmarks.gpu_check.pacer import Pacer

        for variable, value in zip(self._variables, self._first_values, strict=True):
            variable.assign(value)
        gc.collect()
        tf.test.experimental.sync_devices()
        with tf.device("CPU:0"):
            data = tf.data.Dataset.from_tensors((self.x, self.y)).repeat()
        shown = "no budget" if budget_bytes is None else f"a budget of {budget_bytes} bytes"
        print(f"training under {shown} {'with' if swap else 'without'} tfswap ", end="", flush=True)
        pacer = Pacer(blocks, steps_a_block, least_steps, seconds)
        trained = Trained(budget_bytes=budget_bytes)
        begun_s = time.monotonic()
        tfswap.reset_memory_stats(GPU)
        trained.resident_bytes = tfswap.memory_stats(GPU)["bytes_in_use"]
        if swap is None:
            tfswap.set_budget(budget_bytes, GPU)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.model.fit(
                    data,
                    steps_per_epoch=pacer.most_steps,
                    verbose=0,
                    shuffle=False,
                    callbacks=[pacer, swap] if swap is not None else [pacer],
                )
            except tf.errors.ResourceExhaustedError as error:
                trained.error = _own_words(str(error))
                trained.needed_bytes = _needed_bytes(str(error))
        print()
        del data
        gc.collect()
        tf.test.experimental.sync_devices()
        trained.seconds = time.monotonic() - begun_s
        stats = tfswap.memory_stats(GPU)
        tfswap.set_budget(None, GPU)
        trained.peak_bytes = stats["peak_bytes"]
        trained.far_peak_bytes = stats["host_peak_bytes"]
        trained.warnings = [str(w.message) for w in caught if str(w.message).startswith("tfswap")]
        if swap is not None:
            trained.report = {key: swap.report[key] for key in _REPORTED}
        pacer.describe(trained)
        return trained


def _own_words(text: str) -> str:
    """Return the allocator's message, without the stack that TensorFlow adds."""
    refusal = _REFUSAL.search(text)
    return refusal[0] if refusal else text[:1000]


def _needed_bytes(text: str) -> int | None:
    from tfswap.machine.budget import parse_bytes

    found = _NEEDED.search(text)
    return parse_bytes(found[1]) if found else None
