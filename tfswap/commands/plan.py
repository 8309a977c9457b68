"""Make a plan from a profile, for AutoSwap(plan=...) to use without profiling again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tfswap.io.amounts import readable_bytes
from tfswap.machine import budget as budgets
from tfswap.machine.machine import Machine
from tfswap.plan.schema import SwapPlan
from tfswap.planning.least_budget import least_budgets
from tfswap.planning.plan_function import Planned, plan_function
from tfswap.planning.planners import BudgetTooSmall, portfolio
from tfswap.traces.timeline_file import load_profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("profile", type=Path, help="a file written by tfswap profile")
    parser.add_argument(
        "--budget", required=True, help='such as 6GiB, or "60%%" of the unswapped peak'
    )
    parser.add_argument(
        "--out", type=Path, default=Path("plan.json"), help="the plan's file (plan.json)"
    )
    parser.add_argument("--policy", default=portfolio.AUTO, help="the planner (auto)")
    parser.add_argument("--link-bandwidth", help='such as "12GB/s" (this machine\'s memory)')
    parser.add_argument(
        "--planning-time", type=float, default=1.0, help="time limit of the search in s (1)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the plan, print its prediction and return 0, or print an error and return 1."""
    try:
        profile = load_profile(options.profile)
        budget_bytes = budgets.resolve(
            options.budget, device_limit_bytes=profile.unswapped_peak_bytes
        )
        machine = Machine.here(budgets.parse_bandwidth(options.link_bandwidth))
        try:
            planned = plan_function(
                profile,
                options.policy,
                machine,
                budget_bytes,
                options.planning_time,
                lambda line: print(f"tfswap plan: {line}", file=sys.stderr),
            )
        except BudgetTooSmall as error:
            least = least_budgets(profile.timeline, machine, profile.section_floors, profile.floor)
            raise ValueError(least.with_advice(error)) from error
        plan = SwapPlan((planned.function,), budget_bytes, options.policy, unmatched="bootstrap")
        plan.save(options.out)
    except (OSError, ValueError) as error:
        print(f"tfswap plan: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines(planned, budget_bytes, options.out)))
    return 0


def lines(planned: Planned, budget_bytes: int, path: Path) -> list[str]:
    """Return the printed description of the plan."""
    function, result = planned.function, planned.assignment.result
    unswapped = readable_bytes(function.unswapped_peak_bytes)
    step = f"{function.unswapped_step_ns / 1e6:.1f} ms"
    if not function.swaps:
        return [
            f"The step fits without swaps: peak {unswapped}, step {step}. {path} swaps nothing."
        ]
    return [
        f"peak   {unswapped} -> {readable_bytes(function.predicted_peak_bytes)}, "
        f"budget {readable_bytes(budget_bytes)}",
        f"step   {step} -> {function.predicted_step_ns / 1e6:.1f} ms, including "
        f"{result.stall_ns / 1e6:.1f} ms waiting for copies; no plan waits less than "
        f"{planned.least_wait_ns / 1e6:.1f} ms",
        f"moved  {readable_bytes(result.bytes_out)} out and {readable_bytes(result.bytes_in)} in "
        f"per step, {len(function.swaps)} buffers ({planned.decision.policy})",
        *planned.decision.notes,
        f"{path}: use it with tfswap.AutoSwap(budget=..., plan={str(path)!r})",
    ]
