"""The result of a planner, and its errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.link import Link
from tfswap.planning.simulator import SimResult, Swap
from tfswap.step.timeline import BEFORE_FIRST_OP, Timeline

MIB = 1 << 20
# Smaller buffers are not swapped: they free almost no memory.
MIN_SWAP_BYTES = 1 << 16


@dataclass(frozen=True)
class Decision:
    """A planner's choice.

    Attributes:
        policy: name of the planner.
        swaps: by absence; empty if the step fits without swaps.
        result: the step under these swaps, simulated without a budget; its peak is the plan's own.
        notes: remarks of the planner for the user.
        timeline: the step with clones of recomputed ops, which the swaps refer to; None: the
            planned timeline, nothing is recomputed.
    """

    policy: str
    swaps: tuple[Swap, ...]
    result: SimResult
    notes: tuple[str, ...] = ()
    timeline: Timeline | None = None


class BudgetTooSmall(ValueError):
    """No plan of this planner fits the budget.

    Attributes:
        budget_bytes: the requested budget.
        floor_bytes: the smallest budget that works with this planner.
        op_name: the op that sets the floor.
        op_bytes: bytes in buffers while that op runs, without the resident bytes.
        suggestion_bytes: a budget that works, with a small reserve.
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
    """Return the sort key of plans within a budget: step time in ns, then traffic."""
    working_ns = copying_ns(machine, result.bytes_out, result.bytes_in)
    return (result.step_ns + working_ns, result.bytes_out + result.bytes_in)


def copying_ns(machine: Link, bytes_out: int, bytes_in: int) -> int:
    """Return the time that copies take from ops where the CPU copies (``copy_ns``)."""
    copy_ns = getattr(machine, "copy_ns", None)
    return 0 if copy_ns is None else int(copy_ns(bytes_out, bytes_in))


def no_plan_fits(
    timeline: Timeline, budget_bytes: int, floor_bytes: int, op_name: str, margin: float = 0.0
) -> BudgetTooSmall:
    """Return the error for a budget that no plan of swaps can meet.

    Args:
        timeline: the unswapped step.
        budget_bytes: the requested budget.
        floor_bytes: the smallest budget that works.
        op_name: the op that sets the floor.
        margin: fraction of the budget that plans leave free.
    """
    op_bytes = floor_bytes - timeline.resident_bytes
    suggestion_bytes = -(-math.ceil(floor_bytes / (1 - margin)) // MIB) * MIB
    message = (
        f"A budget of {budget_bytes / MIB:.1f} MiB is too small: the least that a plan can keep "
        f"is {floor_bytes / MIB:.1f} MiB. While op {op_name!r} runs, {op_bytes / MIB:.1f} MiB are "
        f"in buffers that cannot be swapped out then (its inputs, outputs and workspaces, and "
        f"buffers that are too small or needed again too soon), in addition to "
        f"{timeline.resident_bytes / MIB:.1f} MiB that are resident for the whole step. Set the "
        f"budget to {suggestion_bytes // MIB} MiB or more, or use a smaller batch."
    )
    return BudgetTooSmall(
        message,
        budget_bytes=budget_bytes,
        floor_bytes=floor_bytes,
        op_name=op_name,
        op_bytes=op_bytes,
        suggestion_bytes=suggestion_bytes,
    )


def budget_too_small(
    timeline: Timeline, budget_bytes: int, least: NDArray[np.int64], planner_name: str
) -> BudgetTooSmall:
    """Return the error of a planner that works on an `OpLoad`.

    Args:
        timeline: the unswapped step.
        budget_bytes: the requested budget.
        least: the load of each part with all of the planner's absences used.
        planner_name: name of the planner, for the message.
    """
    part = int(np.argmax(least))
    op_name = timeline.op_names[part - 1] if part else BEFORE_FIRST_OP
    floor_bytes = int(least[part])
    suggestion_bytes = -(-floor_bytes // MIB) * MIB
    message = (
        f"A budget of {budget_bytes / MIB:.1f} MiB is too small for {planner_name}: the least "
        f"that it reaches is {floor_bytes / MIB:.1f} MiB, while op {op_name!r} runs. Set the "
        f"budget to {suggestion_bytes // MIB} MiB or more, or try policy='auto'."
    )
    return BudgetTooSmall(
        message,
        budget_bytes=budget_bytes,
        floor_bytes=floor_bytes,
        op_name=op_name,
        op_bytes=floor_bytes - timeline.resident_bytes,
        suggestion_bytes=suggestion_bytes,
    )


def plan_over_budget(
    timeline: Timeline, budget_bytes: int, result: SimResult, planner_name: str
) -> BudgetTooSmall:
    """Return the error of a policy whose only plan needs more than the budget.

    Args:
        timeline: the unswapped step.
        budget_bytes: the requested budget.
        result: the simulated plan.
        planner_name: name of the policy, for the message.
    """
    op_name = timeline.op_names[result.peak_op] if result.peak_op >= 0 else BEFORE_FIRST_OP
    suggestion_bytes = -(-result.peak_bytes // MIB) * MIB
    message = (
        f"A budget of {budget_bytes / MIB:.1f} MiB is too small for {planner_name}: its plan needs "
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
