"""Inject faults into small trainings, one after the other.

    python -m benchmarks.faults [--count 1000] [--seed 0] [--quick] [--kinds cancel,interrupt]

Each case is a training of a small model (convolutions; dense layers with Adam; an embedding and an
LSTM) under `AutoSwap`, with the file tier, codecs, streamed weights, planned addresses and
checksums as drawn, with one fault: a copy, an allocation, the disk, a thread, a callback, the data,
Ctrl-C, a fork, another training, ``kill -9``. It ends in

    correct       the losses of the unswapped training, bit for bit
    clear error   one error whose text names the cause
    wrong         other losses; another error; leftover memory, far memory, files, threads or
                  handles; or the next training of the same process has wrong losses
    crash, hang   of the process

A JSON line per case: number, kind, detail, subject, start (lazy: under on-demand swaps; planned:
under a given plan; whole: until addresses are planned), options, step, after, times, part, struck
(how often the fault took effect), outcome, said (the error), why (it is wrong), seconds. Then a
table: kind, count, outcomes; and how many faults of the core took effect. The exit status is 1 if
any is wrong. Cases share a process until one of them ends it; `kill-9` has separate processes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import queue
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.faults.cases import KINDS, Case, drawn
from benchmarks.faults.disk_folder import disk_folder
from benchmarks.faults.process import FaultProcess
from benchmarks.one_case import SERVE
from benchmarks.tally import Tally

OUTCOMES = ("correct", "clear error", "wrong", "crash", "hang")
RIGHT = OUTCOMES[:2]
_QUICK = 12


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=1000, help="cases (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK} cases, none of kill-9")
    parser.add_argument("--kinds", default="", help=f"only these, of: {', '.join(KINDS)}")
    parser.add_argument("--only", type=int, default=None, help="the case of this number")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (1)")
    parser.add_argument("--most-s", type=float, default=60, help="a case may take (60)")
    parser.add_argument(SERVE, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(filter(None, options.kinds.split(","))) - set(KINDS)
    if unknown:
        parser.error(f"there is no kind {min(unknown)!r}; there are {', '.join(KINDS)}")
    return options


def cases(options: argparse.Namespace) -> list[Case]:
    """Return the cases that the command line selects."""
    kinds = tuple(filter(None, options.kinds.split(",")))
    if options.quick:
        kinds = kinds or tuple(name for name in KINDS if name != "kill-9")
    found = drawn(options.seed, _QUICK if options.quick else options.count, kinds)
    return [case for case in found if options.only in (None, case.number)]


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the line of each case."""
    from benchmarks.faults.victims import Victims

    folder = disk_folder()
    victims = Victims(folder)
    idle: queue.SimpleQueue[FaultProcess] = queue.SimpleQueue()

    def line(case: Case) -> dict[str, Any]:
        begun_s = time.perf_counter()
        if case.kind == "kill-9":
            answer = victims.run(case)
        else:
            process = idle.get()
            answer = process.run(case)
            idle.put(process)
        seconds = round(time.perf_counter() - begun_s, 2)
        return {**dataclasses.asdict(case), **answer, "seconds": seconds}

    with ExitStack() as taken:
        taken.callback(shutil.rmtree, folder)
        taken.callback(victims.end)
        threads = taken.enter_context(ThreadPoolExecutor(options.jobs))
        for number in range(options.jobs):
            file = folder / f"cases-{number}"
            file.mkdir()
            idle.put(taken.enter_context(FaultProcess(file, options.most_s)))
        taken.callback(threads.shutdown, wait=False, cancel_futures=True)
        under_way = [threads.submit(line, case) for case in cases(options)]
        for each in as_completed(under_way):
            yield each.result()


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return how often each kind had each outcome."""
    rows = Tally("kind", "outcome", tuple(KINDS), OUTCOMES).rows(lines)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def strikes(lines: Sequence[dict[str, Any]]) -> str:
    """Return how many faults took effect: for example, whether there was a copy to fail."""
    told = [line["struck"] for line in lines if line["struck"] >= 0]
    return f"{sum(struck > 0 for struck in told)} of {len(told)} faults of the core struck"


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; return the exit status."""
    options = parse(arguments)
    if options.serve:
        from benchmarks.faults.process import serve

        return serve(Path(options.serve))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # so that nothing is left behind
    lines: list[dict[str, Any]] = []
    try:
        for line in run(options):
            lines.append(line)
            print(json.dumps(line), flush=True)
    finally:
        print(table(lines), strikes(lines), sep="\n", flush=True)
    return int(any(line["outcome"] not in RIGHT for line in lines))


if __name__ == "__main__":
    sys.exit(main())
