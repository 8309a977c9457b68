"""Planners: pure functions from a step, a machine and a budget to swaps."""

from tfswap.planners.decision import BudgetTooSmall, Decision
from tfswap.planners.portfolio import POLICIES, plan

__all__ = ["POLICIES", "BudgetTooSmall", "Decision", "plan"]
