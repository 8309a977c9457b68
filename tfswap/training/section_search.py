"""SectionSearch: choose the number of sections of the batch by simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tfswap.io.amounts import readable_seconds

Kept = TypeVar("Kept")

_MOST_TRIALS = 3  # in addition to the number that the pass chose
_MOST_SECTIONS = 256
# Part of a step: where a plan waits longer for copies, smaller sections may be faster.
_LONG_WAITS = 0.1


@dataclass(frozen=True)
class Trial(Generic[Kept]):
    """A number of sections, with the predicted step.

    Attributes:
        sections: The number.
        kept: What is needed to return to it.
        problem: Why there is no plan; "" if there is one.
        step_ns: Predicted time of a step.
        wait_ns: The part of it that waits for copies.
    """

    sections: int
    kept: Kept
    problem: str = ""
    step_ns: int = 0
    wait_ns: int = 0

    @property
    def waits_long(self) -> bool:
        return self.wait_ns > _LONG_WAITS * self.step_ns


class SectionSearch(Generic[Kept]):
    """Try larger numbers while they do better.

    Args:
        searches: Whether to try more than the first number.

    Attributes:
        examples: Size of the batch; 0 if unknown.
    """

    def __init__(self, searches: bool) -> None:
        self._searches = searches
        self._trials: list[Trial[Kept]] = []
        self.examples = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a number has been tried, to which the search can return."""
        return bool(self._trials)

    def add(self, trial: Trial[Kept]) -> None:
        """Take the result for a number."""
        self._trials.append(trial)

    def next(self) -> int | None:
        """Return the number to try next; None when the search has ended with `best`."""
        if not self._searches or not self._trials or len(self._trials) > _MOST_TRIALS:
            return None
        last = self._trials[-1]
        if last is not self.best or not (last.problem or last.waits_long):
            return None
        return self._behind(last.sections)

    def reason(self) -> str:
        """Return why another number is tried."""
        last = self._trials[-1]
        if last.problem:
            return f"with {sections_of(last.sections)} there is no plan for the budget"
        return (
            f"with {sections_of(last.sections)} copies would hold a step up for "
            f"{readable_seconds(last.wait_ns / 1e9)} of {readable_seconds(last.step_ns / 1e9)}"
        )

    def stop(self) -> None:
        """End the search: larger numbers cut nothing."""
        self._searches = False

    @property
    def best(self) -> Trial[Kept]:
        """The fastest number that has a plan; without any, the last one, which needs least."""
        planned = [trial for trial in self._trials if not trial.problem]
        return min(planned, key=lambda trial: trial.step_ns, default=self._trials[-1])

    def _behind(self, sections: int) -> int | None:
        """Return the next number from the double on that divides the batch, else the double."""
        numbers = range(2 * sections, min(4 * sections, _MOST_SECTIONS + 1))
        dividing = (n for n in numbers if self.examples % n == 0)
        return next(dividing, numbers[0] if numbers else None)


def sections_of(count: int) -> str:
    """Return the number as messages show it."""
    return "the whole batch" if count == 1 else f"{count} sections of the batch"
