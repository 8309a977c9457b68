r"""Planned addresses and TensorFlow's BFC allocator: in real trainings, and call by call.

    python -m benchmarks.allocator [--models ResNet50,...] [--parts train,least,replay] [--quick]

train: each model unswapped and in half of its unswapped peak (a little above the load bound if that
is more than half), with all of its memory from BFC (an arena as large as the budget) and at planned
addresses. A JSON line each: model batch image allocator budget_bytes budget_share (of the unswapped
peak) footprint_bytes peak_load_bytes ratio slab_share planned_share step_s losses_equal (null if it
failed, or if unswapped trainings differ, as they may with several threads; there are two of them,
and up to five before a difference is reported). `footprint_bytes` is the memory behind all
requests: with BFC the end of the highest block, else the budget's count. Shares are of the bytes of
the timed steps: `slab_share` came from the slab, `planned_share`, of those that live within a step,
from planned addresses.

least: the least budget in which each model trains, on a grid of 1 % above the load bound (the
minimum of all plans of swaps), by bisection. A line an allocator: model batch image allocator
least_budget_bytes load_bound_bytes ratio step_s.

replay: the cost of an allocation and its free (`benchmarks.replay`): trace pairs threads allocator
ns_per_pair ratio_to_bfc failures taken.

Each training is a separate process; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.one_case import SERVE, TREE
from benchmarks.replay import replay
from benchmarks.trainings import (
    PLENTY_BYTES,
    Trainer,
    agree,
    repeatable,
    serve,
    timed,
)
from tfswap.machine.machine import Machine
from tfswap.plan.schema import SwapPlan
from tfswap.planning.plan_function import plan_function
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.step.profile import Profile
from tfswap.traces.timeline_file import load_profile

MODULE = "benchmarks.allocator"
TRACE = TREE / "benchmarks" / "traces" / "ResNet50_16x96.profile"

# Batch, and pixels or tokens. Half of the unswapped peak is above the load bound, except for VGG16:
# one of its ops needs half of the peak without any weights.
WORKLOADS = {
    "ResNet50": (16, 128),
    "DenseNet121": (16, 96),
    "MobileNetV2": (16, 128),
    "VGG16": (96, 48),
    "Transformer": (32, 64),
}
QUICK = {"U-Net": (8, 64)}
PARTS = ("train", "least", "replay")
ALLOCATORS = ("bfc", "slab")

_UNSWAPPED = (("bfc", False), ("bfc", False), ("slab", False))
# Before a difference is reported: TensorFlow with several threads often repeats itself only twice.
_MAX_UNSWAPPED = 5
_TIMED_STEPS = 7
_TIMED_STEPS_OF_A_TRIAL = 2
# Where half is below the load bound, use that much above the bound.
_ABOVE_BOUND = 1.05
# The highest budget that is tried, in percent above the bound.
_GRID = 100


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allocator", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--models", type=names, default=list(WORKLOADS), help="of the table")
    parser.add_argument("--parts", type=names, default=list(PARTS), help="train,least,replay")
    parser.add_argument("--trace", type=Path, default=TRACE, help="that is replayed")
    parser.add_argument("--threads", type=int, default=2, help="between and inside of ops (2)")
    parser.add_argument("--quick", action="store_true", help="one small model, few repeats")
    parser.add_argument(SERVE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in PARTS]
    unknown += [model for model in options.models if model not in WORKLOADS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    return options


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        model, batch, image: The model and its batch.
        allocator: "bfc" or "slab".
        budget_bytes: None for no limit.
        threads: Number of threads between and inside of ops.
        plan: File of a plan to use from the first step on.
        profile: File that the profile is written to.
        timed_steps: How many steps are timed.
    """

    model: str
    batch: int
    image: int
    allocator: str
    budget_bytes: int | None = None
    threads: int = 2
    plan: str | None = None
    profile: str | None = None
    timed_steps: int = _TIMED_STEPS


def train(case: Case) -> dict[str, Any]:
    """Train in this process until enough steps have been timed."""
    import tfswap
    from benchmarks.models import workload
    from tfswap.ops import library

    lib = library.load()
    memory = None
    if case.allocator == "bfc":
        from tests.support.allocators import serve_cpu_from_bfc

        memory = serve_cpu_from_bfc(case.budget_bytes or PLENTY_BYTES)
    repeatable(case.threads)
    lib.reset_memory_stats(0)
    work = workload(case.model, case.batch, case.image)
    swap = tfswap.AutoSwap(
        budget=case.budget_bytes or PLENTY_BYTES,
        slab=case.allocator == "slab",
        plan=case.plan,
        save_profile=case.profile,
        verbose=0,
    )
    found = timed(work.model, (work.x, work.y), swap, case.timed_steps)
    return {
        "losses": found.losses,
        "step_s": round(statistics.median(found.seconds[0]), 4),
        "unswapped_peak_bytes": swap.report["unswapped_peak_bytes"],
        "outcome": swap.report["outcome"],
        **_memory(found.after, memory.high_water_bytes if memory else None),
        **_shares(found.before, found.after),
    }


def _memory(stats: dict[str, int], high_water_bytes: int | None) -> dict[str, Any]:
    footprint = stats["peak_bytes"] if high_water_bytes is None else high_water_bytes
    return {
        "footprint_bytes": footprint,
        "peak_load_bytes": stats["peak_load_bytes"],
        "ratio": round(footprint / stats["peak_load_bytes"], 4),
    }


def _shares(before: dict[str, int], after: dict[str, int]) -> dict[str, float]:
    hit, moved, missed, lasting = (
        after[f"slab_{name}_bytes"] - before[f"slab_{name}_bytes"]
        for name in ("hit", "moved", "missed", "lasting")
    )
    if hit == 0:
        return {"slab_share": 0.0, "planned_share": 0.0}
    return {
        "slab_share": round((hit + moved + lasting) / (hit + moved + missed + lasting), 5),
        "planned_share": round(hit / (hit + moved + missed), 5),
    }


def in_a_process(case: Case) -> dict[str, Any]:
    """Train in a separate process; return {"failed": reason} if it does not train."""
    with Trainer(MODULE) as trainer:
        answer = trainer.train(case)
    say = {key: value for key, value in answer.items() if key not in ("losses", "failed")}
    failed = f" failed: {answer['failed'][-300:]}" if "failed" in answer else ""
    print(f"{case} {say}{failed}", file=sys.stderr, flush=True)
    return answer


def trainings(model: str, batch: int, image: int, threads: int, profile: Path) -> Iterator[Any]:
    """Yield the lines of "train"; write the profile that "least" uses."""
    answers: list[tuple[str, int | None, dict[str, Any]]] = []
    peak = 0
    least: int | None = None
    # Twice the first one: if it does not repeat itself, losses cannot be compared.
    for allocator, limited in (*_UNSWAPPED, *((name, True) for name in ALLOCATORS)):
        case = Case(model, batch, image, allocator, least if limited else None, threads)
        if not limited:
            case = dataclasses.replace(case, profile=str(profile))
        answer = in_a_process(case)
        answers.append((allocator, case.budget_bytes, answer))
        if least is None and "unswapped_peak_bytes" in answer:
            peak = answer["unswapped_peak_bytes"]
            least = max(peak // 2, int(load_bound(load_profile(profile)) * _ABOVE_BOUND))
    (_, _, first), (_, _, again), *_ = answers
    unswapped, differs = [first, again], any(_agree(first, each) is False for *_, each in answers)
    while differs and len(unswapped) < _MAX_UNSWAPPED and _repeats(unswapped):
        unswapped.append(in_a_process(Case(model, batch, image, answers[0][0], None, threads)))
    repeats = _repeats(unswapped)
    keys = ("footprint_bytes", "peak_load_bytes", "ratio", "slab_share", "planned_share", "step_s")
    for allocator, budget_bytes, answer in (answers[0], *answers[2:]):
        yield {
            "model": model,
            "batch": batch,
            "image": image,
            "allocator": allocator,
            "budget_bytes": budget_bytes,
            "budget_share": None if budget_bytes is None else round(budget_bytes / peak, 3),
            **{key: answer.get(key) for key in keys},
            "losses_equal": _agree(first, answer) if repeats else None,
            **({"failed": answer["failed"]} if "failed" in answer else {}),
        }


def _repeats(unswapped: Sequence[dict[str, Any]]) -> bool:
    """Return whether TensorFlow repeats itself bit for bit, as far as known."""
    return all(_agree(unswapped[0], each) for each in unswapped[1:])


def _agree(one: dict[str, Any], other: dict[str, Any]) -> bool | None:
    """Return whether two trainings had equal losses for their common steps; None without losses."""
    if not one.get("losses") or not other.get("losses"):
        return None
    return agree(one["losses"], other["losses"])


def least_budgets(
    model: str, batch: int, image: int, threads: int, profile_path: Path
) -> Iterator[Any]:
    """Yield the lines of "least"."""
    profile = load_profile(profile_path)
    bound = load_bound(profile)
    for allocator in ALLOCATORS:
        trained: dict[int, float] = {}
        below, above = -1, _GRID  # does not train, is not tried
        while above - below > 1:
            percent = (below + above) // 2 if trained or below >= 0 else 1
            steps = _TIMED_STEPS_OF_A_TRIAL
            case = Case(model, batch, image, allocator, None, threads, timed_steps=steps)
            step_s = trial(case, profile, bound, percent)
            if step_s is None:
                below = percent
            else:
                above = percent
                trained[percent] = step_s
        least = None if above not in trained else int(bound * (1 + above / 100))
        yield {
            "model": model,
            "batch": batch,
            "image": image,
            "allocator": allocator,
            "least_budget_bytes": least,
            "load_bound_bytes": bound,
            "ratio": None if least is None else round(least / bound, 4),
            "step_s": trained.get(above),
        }


def load_bound(profile: Profile) -> int:
    """Return the load bound of all plans of swaps, in bytes."""
    try:
        plan_function(profile, "greedy", Machine.measure(), 1)
    except BudgetTooSmall as error:
        return error.floor_bytes
    raise ValueError("a step that needs nothing")


def trial(case: Case, profile: Profile, bound: int, percent: int) -> float | None:
    """Return the step time at that much above the bound; None if that does not train."""
    budget_bytes = int(bound * (1 + percent / 100))
    try:
        planned = plan_function(profile, "auto", Machine.measure(), budget_bytes)
    except BudgetTooSmall:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        SwapPlan((planned.function,), budget_bytes, unmatched="bootstrap").save(path)
        answer = in_a_process(dataclasses.replace(case, budget_bytes=budget_bytes, plan=str(path)))
    return answer.get("step_s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = parse(arguments)
    if options.serve:
        return serve(train, Case)
    workloads = QUICK if options.quick else {name: WORKLOADS[name] for name in options.models}
    for model, (batch, image) in workloads.items():
        with tempfile.TemporaryDirectory() as folder:
            profile = Path(folder) / "step.profile"
            if "train" in options.parts or "least" in options.parts:
                for line in trainings(model, batch, image, options.threads, profile):
                    print(json.dumps(line), flush=True)
            if "least" in options.parts:
                for line in least_budgets(model, batch, image, options.threads, profile):
                    print(json.dumps(line), flush=True)
    if "replay" in options.parts:
        try:
            for threads in (1, 4):
                for line in replay(options.trace, threads, 20 if options.quick else 200):
                    print(json.dumps(line), flush=True)
        except (OSError, ValueError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
