"""Train two models at once on one machine, each in a process with its own budget.

    python examples/two_jobs.py [--budget 0.65] [--steps N] [--quick] [--spill-dir DIR]

The jobs are the Transformer and the U-Net of the other examples. First each runs alone and without
tfswap, which shows how much memory it needs. Then both run at once, each with a part of that as its
budget, so that both together get less than they would take. Each keeps its own budget, and its
losses are those that it had alone. This takes four minutes on two cores; with `--quick` one.

A budget is fixed when its job begins: what one job leaves unused is not given to the other (see
`tfswap broker` for that). On a CPU, what leaves the device is in the same RAM, unless `--spill-dir`
names a folder on a disk.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import cpu_only  # noqa: F401  # the jobs inherit its environment

MIB = 1 << 20
JOBS = ("transformer", "unet")  # files beside this one


class Task(NamedTuple):
    """The task of a job.

    Attributes:
        job: One of `JOBS`.
        command_line: Arguments of the job's own file.
        budget: Budget in the forms of the job's own file.
        unswapped_peak_bytes: Peak without swaps; None to train without tfswap.
        spill_dir: A folder on a disk for far memory; None for RAM.
    """

    job: str
    command_line: list[str]
    budget: str
    unswapped_peak_bytes: int | None = None
    spill_dir: str | None = None


class Outcome(NamedTuple):
    """The result of a job.

    Attributes:
        losses: The mean loss so far, after each step.
        step_s: Duration of a step at the end.
        peak_bytes: Peak memory of the device in any step.
        budget_bytes: Its budget; None without tfswap.
        begun_s: When training began, by a clock that all processes share.
        ended_s: When it ended.
    """

    losses: list[float]
    step_s: float
    peak_bytes: int
    budget_bytes: int | None
    begun_s: float
    ended_s: float


def do(task: Task) -> Outcome:
    """Run a task in this process, which does nothing else."""
    example = importlib.import_module(task.job)
    import tfswap  # the example has imported it early enough

    swaps = []
    if task.unswapped_peak_bytes is not None:
        budget = example.budget_of(task.budget, task.unswapped_peak_bytes)
        host_limit = "auto" if task.spill_dir is None else "1MiB"
        swaps = [
            tfswap.AutoSwap(budget, host_limit=host_limit, spill_dir=task.spill_dir, verbose=0)
        ]
    begun_s = time.monotonic()
    training = example.train(example.arguments(task.command_line), swaps)
    budget_bytes = swaps[0].report["budget_bytes"] if swaps else None
    return Outcome(*training, budget_bytes, begun_s, time.monotonic())


def at_once(tasks: Sequence[Task]) -> list[Outcome]:
    """Run each task in a new process, all at once."""
    with ProcessPoolExecutor(len(tasks), mp_context=get_context("spawn")) as processes:
        return list(processes.map(do, tasks))


def main() -> None:
    """Train each job alone, then both at once inside budgets."""
    parser = argparse.ArgumentParser(description="Train two models at once, each in a budget.")
    parser.add_argument(
        "--budget",
        default="0.65",
        help="of each, such as 400MiB, or a part of what it needs (0.65)",
    )
    parser.add_argument("--steps", type=int, help="of each training (40, 16; quick: 18)")
    parser.add_argument("--quick", action="store_true", help="smaller models")
    parser.add_argument("--spill-dir", help="a folder on a disk for what leaves the devices")
    options = parser.parse_args()
    command_line = ["--quick"] * options.quick
    if options.steps:
        command_line.append(f"--steps={options.steps}")
    tasks = [Task(job, command_line, options.budget, None, options.spill_dir) for job in JOBS]

    print("1. Each alone, without tfswap:", flush=True)
    alone = []
    for task in tasks:
        [outcome] = at_once([task])
        alone.append(outcome)
        print(
            f"{task.job:12} {outcome.peak_bytes / MIB:6.1f} MiB, {outcome.step_s:.2f} s a step",
            flush=True,
        )
    needed_bytes = sum(outcome.peak_bytes for outcome in alone)
    print(f"together     {needed_bytes / MIB:6.1f} MiB\n")

    print("2. Both at once, each in a process with its own budget:", flush=True)
    together = at_once(
        [
            task._replace(unswapped_peak_bytes=outcome.peak_bytes)
            for task, outcome in zip(tasks, alone, strict=True)
        ]
    )
    for task, outcome in zip(tasks, together, strict=True):
        print(
            f"{task.job:12} {outcome.peak_bytes / MIB:6.1f} MiB "
            f"of {outcome.budget_bytes / MIB:.1f} MiB, {outcome.step_s:.2f} s a step"
        )
        if outcome.peak_bytes > outcome.budget_bytes:
            raise SystemExit(f"The {task.job} held more than its budget.")
    held_bytes = sum(outcome.peak_bytes for outcome in together)
    given_bytes = sum(outcome.budget_bytes for outcome in together)
    print(f"together     {held_bytes / MIB:6.1f} MiB of {given_bytes / MIB:.1f} MiB\n")

    both_s = min(each.ended_s for each in together) - max(each.begun_s for each in together)
    print(f"Both trained at the same time for {both_s:.0f} s.")
    if [outcome.losses for outcome in together] != [outcome.losses for outcome in alone]:
        raise SystemExit("Losses differ.")
    print("The losses of all their steps are the same as alone, bit for bit.")


if __name__ == "__main__":
    main()
