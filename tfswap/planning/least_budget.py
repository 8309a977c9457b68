"""The least budgets that a step can run in: without swaps, with them, with sections.

::

    load
     ^        ______                        without swaps: the peak, here while B runs
     |    ___|      |___      ___
     |   |    ......    |____|   |          with swaps: what stays when all that can leave has left,
     |...|...:      :............|...       the highest of it, here while B runs
     |   :   :      :   :    :   :          with sections: of ops that work on a part of the batch
     +---A---B------C---D----E--------> t
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfswap.machine.link import Link
from tfswap.planning.planners import greedy
from tfswap.planning.planners.decision import MIB, BudgetTooSmall
from tfswap.step.section_floor import SectionFloor, section_floors
from tfswap.step.timeline import Timeline, op_at


@dataclass(frozen=True)
class LeastBudget:
    """A budget below which a step does not run.

    Attributes:
        bytes: the budget.
        op: name of the op that sets it: the load is as high while it runs.
    """

    bytes: int
    op: str


@dataclass(frozen=True)
class LeastBudgets:
    """The least budgets of a step.

    Attributes:
        unswapped: without swaps, the ops in the order of the timeline.
        swapped: with swaps, however long they take.
        sections: with sections and swaps, by the number of sections; empty where nobody knows.
    """

    unswapped: LeastBudget
    swapped: LeastBudget
    sections: tuple[SectionFloor, ...] = ()

    @property
    def sectioned(self) -> SectionFloor | None:
        """The least with sections, of equal ones that with the fewest; None if none is known."""
        return min(self.sections, key=lambda f: (f.bytes, f.sections), default=None)

    @property
    def sections_help(self) -> bool:
        """Whether sections are known to go below what swaps reach."""
        return self.sectioned is not None and self.sectioned.bytes < self.swapped.bytes

    def sections_within(self, budget_bytes: int) -> SectionFloor | None:
        """The fewest sections that keep a budget; None if none is known to."""
        within = (floor for floor in self.sections if floor.bytes <= budget_bytes)
        return min(within, key=lambda floor: floor.sections, default=None)

    def with_advice(self, error: BudgetTooSmall) -> str:
        """What an error says, and what sections would do for its budget if swaps cannot keep it.

        Args:
            error: of a step without sections.
        """
        if error.budget_bytes >= self.swapped.bytes:
            return str(error)  # it was the policy that could not
        return f"{error} {self._advice(error.budget_bytes)}".rstrip()

    def _advice(self, budget_bytes: int) -> str:
        least = self.sectioned
        if least is None:
            return (
                "Or try AutoSwap(sections=2) or more: ops that compute each example by itself then "
                "work on parts of the batch, one after the other, and need less at once."
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
            f"AutoSwap(sections={least.sections}) goes lower, but not as low: the least is then "
            f"{least.bytes / MIB:.1f} MiB, while op {least.op!r} runs."
        )


def least_budgets(
    timeline: Timeline, machine: Link, sections: Sequence[SectionFloor] = ()
) -> LeastBudgets:
    """The least budgets of a step.

    Args:
        timeline: the unswapped step.
        machine: speeds of the link, which make no difference to bytes.
        sections: what is known of sections.
    """
    return LeastBudgets(without_swaps(timeline), with_swaps(timeline, machine), tuple(sections))


def with_sections(
    records: Iterable[Mapping[str, Any]], sections: int, swapped: LeastBudget
) -> tuple[SectionFloor, ...]:
    """The least budgets with other numbers of sections, estimated.

    What the largest op needs is known for each number from the graph; what stays beside it
    (weights, work spaces) is taken to be what it is with the profiled number.

    Args:
        records: what the pass says the largest op needs, a mapping for each number.
        sections: the profiled number.
        swapped: the least budget with that one.

    Raises:
        ValueError: a record cannot be.
    """
    floors = section_floors(records)
    own = next((floor.bytes for floor in floors if floor.sections == sections), None)
    if own is None:
        return ()
    stays = max(swapped.bytes - own, 0)
    return tuple(
        SectionFloor(floor.sections, floor.bytes + stays, floor.op)
        if floor.sections != sections
        else SectionFloor(sections, swapped.bytes, swapped.op)
        for floor in floors
        if floor.sections > 1
    )


def without_swaps(timeline: Timeline) -> LeastBudget:
    """The peak of the step as it is, and the op that runs when it is first reached."""
    _, load_bytes = timeline.core.events()
    if not len(load_bytes):
        return LeastBudget(timeline.resident_bytes, op_at(timeline, -1))
    fullest = int(load_bytes.argmax())
    return LeastBudget(int(load_bytes[fullest]), op_at(timeline, fullest))


def with_swaps(timeline: Timeline, machine: Link) -> LeastBudget:
    """The lowest peak that swaps can reach, however long they take, and the op that runs then."""
    try:
        # The planner that reaches the lowest budgets says how low it cannot go.
        decision = greedy.plan_swaps(timeline, machine, 1)
    except BudgetTooSmall as error:
        return LeastBudget(error.floor_bytes, error.op_name)
    result = decision.result
    op = timeline.op_names[result.peak_op] if result.peak_op >= 0 else op_at(timeline, -1)
    return LeastBudget(int(result.peak_bytes), op)
