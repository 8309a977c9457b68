r"""Several trainings on one device: memory saved, time lost and total throughput.

    python -m benchmarks.jobs [--quick] [--models VGG16,ResNet50] [--image 128] [--budget 0.5]

Train each model alone, with the saving that TENSILE's authors logged; then two and three at once,
of the same and of different models, under one budget (a part of the sum of their unswapped peaks):

    (unswapped      at once, without a budget: the reference for step times)
    processes       in separate processes, under a broker
    comes and goes  all processes but one join later, and that one leaves earlier
    static          a baseline: in processes, each with an equal share
    sequential      a baseline: one after the other, each with the whole budget

One JSON line a case: jobs, models, mode, budget_bytes, measured_peak_bytes (the largest sum of the
needs of concurrent steps), msr (memory saving ratio, 1 - peak / unswapped peak), eor (extra
overhead ratio, step time / unswapped step time - 1, the mean of the jobs), throughput_ratio
(examples per second of all jobs together, relative to one after the other); logged_msr and
logged_eor are from the authors' repository (batch 16 as in the paper, another framework, a GPU).

Source: Zhang, Wang et al., TENSILE, arXiv 2105.13336; the ratios as in the first author's code.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.job import Job, Step
from benchmarks.running_jobs import BrokerRunning, Failed, Running

# (memory saving, extra overhead) of one job at batch 16, as logged.
LOGGED = {
    "VGG16": (0.3264, 0.2626),
    "InceptionV3": (0.5895, 0.2955),
    "ResNet50": (0.6709, 0.6089),
    "DenseNet121": (0.7597, 0.1644),
}
ALONE, UNSWAPPED, PROCESSES = "alone", "unswapped", "processes"
STATIC, SEQUENTIAL, COMES_AND_GOES = "static", "sequential", "comes and goes"
MODES = (PROCESSES, STATIC, SEQUENTIAL, COMES_AND_GOES)
# The budget as a multiple of the least possible one.
_SPARE = 1.03


@dataclass(frozen=True)
class Measured:
    """The results of concurrent jobs.

    Attributes:
        step_s: Median step time of each.
        examples_per_s: Examples per second of all together.
        peak_bytes: The largest sum at any time.
        least_bytes: The least budget of the first one with swaps; 0: it was not planned.
    """

    step_s: tuple[float, ...]
    examples_per_s: float
    peak_bytes: int
    least_bytes: int = 0


def at_once(jobs: Sequence[Job], options: argparse.Namespace, mode: str, budget: int) -> Measured:
    """Run jobs concurrently until all have settled and made some more steps."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if mode in (PROCESSES, COMES_AND_GOES):
            broker = stack.enter_context(BrokerRunning(folder, budget))
            jobs = [replace(job, socket=str(broker.socket)) for job in jobs]
        elif mode == STATIC:
            jobs = [replace(job, budget_bytes=budget // len(jobs)) for job in jobs]
        elif mode != UNSWAPPED:
            jobs = [replace(job, budget_bytes=budget) for job in jobs]
        running = Running(folder, swapped=mode != UNSWAPPED)
        stack.callback(running.close, jobs)
        if mode == COMES_AND_GOES:
            first, *others = jobs
            running.begin(first)
            running.wait([first], options.steps)
            for job in others:
                running.begin(job)
            running.wait(jobs, options.steps)
            running.end(first)
            running.wait(others, options.steps)
        else:
            for job in jobs:
                running.begin(job)
        if mode != COMES_AND_GOES:
            running.wait(jobs, options.steps)
        found = [running.steps(job.name) for job in jobs]
        peak_bytes = largest_sum(found)
        settled = [running.settled(job.name) for job in jobs]
        if mode == COMES_AND_GOES:
            since_s = min(steps[0].begin_s for steps in found)
            settled = found
        else:
            since_s = max(steps[0].begin_s for steps in settled)
        measured = Measured(*rates(jobs, settled, since_s), peak_bytes)
        running.close(jobs)
        least = folder / f"{jobs[0].name}.least"
        return replace(measured, least_bytes=int(least.read_text()) if least.exists() else 0)


def rates(
    jobs: Sequence[Job], steps: Sequence[Sequence[Step]], since_s: float
) -> tuple[tuple[float, ...], float]:
    """Return median step times, and examples per second between a time and the last end."""
    until_s = max(each[-1].end_s for each in steps)
    examples, step_s = 0.0, []
    for job, each in zip(jobs, steps, strict=True):
        inside = [step for step in each if step.begin_s >= since_s]
        step_s.append(statistics.median(step.end_s - step.begin_s for step in inside))
        examples += job.batch * len(inside)
    return tuple(step_s), examples / (until_s - since_s)


def largest_sum(jobs: Sequence[Sequence[Step]]) -> int:
    """Return the largest sum of the needs of concurrent steps.

    Between two steps a job counts with the bytes in use when the second begins: in between it
    releases what exceeds its share, before another job gets that.
    """
    changes: list[tuple[float, int, int]] = []
    for number, steps in enumerate(jobs):
        changes += [(at_s, number, peak) for step in steps for at_s, peak in step.needs()]
        between = zip(steps, steps[1:], strict=False)
        changes += [(step.end_s, number, after.before_bytes) for step, after in between]
        if steps:
            changes.append((steps[-1].end_s, number, 0))
    now, most = [0] * len(jobs), 0
    for _, number, peak_bytes in sorted(changes):
        now[number] = peak_bytes
        most = max(most, sum(now))
    return most


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run all cases; yield their lines."""
    alone: dict[str, Measured] = {}
    for model in dict.fromkeys([*options.models, *(m for each in options.together for m in each)]):
        job = Job("a", model, options.batch, options.image)
        alone[model] = at_once([job], options, UNSWAPPED, 0)
        if model in LOGGED and model in options.models:
            logged = int((1 - LOGGED[model][0]) * alone[model].peak_bytes)
            possible = at_once([job], options, ALONE, 4 * alone[model].peak_bytes).least_bytes
            budget = max(logged, int(_SPARE * possible))
            yield measured_line([job], options, ALONE, budget, alone)
    for models in options.together:
        jobs = [
            Job(chr(ord("a") + place), model, options.batch, options.image)
            for place, model in enumerate(models)
        ]
        budget = int(options.budget * sum(alone[model].peak_bytes for model in models))
        beside = at_once(jobs, options, UNSWAPPED, 0)
        for mode in options.modes:
            yield measured_line(jobs, options, mode, budget, alone, beside)


def measured_line(
    jobs: Sequence[Job],
    options: argparse.Namespace,
    mode: str,
    budget: int,
    alone: dict[str, Measured],
    beside: Measured | None = None,
) -> dict[str, Any]:
    """Return the line of one case and its reference."""
    models = [job.model for job in jobs]
    line: dict[str, Any] = {
        "jobs": len(jobs),
        "models": models,
        "mode": mode,
        "budget_bytes": budget,
        "measured_peak_bytes": None,
        "msr": None,
        "eor": None,
        "throughput_ratio": None,
    }
    if mode == ALONE and models[0] in LOGGED:
        line["logged_msr"], line["logged_eor"] = LOGGED[models[0]]
    unswapped_bytes = sum(alone[model].peak_bytes for model in models)
    unswapped_s = beside.step_s if beside else tuple(alone[model].step_s[0] for model in models)
    try:
        if mode == SEQUENTIAL:
            each = [at_once([job], options, ALONE, budget) for job in jobs]
            found = Measured(
                tuple(one.step_s[0] for one in each),
                len(jobs) / sum(1 / one.examples_per_s for one in each),
                max(one.peak_bytes for one in each),
            )
            unswapped_s = tuple(alone[model].step_s[0] for model in models)
        else:
            found = at_once(jobs, options, mode, budget)
    except Failed as failure:
        return {**line, "error": str(failure)}
    in_turns = len(jobs) / sum(1 / alone[model].examples_per_s for model in models)
    slower = [now / before - 1 for now, before in zip(found.step_s, unswapped_s, strict=True)]
    line["measured_peak_bytes"] = found.peak_bytes
    line["msr"] = round(1 - found.peak_bytes / unswapped_bytes, 4)
    line["eor"] = round(statistics.mean(slower), 4)
    line["throughput_ratio"] = round(found.examples_per_s / in_turns, 4)
    return line


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--quick", action="store_true", help="two jobs, small images, a minute")
    parser.add_argument("--models", type=names, help="alone (four; none with --together)")
    parser.add_argument(
        "--together",
        type=lambda text: [each.split("+") for each in text.split(",")],
        help="what runs at once, such as ResNet50+VGG16, instead of what is said above",
    )
    parser.add_argument("--modes", type=names, default=list(MODES), help=f"({','.join(MODES)})")
    parser.add_argument("--batch", type=int, default=16, help="examples (16)")
    parser.add_argument("--image", type=int, default=128, help="pixels of a side (128)")
    parser.add_argument("--budget", type=float, default=0.5, help="of the sum of peaks (0.5)")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each job (8)")
    options = parser.parse_args(arguments)
    unknown = set(options.modes) - set(MODES)
    if unknown:
        parser.error(f"unknown modes {sorted(unknown)}: allowed are {', '.join(MODES)}")
    if options.models is None:
        options.models = [] if options.together else list(LOGGED)
    if options.quick:
        options.models, options.image, options.batch = ["U-Net"], 96, 8
        options.modes, options.steps = [PROCESSES], 4
        options.together = [["U-Net", "U-Net"]]
        return options
    if options.together:
        return options
    same = [[options.models[-2 % len(options.models)]] * count for count in (2, 3)]
    mixed = [options.models[-2:], options.models[-3:]] if len(options.models) > 2 else []
    options.together = [*same, *mixed]
    return options


def main() -> int:
    """Run the benchmark."""
    for line in compare(parse()):
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
