"""Write a page about a plan: load, swaps, copies, waits and buffers of the profiled step."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tfswap.machine import budget as budgets
from tfswap.machine.machine import Machine
from tfswap.plan.schema import SwapPlan
from tfswap.planning.least_budget import least_budgets
from tfswap.planning.tensor_swaps import planned_swaps
from tfswap.report.step_story import StepStory
from tfswap.report.summary import Report
from tfswap.step.timeline import peak_load
from tfswap.traces.timeline_file import load_profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "plan", type=Path, help="a plan written by tfswap plan or AutoSwap(save_plan=)"
    )
    parser.add_argument(
        "trace", type=Path, help="a profile written by tfswap profile or save_profile="
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), help="the page's file (report.html)"
    )
    parser.add_argument("--png", type=Path, help="also write a PNG picture; needs matplotlib")
    parser.add_argument("--perfetto", type=Path, help="also write a trace for ui.perfetto.dev")
    parser.add_argument("--link-bandwidth", help='such as "12GB/s" (this machine\'s memory)')
    parser.add_argument("--file-bandwidth", help="speed of the disk, if the plan uses it (1GB/s)")
    parser.add_argument(
        "--no-what-if", action="store_true", help="skip plans for other budgets and links"
    )


def run(options: argparse.Namespace) -> int:
    """Write the page and return 0, or print an error and return 1."""
    try:
        report = report_of(options)
        report.to_html(options.out, what_if=not options.no_what_if)
        written = [options.out]
        if options.png is not None:
            report.to_png(options.png)
            written.append(options.png)
        if options.perfetto is not None:
            report.to_perfetto(options.perfetto)
            written.append(options.perfetto)
    except (OSError, ValueError, ImportError) as error:
        print(f"tfswap report: {error}", file=sys.stderr)
        return 1
    print(", ".join(map(str, written)))
    return 0


def report_of(options: argparse.Namespace) -> Report:
    """Return the report of the profiled step under the plan.

    Raises:
        ValueError: The plan is not for the profile's graph.
        OSError: A file cannot be read.
    """
    plan, profile = SwapPlan.load(options.plan), load_profile(options.trace)
    function = plan.function(profile.fingerprint)
    if function is None:
        known = ", ".join(each.fingerprint for each in plan.functions) or "none"
        raise ValueError(
            f"{options.plan} has no plan for the graph {profile.fingerprint} of {options.trace} "
            f"(its graphs: {known}). Plan it with tfswap plan {options.trace} --budget ..."
        )
    swaps, places = planned_swaps(profile, function)
    machine = Machine.here(budgets.parse_bandwidth(options.link_bandwidth))
    file_speed = budgets.parse_bandwidth(options.file_bandwidth or "1GB/s")
    assert file_speed is not None
    file = Machine("file", file_speed, file_speed)
    timeline = profile.timeline
    budget_bytes = plan.budget_bytes or peak_load(timeline)
    story = StepStory(timeline, swaps, places, machine, (machine, file), budget_bytes, plan.policy)
    return Report(
        outcome="swapped" if swaps else "fits",
        budget_bytes=budget_bytes,
        unswapped_peak_bytes=profile.unswapped_peak_bytes,
        predicted_peak_bytes=function.predicted_peak_bytes,
        least_budgets=least_budgets(timeline, machine, profile.section_floors, profile.floor),
        unswapped_step_s=timeline.step_ns / 1e9,
        predicted_step_s=function.predicted_step_ns / 1e9,
        swapped_buffers=len(swaps),
        plan=plan,
        story=story,
    )
