"""Attempts: the plans of one graph that were measured, beside its lazy swaps."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from tfswap.plan.measured_plan import Attempt, MeasuredStep, best
from tfswap.plan.schema import FunctionPlan

_MAX_CORRECTIONS = 3
_MEASURED_STEPS = 2
# Of a plan that seems to be slower than lazy swaps: others' work on the machine may be why.
_DOUBTED_STEPS = 8


class Attempts:
    """What steps took, under each plan and without one.

    Attributes:
        lazy_s: Of steps under lazy swaps.
    """

    def __init__(self) -> None:
        self._measured: list[Attempt] = []
        self.lazy_s: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._measured)

    def begin_anew(self) -> None:
        """Forgets the plans; not what lazy swaps took."""
        self._measured = []

    def keep(self, function: FunctionPlan, measured: Sequence[MeasuredStep]) -> None:
        """Has others be measured against the plan that there was, without its addresses.

        Args:
            function: The plan.
            measured: Steps under it; none: nobody knows how it does.
        """
        bare = dataclasses.replace(function, layouts=())
        self._measured = [Attempt.of(bare, measured)] if measured else []

    def measured(self, function: FunctionPlan, steps: Sequence[MeasuredStep]) -> Attempt | None:
        """Takes steps under a plan; None: there have to be more of them."""
        if len(steps) < _MEASURED_STEPS:
            return None
        attempt = Attempt.of(function, steps)
        if self.is_slower(attempt) and len(steps) < _DOUBTED_STEPS:
            return None
        self._measured.append(attempt)
        return attempt

    @property
    def may_correct(self) -> bool:
        """Whether there may be one more."""
        return len(self._measured) <= _MAX_CORRECTIONS

    @property
    def best(self) -> Attempt:
        """The one to stay with."""
        return best(self._measured)

    def is_slower(self, attempt: Attempt) -> bool:
        """Whether lazy swaps did better."""
        return attempt.is_slower_than(self.lazy_s)

    @property
    def lazy_step_s(self) -> float:
        """What a step takes under those."""
        return statistics.median(self.lazy_s)
