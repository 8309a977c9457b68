"""What the steps of a training took, and how a plan did."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfswap.plan.schema import FunctionPlan

TOLERANCE = 0.03
"""A predicted peak further off than this part of it is corrected."""

_CLEARLY_SLOWER = 1.5

# A model that needs no more than this share of the budget is left alone. Others have a plan, be it
# for the order alone: stock TensorFlow's varies, and in one order VGG16 needs 1.18 of another's.
CLEARLY_FITS = 0.8


@dataclass(frozen=True)
class MeasuredStep:
    """One measured call of the training function.

    Attributes:
        seconds: Its time.
        peak_bytes: Of the load.
        needed_bytes: The budget in which no lazy swap would have been needed; 0 if none was.
        bytes_out, bytes_in: What was moved.
        waits: Of allocations.
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
        """From the library's counts around a call of so many steps."""
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
class Attempt:
    """A plan and how it did.

    Attributes:
        function: The plan.
        step_s, fastest_s: The median of its measured steps, and the fastest one.
        peak_bytes, needed_bytes, bytes_out, bytes_in: As of `MeasuredStep`, the most.
    """

    function: FunctionPlan
    step_s: float
    fastest_s: float
    peak_bytes: int
    needed_bytes: int
    bytes_out: int
    bytes_in: int

    @staticmethod
    def of(function: FunctionPlan, steps: Sequence[MeasuredStep]) -> Attempt:
        return Attempt(
            function,
            statistics.median(step.seconds for step in steps),
            min(step.seconds for step in steps),
            max(step.peak_bytes for step in steps),
            max(step.needed_bytes for step in steps),
            max(step.bytes_out for step in steps),
            max(step.bytes_in for step in steps),
        )

    @property
    def demand_bytes(self) -> int:
        """The peak that there would be, had nothing been moved beyond the plan.

        Lazy swaps move whole tensors, so it is less than what they moved on top of the peak.
        """
        return min(max(self.peak_bytes, self.needed_bytes), self._most_bytes)

    @property
    def _most_bytes(self) -> int:
        """It is no more, even if all that was moved beyond the plan was needed at the peak."""
        return self.peak_bytes + max(self.bytes_out - self.function.bytes_per_step, 0)

    @property
    def is_as_foretold(self) -> bool:
        """Whether the plan is right: where it moves nothing, nothing was moved."""
        changes = bool(self.function.swaps or self.function.recomputes)
        if not changes and self.bytes_out == 0:
            return True
        predicted_bytes = max(self.function.predicted_peak_bytes, 1)
        return abs(self._most_bytes / predicted_bytes - 1) <= TOLERANCE

    def is_slower_than(self, seconds: Sequence[float]) -> bool:
        """Whether none of its steps was near any of those that took so long without the plan."""
        return bool(seconds) and self.fastest_s > _CLEARLY_SLOWER * max(seconds)


def best(attempts: Sequence[Attempt]) -> Attempt:
    """Of those whose peak was as foretold (if there are any), the fastest."""
    return min(attempts, key=lambda a: (not a.is_as_foretold, a.step_s))
