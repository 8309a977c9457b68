"""The smallest budgets that a step can run in: without swaps, planned swaps, sections, and at all.

::

    load
     ^        ______                        without swaps: the peak, here while B runs
     |    ___|      |___      ___
     |   |    ......    |____|   |          with swaps: the highest load that remains when every
     |...|...:      :............|...       buffer is swapped out that can be, here while B runs
     |   :   :      :   :    :   :          with sections: of ops that process a part of the batch
     +---A---B------C---D----E--------> t

The floor (`step.op_floor`) is lower: what the largest op needs alone, whatever runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfswap.machine.link import Link
from tfswap.planning.planners import greedy
from tfswap.planning.planners.decision import MIB, BudgetTooSmall
from tfswap.step.op_floor import StepFloor
from tfswap.step.section_floor import SectionFloor, section_floors
from tfswap.step.timeline import Timeline, op_at


@dataclass(frozen=True)
class LeastBudget:
    """A budget below which a step does not run.

    Attributes:
        bytes: the budget.
        op: name of the op that sets it: the load reaches the budget while this op runs.
    """

    bytes: int
    op: str


@dataclass(frozen=True)
class LeastBudgets:
    """The smallest budgets of a step.

    Attributes:
        unswapped: without swaps, the ops in the order of the timeline.
        swapped: with swaps, whatever time they take.
        sections: with sections and swaps, one entry per number of sections; empty if unknown.
        floor: below it no swaps on demand help; None if unknown.
        weights_leave: whether `swapped` is with swaps of variables, too.
    """

    unswapped: LeastBudget
    swapped: LeastBudget
    sections: tuple[SectionFloor, ...] = ()
    floor: StepFloor | None = None
    weights_leave: bool = False

    @property
    def sectioned(self) -> SectionFloor | None:
        """The smallest budget with sections, preferring fewer sections; None if unknown."""
        return min(self.sections, key=lambda f: (f.bytes, f.sections), default=None)

    @property
    def sections_help(self) -> bool:
        """Whether sections are known to reach a smaller budget than swaps alone."""
        return self.sectioned is not None and self.sectioned.bytes < self.swapped.bytes

    def sections_within(self, budget_bytes: int) -> SectionFloor | None:
        """Return the fewest sections that are known to keep a budget; None if there are none."""
        within = (floor for floor in self.sections if floor.bytes <= budget_bytes)
        return min(within, key=lambda floor: floor.sections, default=None)

    def with_advice(self, error: BudgetTooSmall) -> str:
        """Return an error's message, with advice on sections if swaps alone cannot keep its budget.

        Args:
            error: raised for a step without sections.
        """
        if error.budget_bytes >= self.swapped.bytes:
            return str(error)  # swaps can keep this budget: only the policy failed
        advice = [str(error), self._advice(error.budget_bytes), self._about_floor()]
        return " ".join(filter(None, advice))

    def _about_floor(self) -> str:
        """Return what swaps need that no plan has to place in time."""
        if self.floor is None:
            return ""
        floor = self.floor.streamed if self.weights_leave else self.floor.staying
        text = f"Without a plan, swaps on demand need at least {floor.least}: {floor}."
        if self.weights_leave or self.floor.streamed.bytes >= floor.bytes:
            return text
        return f"{text} Where weights leave, too, they need at least {self.floor.streamed.least}."

    def _advice(self, budget_bytes: int) -> str:
        least = self.sectioned
        if least is None:
            return (
                "Or try AutoSwap(sections=2) or more: ops that compute each example independently "
                "then process the batch part by part, and need less memory at once."
            )
        enough = self.sections_within(budget_bytes)
        if enough is not None:
            return (
                f"Or use AutoSwap(sections={enough.sections}): the least is then "
                f"{enough.bytes / MIB:.1f} MiB, while op {enough.op!r} runs."
            )
        if not self.sections_help:
            return ""
        return (
            f"AutoSwap(sections={least.sections}) helps, but not enough: the least is then "
            f"{least.bytes / MIB:.1f} MiB, while op {least.op!r} runs."
        )


def least_budgets(
    timeline: Timeline,
    machine: Link,
    sections: Sequence[SectionFloor] = (),
    floor: StepFloor | None = None,
) -> LeastBudgets:
    """Return the smallest budgets of a step.

    Args:
        timeline: the unswapped step.
        machine: link; its speed does not affect the result.
        sections: known budgets with sections.
        floor: the floor, if known.
    """
    return LeastBudgets(
        without_swaps(timeline),
        with_swaps(timeline, machine),
        tuple(sections),
        floor,
        any(absence.of_variable for absence in timeline.absences),
    )


def with_sections(
    records: Iterable[Mapping[str, Any]], sections: int, swapped: LeastBudget
) -> tuple[SectionFloor, ...]:
    """Estimate the smallest budgets for other numbers of sections.

    The graph gives the memory of the largest op for each number of sections. Everything else in
    memory (weights, workspaces) is assumed to take as much as with the profiled number.

    Args:
        records: memory of the largest op as reported by the pass, one mapping per number of
            sections.
        sections: the profiled number.
        swapped: the smallest budget with that number.

    Raises:
        ValueError: a record is malformed.
    """
    floors = section_floors(records)
    own = next((floor.bytes for floor in floors if floor.sections == sections), None)
    if own is None:
        return ()
    other_bytes = max(swapped.bytes - own, 0)
    return tuple(
        SectionFloor(floor.sections, floor.bytes + other_bytes, floor.op)
        if floor.sections != sections
        else SectionFloor(sections, swapped.bytes, swapped.op)
        for floor in floors
        if floor.sections > 1
    )


def without_swaps(timeline: Timeline) -> LeastBudget:
    """Return the peak of the unswapped step, and the op that runs when it is first reached."""
    _, load_bytes = timeline.core.events()
    if not len(load_bytes):
        return LeastBudget(timeline.resident_bytes, op_at(timeline, -1))
    fullest = int(load_bytes.argmax())
    return LeastBudget(int(load_bytes[fullest]), op_at(timeline, fullest))


def with_swaps(timeline: Timeline, machine: Link) -> LeastBudget:
    """Return the lowest peak that swaps can reach, in any time, and the op that sets it."""
    try:
        # This planner reaches the lowest budgets; its error reports the lowest one.
        decision = greedy.plan_swaps(timeline, machine, 1)
    except BudgetTooSmall as error:
        return LeastBudget(error.floor_bytes, error.op_name)
    result = decision.result
    op = timeline.op_names[result.peak_op] if result.peak_op >= 0 else op_at(timeline, -1)
    return LeastBudget(int(result.peak_bytes), op)
