"""Foretell memory and step time of a recorded step under budgets, without running it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tfswap import budget as budgets
from tfswap import whatif
from tfswap.machine import Machine
from tfswap.planners import portfolio
from tfswap.report.summary import readable_bytes
from tfswap.timeline import Timeline, peak_load
from tfswap.traces.read import read_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("trace", type=Path, help="a timeline of tfswap's, or a SINGA event list")
    parser.add_argument(
        "--budget",
        action="append",
        help='such as 6GiB or "60%%" of the peak; may be repeated (six down to the least)',
    )
    parser.add_argument("--policy", default=portfolio.AUTO, help="the planner (auto)")
    parser.add_argument("--link-bandwidth", help='such as "12GB/s" (this machine\'s memory)')
    parser.add_argument("--planning-time", type=float, default=1.0, help="s a plan (1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Prints the answers; 0, or 1 with a word on what is wrong."""
    try:
        timeline = read_trace(options.trace)
        machine = _machine(options.link_bandwidth)
        peak_bytes = peak_load(timeline)
        asked = [_bytes(text, peak_bytes) for text in options.budget or ()]
        asked = asked or whatif.budgets_between(timeline, machine)
        answers = [
            whatif.at_budget(timeline, machine, b, options.policy, options.planning_time)
            for b in asked
        ]
        faster = (
            whatif.with_faster_links(
                timeline, machine, min(asked), (2.0, 4.0), options.policy, options.planning_time
            )
            if asked
            else []
        )
        least_bytes = whatif.least_budget_bytes(timeline, machine)
    except (OSError, ValueError) as error:
        print(f"tfswap simulate: {error}", file=sys.stderr)
        return 1
    if options.json:
        values = {
            "ops": len(timeline.op_names),
            "peak_bytes": peak_bytes,
            "step_ns": timeline.step_ns,
            "least_budget_bytes": least_bytes,
            "budgets": [asdict(answer) for answer in answers],
            "faster_links": [asdict(answer) for answer in faster],
        }
        print(json.dumps(values, indent=2))
        return 0
    print("\n".join(lines(timeline, least_bytes, answers, faster)))
    return 0


def _machine(link_bandwidth: str | None) -> Machine:
    if link_bandwidth is None:
        return Machine.measure()
    speed = budgets.parse_bandwidth(link_bandwidth)
    assert speed is not None
    return Machine(f"{link_bandwidth} link", speed, speed)


def _bytes(text: str, peak_bytes: int) -> int:
    if text.strip().endswith("%"):
        return budgets.resolve(text, device_limit_bytes=peak_bytes)
    return budgets.parse_bytes(text)


def lines(
    timeline: Timeline,
    least_bytes: int,
    answers: list[whatif.Answer],
    faster: list[whatif.Answer],
) -> list[str]:
    """The answers for a person."""
    report = [
        f"{len(timeline.op_names)} ops, {len(timeline.buffer_bytes)} buffers: peak "
        f"{readable_bytes(peak_load(timeline))}, step {timeline.step_ns / 1e6:.1f} ms",
        f"The least budget is {readable_bytes(least_bytes)}.",
        "",
        f"{'budget':>10}  {'peak':>10}  {'step':>10}  {'ratio':>6}  {'at least':>8}  "
        f"{'out':>10}  {'in':>10}  swaps  plan",
    ]
    for answer in [*answers, *faster]:
        if answer.step_ns is None or answer.least_step_ns is None:
            report.append(f"{readable_bytes(answer.budget_bytes):>10}  {answer.problem}")
            continue
        note = answer.policy or "fits as it is"
        if answer in faster:
            note += f", on {answer.link}"
        report.append(
            f"{readable_bytes(answer.budget_bytes):>10}  {readable_bytes(answer.peak_bytes):>10}  "
            f"{answer.step_ns / 1e6:>7.1f} ms  {answer.step_ns / timeline.step_ns:>6.3f}  "
            f"{answer.least_step_ns / timeline.step_ns:>8.3f}  "
            f"{readable_bytes(answer.bytes_out):>10}  {readable_bytes(answer.bytes_in):>10}  "
            f"{answer.swaps:>5}  {note}"
        )
    return report
