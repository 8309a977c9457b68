"""Planners: pure functions from a step, a machine and a budget to swaps."""

from tfswap.planning.planners.decision import BudgetTooSmall, Decision
from tfswap.planning.planners.portfolio import POLICIES, plan

__all__ = ["POLICIES", "BudgetTooSmall", "Decision", "plan"]
