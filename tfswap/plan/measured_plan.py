"""MeasuredStep, MeasuredPlan: what steps took, and how a plan did."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfswap.plan.schema import FunctionPlan

LEAST, MOST = 0.97, 1.07
"""A plan is corrected if the measured peak is outside of these fractions of the predicted one.

Plans aim at a peak some 3 % below the budget, so the upper limit allows on-demand swaps of about
3 % of the budget. Their copies take milliseconds a step; a correction takes seconds.
"""

CLEARLY_FITS = 0.8
"""A model that needs at most this fraction of the budget is left unchanged.

Others get a plan, even if only for the order of ops: TensorFlow's order varies, and in one order
VGG16 needs 1.18 times the memory of another.
"""

# A plan is dropped if each of its steps takes this many times as long as on-demand swaps.
_CLEARLY_SLOWER = 1.5


@dataclass(frozen=True)
class MeasuredStep:
    """One call of the training function.

    Attributes:
        seconds: Time per step.
        peak_bytes: Highest sum of allocated bytes.
        needed_bytes: The budget in which no on-demand swap would have been needed; 0 if none was.
        bytes_out, bytes_in: Bytes swapped out and in, per step.
        waits: Number of allocations that waited for memory.
    """

    seconds: float
    peak_bytes: int
    needed_bytes: int
    bytes_out: int
    bytes_in: int
    waits: int

    @staticmethod
    def between(
        before: dict[str, int], after: dict[str, int], seconds: float, steps: int
    ) -> MeasuredStep:
        """Return the step between two readings of the library's counts.

        Args:
            before: The first reading.
            after: The second reading.
            seconds: Time between them.
            steps: Number of steps in the call.
        """
        lack_bytes = after["window_lack_bytes"]
        return MeasuredStep(
            seconds / steps,
            after["window_peak_load_bytes"],
            after["budget_bytes"] + lack_bytes if lack_bytes else 0,
            (after["bytes_out"] - before["bytes_out"]) // steps,
            (after["bytes_in"] - before["bytes_in"]) // steps,
            after["waits"] - before["waits"],
        )


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan and its measured steps.

    Attributes:
        function: The plan.
        step_s, fastest_s: Median and fastest step time.
        peak_bytes, needed_bytes, bytes_out, bytes_in: The maxima of the steps.
    """

    function: FunctionPlan
    step_s: float
    fastest_s: float
    peak_bytes: int
    needed_bytes: int
    bytes_out: int
    bytes_in: int

    @staticmethod
    def of(function: FunctionPlan, steps: Sequence[MeasuredStep]) -> MeasuredPlan:
        """Summarize the steps of a plan, whose addresses do not count."""
        return MeasuredPlan(
            dataclasses.replace(function, layouts=()),
            statistics.median(step.seconds for step in steps),
            min(step.seconds for step in steps),
            max(step.peak_bytes for step in steps),
            max(step.needed_bytes for step in steps),
            max(step.bytes_out for step in steps),
            max(step.bytes_in for step in steps),
        )

    @property
    def demand_bytes(self) -> int:
        """The peak that there would be without on-demand swaps.

        On-demand swaps move whole tensors, so it is less than the peak plus all that they moved.
        """
        return min(max(self.peak_bytes, self.needed_bytes), self._most_bytes)

    @property
    def _most_bytes(self) -> int:
        """The peak if all bytes that were moved beyond the plan were needed at the peak."""
        return self.peak_bytes + max(self.bytes_out - self.function.bytes_per_step, 0)

    @property
    def is_as_predicted(self) -> bool:
        """Whether the peak was as predicted; without swaps, whether nothing was swapped."""
        if not self.function.moves and self.bytes_out == 0:
            return True
        predicted_bytes = max(self.function.predicted_peak_bytes, 1)
        return LEAST <= self._most_bytes / predicted_bytes <= MOST

    def is_slower_than(self, seconds: Sequence[float]) -> bool:
        """Return whether each step was clearly slower than steps that took so long."""
        return bool(seconds) and self.fastest_s > _CLEARLY_SLOWER * max(seconds)


def best(plans: Sequence[MeasuredPlan]) -> MeasuredPlan:
    """Return the fastest of the plans whose peak was as predicted, or else of all."""
    return min(plans, key=lambda plan: (not plan.is_as_predicted, plan.step_s))
