"""What the steps of a training took, and how a plan did."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfswap.plan import FunctionPlan

TOLERANCE = 0.03
"""A predicted peak further off than this part of it is corrected."""


@dataclass(frozen=True)
class MeasuredStep:
    """One measured call of the training function."""

    seconds: float
    peak_bytes: int
    bytes_out: int
    bytes_in: int
    waits: int

    @staticmethod
    def between(
        before: dict[str, int], after: dict[str, int], seconds: float, steps: int
    ) -> MeasuredStep:
        """From the library's counts around a call of so many steps."""
        return MeasuredStep(
            seconds / steps,
            after["window_peak_load_bytes"],
            (after["bytes_out"] - before["bytes_out"]) // steps,
            (after["bytes_in"] - before["bytes_in"]) // steps,
            after["waits"] - before["waits"],
        )


@dataclass(frozen=True)
class Attempt:
    """A plan and how it did."""

    function: FunctionPlan
    step_s: float
    peak_bytes: int
    bytes_out: int
    bytes_in: int

    @staticmethod
    def of(function: FunctionPlan, steps: Sequence[MeasuredStep]) -> Attempt:
        return Attempt(
            function,
            statistics.median(step.seconds for step in steps),
            max(step.peak_bytes for step in steps),
            max(step.bytes_out for step in steps),
            max(step.bytes_in for step in steps),
        )

    @property
    def demand_bytes(self) -> int:
        """The peak that there would be, had nothing been moved beyond the plan."""
        return self.peak_bytes + max(self.bytes_out - self.function.bytes_per_step, 0)

    @property
    def off(self) -> float:
        """Relative error of the predicted peak."""
        return abs(self.demand_bytes / max(self.function.predicted_peak_bytes, 1) - 1)

    @property
    def is_as_foretold(self) -> bool:
        """Whether the plan is right: where it moves nothing, nothing was moved."""
        if not self.function.swaps and self.bytes_out == 0:
            return True
        return self.off <= TOLERANCE


def best(attempts: Sequence[Attempt]) -> Attempt:
    """Of those whose peak was as foretold (if there are any), the fastest."""
    return min(attempts, key=lambda a: (not a.is_as_foretold, a.step_s))
