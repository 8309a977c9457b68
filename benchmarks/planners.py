r"""Compare the plans of all planners for one trace under shrinking limits: a JSON line each.

    python -m benchmarks.planners --trace FILE --limits 280,300,320,350,380,400,420,440,450,490

FILE is a timeline of tfswap (`benchmarks/traces` has some of a CPU; for these, a link of 0.2 GB/s
corresponds to a GPU's PCI Express) or an event list of SINGA. With ``--accounting honest`` (the
default) the simulator judges each plan; with ``published``, for an event list of SINGA, overheads
are counted as by the authors of AutoSwap. Keys: limit_mib policy accounting overhead_ms peak_mib
bound_ms seconds trace; impossible values are null, and "error" is the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.published_autoswap import SCORES, PublishedAccounting
from tfswap.machine.budget import parse_bandwidth
from tfswap.machine.machine import Machine
from tfswap.planning.planners import portfolio
from tfswap.planning.planners.bound import least_wait_ns
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.step.timeline import Timeline, peak_load
from tfswap.traces.events import find_step
from tfswap.traces.read import read_trace
from tfswap.traces.singa import read_singa

MIB = 1 << 20

# The link on which AutoSwap was measured: 47.2 us + 0.0756 ns a byte out, 9.7 us + 0.0823 ns in.
AUTOSWAP_LINK = Machine("GTX 1080 Ti, PCIe 3", 1e9 / 0.0756, 1e9 / 0.0823, 47_200, 9_700)

# The authors' log of VGG16 peaks at 647.73 MiB; the blocks in its event list at 634.61.
UNTOUCHED_BYTES = {"vec_block_fresh_vgg.csv": 13_757_242}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planners", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--trace", type=Path, required=True, help="a timeline or an event list")
    parser.add_argument(
        "--limits",
        type=lambda text: text.split(","),
        required=True,
        help='limits of the load in MiB, or such as "55%%" of the unswapped peak',
    )
    parser.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        help=f"of {portfolio.AUTO}, {', '.join(portfolio.POLICIES)} (all but the slow ones)",
    )
    parser.add_argument("--accounting", choices=("honest", "published"), default="honest")
    parser.add_argument("--planning-time", type=float, default=1.0, help="s, of auto (1)")
    parser.add_argument("--link-bandwidth", help='such as "12GB/s" (AutoSwap\'s measured link)')
    return parser.parse_args(arguments)


def limits(texts: Sequence[str], peak_bytes: int) -> list[int]:
    """Return limits in bytes: numbers are MiB, percentages are of the peak."""
    return [
        int(float(text[:-1]) / 100 * peak_bytes) if text.endswith("%") else int(float(text) * MIB)
        for text in texts
    ]


def honest(options: argparse.Namespace) -> None:
    """Yield each policy's plan in the simulator."""
    timeline = read_trace(options.trace)
    untouched_bytes = UNTOUCHED_BYTES.get(options.trace.name, 0)
    timeline = replace(timeline, resident_bytes=timeline.resident_bytes + untouched_bytes)
    machine = AUTOSWAP_LINK
    if options.link_bandwidth:
        speed = parse_bandwidth(options.link_bandwidth)
        assert speed is not None
        machine = Machine(f"{options.link_bandwidth} link", speed, speed)
    policies = options.policies or [
        name for name in portfolio.POLICIES if name not in {"autoswap:bo", *portfolio.NEED_DATAFLOW}
    ] + [portfolio.AUTO]
    for limit_bytes in limits(options.limits, peak_load(timeline)):
        limit_mib = round(limit_bytes / MIB, 1)
        bound_ms = round(least_wait_ns(timeline, machine, limit_bytes) / 1e6, 3)
        for policy in policies:
            values = _line(options.trace, limit_mib, policy, "honest")
            values["bound_ms"] = bound_ms
            print(json.dumps(_plan(values, timeline, machine, limit_bytes, options)), flush=True)


def _plan(
    values: dict[str, Any],
    timeline: Timeline,
    machine: Machine,
    limit_bytes: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    begun_s = time.perf_counter()
    try:
        decision = portfolio.plan(
            values["policy"],
            timeline,
            machine,
            limit_bytes,
            planning_time_s=options.planning_time,
        )
        values["overhead_ms"] = round(decision.result.stall_ns / 1e6, 3)
        values["peak_mib"] = round(decision.result.peak_bytes / MIB, 1)
        if decision.notes:
            values["notes"] = list(decision.notes)
    except BudgetTooSmall as error:
        values["error"] = f"reaches {error.floor_bytes / MIB:.1f} MiB at the least"
    except ValueError as error:
        values["error"] = str(error)
    values["seconds"] = round(time.perf_counter() - begun_s, 3)
    return values


def published(options: argparse.Namespace) -> None:
    """Yield the authors' own accounting."""
    accounting = PublishedAccounting(
        find_step(read_singa(options.trace)), UNTOUCHED_BYTES.get(options.trace.name, 0)
    )
    for limit_bytes in limits(options.limits, int(accounting.load.max())):
        limit_mib = round(limit_bytes / MIB, 1)
        for score in SCORES:
            policy = f"autoswap:{score}"
            if options.policies and policy not in options.policies:
                continue
            begun_s = time.perf_counter()
            overhead_ms, peak_bytes = accounting.overhead_ms(score, limit_bytes)
            values = _line(options.trace, limit_mib, policy, "published")
            values["overhead_ms"] = round(overhead_ms, 3)
            values["peak_mib"] = round(peak_bytes / MIB, 1)
            values["seconds"] = round(time.perf_counter() - begun_s, 3)
            print(json.dumps(values), flush=True)


def _line(trace: Path, limit_mib: float, policy: str, accounting: str) -> dict[str, Any]:
    return {
        "limit_mib": limit_mib,
        "policy": policy,
        "accounting": accounting,
        "overhead_ms": None,
        "peak_mib": None,
        "bound_ms": None,
        "seconds": None,
        "trace": trace.stem,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines; return 0, or 1 if the trace cannot be read."""
    options = parse(arguments)
    try:
        if options.accounting == "published":
            published(options)
        else:
            honest(options)
    except (OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
