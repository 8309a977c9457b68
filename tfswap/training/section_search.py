"""SectionSearch: choose the number of sections of the batch by simulation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tfswap.io.amounts import readable_seconds
from tfswap.plan.schema import FunctionPlan

_MAX_TRIALS = 3  # in addition to the number that the pass chose
_MAX_SECTIONS = 256
# Where a plan waits for copies during more than this fraction of a step, try smaller sections.
_LONG_WAITS = 0.1


@dataclass(frozen=True)
class SectionTrial:
    """A number of sections, with the predicted step.

    Attributes:
        sections: The number.
        fingerprint: The graph in that many sections.
        function: The plan; None if there is none, or if the step fits without one.
        problem: Why there is no plan; "" if there is one or none is needed.
        step_ns: Predicted time of a step.
        wait_ns: The part of it that waits for copies.
    """

    sections: int
    fingerprint: str = ""
    function: FunctionPlan | None = None
    problem: str = ""
    step_ns: int = 0
    wait_ns: int = 0

    @property
    def waits_long(self) -> bool:
        return self.wait_ns > _LONG_WAITS * self.step_ns


@dataclass(frozen=True)
class SectionSearch:
    """Try larger numbers of sections while they do better.

    Attributes:
        searches: Whether to try more than the first number.
        examples: Size of the batch; 0 if unknown.
        trials: The numbers that were tried, in order.
    """

    searches: bool = False
    examples: int = 0
    trials: tuple[SectionTrial, ...] = ()

    def add(self, trial: SectionTrial) -> SectionSearch:
        """Add the result for a number."""
        return dataclasses.replace(self, trials=(*self.trials, trial))

    def next(self) -> int | None:
        """Return the number to try next; None when the search has ended with `best`."""
        if not self.searches or not self.trials or len(self.trials) > _MAX_TRIALS:
            return None
        last = self.trials[-1]
        if last is not self.best or not (last.problem or last.waits_long):
            return None
        return self._after(last.sections)

    @property
    def reason(self) -> str:
        """Why another number is tried."""
        last = self.trials[-1]
        if last.problem:
            return f"with {sections_of(last.sections)} there is no plan for the budget"
        return (
            f"with {sections_of(last.sections)} copies would hold a step up for "
            f"{readable_seconds(last.wait_ns / 1e9)} of {readable_seconds(last.step_ns / 1e9)}"
        )

    @property
    def best(self) -> SectionTrial:
        """The fastest number that has a plan; without any, the last one, which needs least."""
        planned = [trial for trial in self.trials if not trial.problem]
        return min(planned, key=lambda trial: trial.step_ns, default=self.trials[-1])

    def _after(self, sections: int) -> int | None:
        """Return the next number from the double on that divides the batch, else the double."""
        numbers = range(2 * sections, min(4 * sections, _MAX_SECTIONS + 1))
        dividing = (n for n in numbers if self.examples % n == 0)
        return next(dividing, numbers[0] if numbers else None)


def sections_of(count: int) -> str:
    """Return the number as messages show it."""
    return "the whole batch" if count == 1 else f"{count} sections of the batch"
