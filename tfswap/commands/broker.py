"""Divide a device's memory among several training processes: AutoSwap(broker=...)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable

from tfswap.io.amounts import readable_bytes
from tfswap.jobs.broker import Broker
from tfswap.jobs.division import LEAST_SLOWDOWN, POLICIES
from tfswap.jobs.lease_folder import BrokerRunning
from tfswap.jobs.share import MOST_WEIGHT
from tfswap.jobs.socket_path import SocketRefused, default_path, parse_path
from tfswap.machine import budget as budgets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("--device", default="CPU:0", help="CPU:0, GPU:0, GPU:1, ... (CPU:0)")
    parser.add_argument(
        "--budget", default="auto", help='for all jobs together, such as 20GiB or "80%%" (auto)'
    )
    parser.add_argument("--socket", help=f"where to listen ({default_path()})")
    parser.add_argument(
        "--divide",
        choices=POLICIES,
        default=LEAST_SLOWDOWN,
        help="by least total slowdown, or by weights (slowdown)",
    )
    parser.add_argument(
        "--weight",
        action="append",
        default=[],
        metavar="JOB=NUMBER",
        help="of a job by name, whatever it asks for; again for more",
    )
    parser.add_argument(
        "--minimum",
        action="append",
        default=[],
        metavar="JOB=BYTES",
        help="likewise, such as resnet=2GiB",
    )


def run(options: argparse.Namespace) -> int:
    """Serves until it is interrupted; 0, or 1 with a word on what is wrong."""
    try:
        broker = _broker(options)
        return asyncio.run(_serve(broker))
    except (ImportError, OSError, ValueError, BrokerRunning, SocketRefused) as error:
        print(f"tfswap broker: {error}", file=sys.stderr)
        return 1


def _broker(options: argparse.Namespace) -> Broker:
    device = options.device.upper()
    kind, _, number = device.partition(":")
    if kind not in ("CPU", "GPU") or not number.isdigit():
        raise ValueError(f"--device {options.device}: devices are called CPU:0, GPU:0, GPU:1, ...")
    budget_bytes = _budget_bytes(options.budget, kind, int(number))
    weights = {job: _weight(text) for job, text in _by_job("--weight", options.weight)}
    minima = {job: budgets.parse_bytes(text) for job, text in _by_job("--minimum", options.minimum)}
    if sum(minima.values()) > budget_bytes:
        raise ValueError(
            f"the minima are {readable_bytes(sum(minima.values()))} together, and the budget is "
            f"{readable_bytes(budget_bytes)}"
        )
    return Broker(
        device,
        budget_bytes,
        parse_path(options.socket or True),
        options.divide,
        weights=weights,
        minima=minima,
        say=lambda line: print(f"tfswap broker: {line}", flush=True),
    )


def _budget_bytes(budget: str, kind: str, number: int) -> int:
    if kind == "CPU":
        return budgets.resolve(budget)
    return budgets.resolve(budget, device_limit_bytes=_gpu_bytes(number))


def _gpu_bytes(number: int) -> int:
    """A GPU's memory as its driver says; 0 where nobody does."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    query = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits", f"--id={number}"]
    found = subprocess.run(query, capture_output=True, text=True)
    text = found.stdout.strip()
    return int(text) << 20 if found.returncode == 0 and text.isdigit() else 0


def _by_job(flag: str, assignments: Iterable[str]) -> Iterable[tuple[str, str]]:
    for assignment in assignments:
        job, equals, text = assignment.rpartition("=")
        if not equals or not job:
            raise ValueError(f"{flag} {assignment}: write it as JOB=VALUE")
        yield job, text


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight <= MOST_WEIGHT:
        raise ValueError(f"--weight: {text!r} is no number above 0, at most {MOST_WEIGHT:g}")
    return weight


async def _serve(broker: Broker) -> int:
    await broker.start()
    loop = asyncio.get_running_loop()
    serving = asyncio.ensure_future(broker.serve())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    print(
        f"tfswap broker: ready at {broker.socket}, {broker.device} with "
        f"{readable_bytes(broker.ledger.capacity_bytes)}",
        flush=True,
    )
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    finally:
        await broker.stop()
    print("tfswap broker: ended; jobs go on with what they have", flush=True)
    return 0
