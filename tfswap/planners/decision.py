"""What a planner returns, or raises."""

from __future__ import annotations

from dataclasses import dataclass

from tfswap.simulator import SimResult, Swap


@dataclass(frozen=True)
class Decision:
    """A planner's choice.

    Attributes:
        policy: name of the planner.
        swaps: by absence; empty when the step fits as it is.
        result: the step under these swaps, simulated without a budget: its peak is the plan's own.
    """

    policy: str
    swaps: tuple[Swap, ...]
    result: SimResult


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
