"""SectionSearch: into how many sections the batch is cut, tried out in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tfswap.io.amounts import readable_seconds

Kept = TypeVar("Kept")

_MOST_TRIALS = 3  # beside the number that the pass chose
_MOST_SECTIONS = 256
# Of a step: where its plan waits longer for copies, smaller sections may do better.
_LONG_WAITS = 0.1


@dataclass(frozen=True)
class Trial(Generic[Kept]):
    """A number of sections, and how its step is foretold to do.

    Attributes:
        sections: The number.
        kept: What is needed to go back to it.
        problem: Why there is no plan; "" if there is one.
        step_ns: Of the plan.
        wait_ns: Of that, for copies.
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
    """The numbers that were tried. It goes on to larger ones while they do better.

    Args:
        searches: Otherwise there is nothing but what was tried first.

    Attributes:
        examples: Of the batch; 0: not known.
    """

    def __init__(self, searches: bool) -> None:
        self._searches = searches
        self._trials: list[Trial[Kept]] = []
        self.examples = 0

    @property
    def is_under_way(self) -> bool:
        """Whether there is a number already to go back to."""
        return bool(self._trials)

    def add(self, trial: Trial[Kept]) -> None:
        """Takes what became of a number."""
        self._trials.append(trial)

    def next(self) -> int | None:
        """The number to be tried after those; None: `best` it is."""
        if not self._searches or not self._trials or len(self._trials) > _MOST_TRIALS:
            return None
        last = self._trials[-1]
        if last is not self.best or not (last.problem or last.waits_long):
            return None
        return self._behind(last.sections)

    def reason(self) -> str:
        """Why there is a `next`."""
        last = self._trials[-1]
        if last.problem:
            return f"with {sections_of(last.sections)} there is no plan for the budget"
        return (
            f"with {sections_of(last.sections)} copies would hold a step up for "
            f"{readable_seconds(last.wait_ns / 1e9)} of {readable_seconds(last.step_ns / 1e9)}"
        )

    def stop(self) -> None:
        """There are no more numbers: the next one cuts nothing."""
        self._searches = False

    @property
    def best(self) -> Trial[Kept]:
        """With a plan the fastest one, without any the last one, which needs least."""
        planned = [trial for trial in self._trials if not trial.problem]
        return min(planned, key=lambda trial: trial.step_ns, default=self._trials[-1])

    def _behind(self, sections: int) -> int | None:
        """The next one from the double on that divides the batch, else the double."""
        numbers = range(2 * sections, min(4 * sections, _MOST_SECTIONS + 1))
        dividing = (n for n in numbers if self.examples % n == 0)
        return next(dividing, numbers[0] if numbers else None)


def sections_of(count: int) -> str:
    """As people read it."""
    return "the whole batch" if count == 1 else f"{count} sections of the batch"
