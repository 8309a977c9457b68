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
    """Declare the command's options."""
    parser.add_argument("--device", default="CPU:0", help="CPU:0, GPU:0, GPU:1, ... (CPU:0)")
    parser.add_argument(
        "--budget", default="auto", help='of all jobs together, such as 20GiB or "80%%" (auto)'
    )
    parser.add_argument("--socket", help=f"where to listen ({default_path()})")
    parser.add_argument(
        "--divide",
        choices=POLICIES,
        default=LEAST_SLOWDOWN,
        help="minimise the sum of slowdowns, or divide by weights (slowdown)",
    )
    parser.add_argument(
        "--weight",
        action="append",
        default=[],
        metavar="JOB=NUMBER",
        help="set a job's weight by its name; may be repeated",
    )
    parser.add_argument(
        "--minimum",
        action="append",
        default=[],
        metavar="JOB=BYTES",
        help="set a job's minimum by its name, such as resnet=2GiB; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted and return 0, or print an error and return 1."""
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
    weights = {job: _weight(text) for job, text in _assignments("--weight", options.weight)}
    minima = {
        job: budgets.parse_bytes(text) for job, text in _assignments("--minimum", options.minimum)
    }
    if sum(minima.values()) > budget_bytes:
        raise ValueError(
            f"the sum of the minima is {readable_bytes(sum(minima.values()))}, more than the "
            f"budget of {readable_bytes(budget_bytes)}"
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
    """Return a GPU's memory as its driver reports it, or 0 if unknown."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    query = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits", f"--id={number}"]
    done = subprocess.run(query, capture_output=True, text=True)
    text = done.stdout.strip()
    return int(text) << 20 if done.returncode == 0 and text.isdigit() else 0


def _assignments(flag: str, texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in texts:
        job, equals, value = text.rpartition("=")
        if not equals or not job:
            raise ValueError(f"{flag} must be JOB=VALUE; got {text!r}")
        yield job, value


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight <= MOST_WEIGHT:
        raise ValueError(f"--weight must be above 0 and at most {MOST_WEIGHT:g}; got {text!r}")
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
    print("tfswap broker: ended; running jobs keep their shares", flush=True)
    return 0
