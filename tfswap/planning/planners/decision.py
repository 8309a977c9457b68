"""What a planner returns, or raises."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.link import Link
from tfswap.planning.simulator import SimResult, Swap
from tfswap.step.timeline import BEFORE_FIRST_OP, Timeline

MIB = 1 << 20
# Of what may leave: smaller buffers free next to nothing.
LEAST_BYTES = 1 << 16


@dataclass(frozen=True)
class Decision:
    """A planner's choice.

    Attributes:
        policy: name of the planner.
        swaps: by absence; empty when the step fits as it is.
        result: the step under these swaps, simulated without a budget: its peak is the plan's own.
        notes: what the planner has to say about it.
        timeline: the step in which some tensors are made again, whose absences are swapped; None:
            the one that was planned.
    """

    policy: str
    swaps: tuple[Swap, ...]
    result: SimResult
    notes: tuple[str, ...] = ()
    timeline: Timeline | None = None


class BudgetTooSmall(ValueError):
    """No plan of this planner fits the budget.

    Attributes:
        budget_bytes: what was asked for.
        floor_bytes: the least that works with this planner.
        op_name: the op at which the floor is reached.
        op_bytes: what must be in buffers while that op runs; resident bytes come on top.
        suggestion_bytes: a budget that works, with a little to spare.
    """

    def __init__(
        self,
        message: str,
        *,
        budget_bytes: int,
        floor_bytes: int,
        op_name: str,
        op_bytes: int,
        suggestion_bytes: int,
    ) -> None:
        super().__init__(message)
        self.budget_bytes = budget_bytes
        self.floor_bytes = floor_bytes
        self.op_name = op_name
        self.op_bytes = op_bytes
        self.suggestion_bytes = suggestion_bytes


def cost(result: SimResult, machine: Link) -> tuple[int, int]:
    """What plans within a budget are compared by, less is better: step time in ns, then traffic."""
    working_ns = copying_ns(machine, result.bytes_out, result.bytes_in)
    return (result.step_ns + working_ns, result.bytes_out + result.bytes_in)


def copying_ns(machine: Link, bytes_out: int, bytes_in: int) -> int:
    """How much longer a step takes where the machine's own cores copy: it has ``copy_ns`` then."""
    copy_ns = getattr(machine, "copy_ns", None)
    return 0 if copy_ns is None else int(copy_ns(bytes_out, bytes_in))


def nothing_fits(
    timeline: Timeline, budget_bytes: int, floor_bytes: int, op_name: str, margin: float = 0.0
) -> BudgetTooSmall:
    """The error when no plan of swaps at all fits.

    Args:
        timeline: the unswapped step.
        budget_bytes: what was asked for.
        floor_bytes: the least that works.
        op_name: the op that needs it.
        margin: part of the budget that plans leave free.
    """
    op_bytes = floor_bytes - timeline.resident_bytes
    suggestion_bytes = -(-math.ceil(floor_bytes / (1 - margin)) // MIB) * MIB
    message = (
        f"A budget of {budget_bytes / MIB:.1f} MiB is too small: the least that works is "
        f"{floor_bytes / MIB:.1f} MiB. While op {op_name!r} runs, {op_bytes / MIB:.1f} MiB are in "
        f"buffers that cannot be swapped out then (what it reads, writes and works in, and buffers "
        f"that are too small or too soon needed again), beside "
        f"{timeline.resident_bytes / MIB:.1f} MiB that stay through the whole step. Set the budget "
        f"to {suggestion_bytes // MIB} MiB or more, or use a smaller batch."
    )
    return BudgetTooSmall(
        message,
        budget_bytes=budget_bytes,
        floor_bytes=floor_bytes,
        op_name=op_name,
        op_bytes=op_bytes,
        suggestion_bytes=suggestion_bytes,
    )


def too_small(
    timeline: Timeline, budget_bytes: int, least: NDArray[np.int64], who: str
) -> BudgetTooSmall:
    """The error of a planner that works on an `OpLoad`.

    Args:
        timeline: the unswapped step.
        budget_bytes: what was asked for.
        least: the load of each part with all of the planner's absences used.
        who: the planner, for the text.
    """
    part = int(np.argmax(least))
    op_name = timeline.op_names[part - 1] if part else BEFORE_FIRST_OP
    floor_bytes = int(least[part])
    suggestion_bytes = -(-floor_bytes // MIB) * MIB
    message = (
        f"A budget of {budget_bytes / MIB:.1f} MiB is too small for {who}: the least that it "
        f"reaches is {floor_bytes / MIB:.1f} MiB, while op {op_name!r} runs. Set the budget to "
        f"{suggestion_bytes // MIB} MiB or more, or try policy='auto'."
    )
    return BudgetTooSmall(
        message,
        budget_bytes=budget_bytes,
        floor_bytes=floor_bytes,
        op_name=op_name,
        op_bytes=floor_bytes - timeline.resident_bytes,
        suggestion_bytes=suggestion_bytes,
    )


def over_budget(
    timeline: Timeline, budget_bytes: int, result: SimResult, who: str
) -> BudgetTooSmall:
    """The error of a policy whose one plan needs more than the budget.

    Args:
        timeline: the unswapped step.
        budget_bytes: what was asked for.
        result: the plan, simulated.
        who: the policy, for the text.
    """
    op_name = timeline.op_names[result.peak_op] if result.peak_op >= 0 else BEFORE_FIRST_OP
    suggestion_bytes = -(-result.peak_bytes // MIB) * MIB
    message = (
        f"A budget of {budget_bytes / MIB:.1f} MiB is too small for {who}: its plan needs "
        f"{result.peak_bytes / MIB:.1f} MiB, while op {op_name!r} runs. Set the budget to "
        f"{suggestion_bytes // MIB} MiB or more, or try policy='auto'."
    )
    return BudgetTooSmall(
        message,
        budget_bytes=budget_bytes,
        floor_bytes=result.peak_bytes,
        op_name=op_name,
        op_bytes=result.peak_bytes - timeline.resident_bytes,
        suggestion_bytes=suggestion_bytes,
    )
