r"""Measure what encoding far memory saves of the time that swapping takes, over emulated links.

    python -m benchmarks.compression [--quick] [--models AlexNet,...] [--links 0.25,2,6,12]
        [--activations relu,leaky_relu] [--modes none,all,cswap,auto,lossy] [--accuracy]

The models are those of CSWAP+ (Chen et al. 2022), trained on enlarged digits with the device's
memory limited to half of their need (or a little above the least budget, if that is more; "note"
says so). Modes: ``none`` swaps everything unencoded, ``all`` encodes everything that ZVC makes
smaller, ``cswap`` uses that paper's inequality, ``auto`` encodes where that shortens the simulated
step. All are lossless; leaky ReLU leaves no zeros, so only there ``lossy`` is ``auto`` with lossy
codecs (its losses differ), in a training of eight short epochs with a falling rate: its step is the
mean over the epochs, which "step_s_by_epoch" lists. ``--accuracy`` measures the effect of that on a
training instead (``compression_accuracy.py``). For a few cores, a link of 0.25 GB/s corresponds to
a GPU's PCI Express; over one of 2 GB/s, exposed time is mostly the cores' own work.

    prepare ─▶ unswapped ─▶ none ─▶ all ─▶ cswap ─▶ auto ─▶ unswapped ─▶ (the next link) ...
    (warm weights, profile)  └──────── --repeats times ───────┘

If unswapped trainings agree and a lossless mode differs, up to five unswapped ones are run before a
difference is reported: with several threads TensorFlow often repeats itself twice, and not a third
time.

Each training begins with the same warm weights, so that zeros are as frequent as in training. All
trainings of a model and activation share a process as long as they do not fail
(`benchmarks.trainings`). One JSON line a mode goes to stdout, progress to stderr. Keys: model
activation link_gb_s mode budget_bytes measured_peak_bytes unswapped_step_s step_s predicted_step_s
predicted_wait_s exposed_s exposed_reduction compressed_tensors swapped_tensors ratio losses_equal.
Times are medians over all timed steps. ``predicted_wait_s``: the predicted wait for copies, which
codecs can save. ``exposed_s``: by how much the step is longer than the unswapped one, which has
planned addresses, too. ``exposed_reduction``: the part of it that the mode saves against ``none``,
at most 1; null if ``none`` exposes less than 2 % of the step, which is noise. ``ratio``: encoded to
source bytes. ``losses_equal``: null if unswapped trainings differ.

Last, a line for each activation: the mean and the largest reduction by mode over all models and
links, beside what CSWAP+ printed as its largest.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.allocator import load_bound
from benchmarks.budget_sweep import MAX_BASELINES
from benchmarks.compression_case import CODECS, LOSSY_EPOCHS, LOSSY_MODE, Case, train
from benchmarks.one_case import SERVE
from benchmarks.trainings import Trainer, agree, serve
from tfswap.traces.timeline_file import load_profile

MODULE = "benchmarks.compression"

# Batch and pixels.
WORKLOADS = {
    "AlexNet": (256, 64),
    "Plain20": (128, 32),
    "VGG16": (32, 48),
    "MobileNet": (16, 96),
    "ResNet50": (16, 96),
    "SqueezeNet": (64, 96),
}
ACTIVATIONS = ("relu", "leaky_relu")
DENSE_ACTIVATIONS = ACTIVATIONS[1:]
QUICK_MODEL, QUICK_BATCH, QUICK_LINK = "Plain20", 64, 0.25
KEYS = (
    "model activation link_gb_s mode budget_bytes measured_peak_bytes unswapped_step_s step_s "
    "predicted_step_s predicted_wait_s exposed_s exposed_reduction compressed_tensors "
    "swapped_tensors ratio losses_equal"
).split()
# The largest reduction of the swaps' latency in CSWAP+; that of dense tensors is lossy.
PUBLISHED = {"relu": 0.509, "leaky_relu": 0.461}

_BUDGET_SHARE = 0.5
# If that is below the load bound, that much above it; and more, until on-demand swaps train.
_ABOVE_BOUND, _HIGHER = 1.05, 1.08
_MIN_EXPOSED = 0.02


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compression", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = lambda text: text.split(",")  # noqa: E731
    speeds = lambda text: [float(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--quick", action="store_true", help="one model and link, in two minutes")
    parser.add_argument("--models", type=names, help=f"of {', '.join(WORKLOADS)} (all)")
    parser.add_argument("--links", type=speeds, help="speeds in GB/s (0.25,2,6,12)")
    parser.add_argument("--activations", type=names, help="relu,leaky_relu (both)")
    parser.add_argument("--modes", type=names, default=list(CODECS), help=",".join(CODECS))
    parser.add_argument("--accuracy", action="store_true", help="exact beside lossy trainings")
    parser.add_argument("--epochs", type=int, default=8, help="of each with --accuracy (8)")
    parser.add_argument("--batch", type=int, help="examples in a batch (by model)")
    parser.add_argument("--steps", type=int, help="timed in a training (7; quick: 5)")
    parser.add_argument("--repeats", type=int, help="of each training (2; quick: 1)")
    parser.add_argument("--threads", type=int, default=2, help="between and inside of ops (2)")
    parser.add_argument(SERVE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    quick = options.quick
    if quick and options.models is None:
        options.batch = options.batch or QUICK_BATCH
    options.models = options.models or ([QUICK_MODEL] if quick else list(WORKLOADS))
    options.links = options.links or ([QUICK_LINK] if quick else [0.25, 2.0, 6.0, 12.0])
    options.activations = options.activations or (["relu"] if quick else list(ACTIVATIONS))
    options.steps = options.steps or (5 if quick else 7)
    options.repeats = options.repeats or (1 if quick else 2)
    for given, allowed in (
        (options.models, WORKLOADS),
        (options.activations, ACTIVATIONS),
        (options.modes, CODECS),
    ):
        if unknown := [name for name in given if name not in allowed]:
            parser.error(f"unknown: {', '.join(unknown)}; allowed are {', '.join(allowed)}")
    return options


Train = Callable[[Case], dict[str, Any]]


def aloud(train: Train) -> Train:
    """Return the function with progress on stderr."""

    def trained(case: Case) -> dict[str, Any]:
        begun_s = time.monotonic()
        answer = train(case)
        done = f"failed: {answer['failed'][-600:]}" if "failed" in answer else "done"
        link = "" if case.link_gb_s is None else f" over {case.link_gb_s:g} GB/s"
        print(
            f"{case.model} {case.activation}, {case.mode or 'unswapped'}{link}: {done}, "
            f"{time.monotonic() - begun_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        return answer

    return trained


# All trainings of one model and activation.


@dataclass(frozen=True)
class Prepared:
    """The common start of all trainings of one model and activation.

    Attributes:
        case: The case with the warm weights.
        unswapped_peak_bytes: The measured peak.
        bound_bytes: The lower bound of all plans of swaps.
    """

    case: Case
    unswapped_peak_bytes: int
    bound_bytes: int


def prepare(
    options: argparse.Namespace, model: str, activation: str, folder: Path, train: Train
) -> Prepared:
    """Train for warm weights, and profile a step.

    Raises:
        RuntimeError: It does not train.
    """
    batch, image = WORKLOADS[model]
    weights, profile = str(folder / "warm.npz"), str(folder / "step.profile")
    case = Case(model, activation, options.batch or batch, image, options.threads, options.steps)
    answer = train(dataclasses.replace(case, save_weights=weights, save_profile=profile))
    if "failed" in answer:
        raise RuntimeError(f"{model} does not train: {answer['failed']}")
    return Prepared(
        dataclasses.replace(case, weights=weights),
        answer["unswapped_peak_bytes"],
        load_bound(load_profile(profile)),
    )


@dataclass
class Cell:
    """Trainings of one model and activation over one link.

    Attributes:
        model, activation, link_gb_s: The model, its activation and the link.
        unswapped_peak_bytes: The peak without a budget.
        budget_bytes: The budget of all of them.
        unswapped: Answers of the unswapped trainings.
        swapped: Answers by mode.
    """

    model: str
    activation: str
    link_gb_s: float
    unswapped_peak_bytes: int
    budget_bytes: int
    unswapped: list[dict[str, Any]]
    swapped: dict[str, list[dict[str, Any]]]


def cells(options: argparse.Namespace, prepared: Prepared, train: Train) -> Iterator[Cell]:
    """Yield a cell for each link; the last unswapped training of one is the first of the next."""
    case, peak_bytes = prepared.case, prepared.unswapped_peak_bytes
    budget_bytes = max(int(_BUDGET_SHARE * peak_bytes), int(_ABOVE_BOUND * prepared.bound_bytes))
    dense = case.activation in DENSE_ACTIVATIONS
    chosen = [mode for mode in options.modes if dense or mode != LOSSY_MODE]
    unswapped = train(case)
    for link_gb_s in options.links:
        modes: dict[str, list[dict[str, Any]]] = {mode: [] for mode in chosen}
        cell = Cell(
            case.model, case.activation, link_gb_s, peak_bytes, budget_bytes, [unswapped], modes
        )
        _measure(cell, case, options.repeats, train)
        unswapped, budget_bytes = train(case), cell.budget_bytes
        cell.unswapped.append(unswapped)
        while len(cell.unswapped) < MAX_BASELINES and _seems_wrong(cell):
            cell.unswapped.append(train(case))
        yield cell


def _seems_wrong(cell: Cell) -> bool:
    """Return whether a lossless mode differs from the unswapped trainings, which all agree."""
    return any(
        losses_equal(cell.unswapped, answers) is False
        for mode, answers in cell.swapped.items()
        if mode != LOSSY_MODE
    )


def _measure(cell: Cell, case: Case, repeats: int, train: Train) -> None:
    """Train in all modes, in turns; raise the budget until the first mode trains."""

    def answer(mode: str) -> dict[str, Any]:
        return train(
            dataclasses.replace(
                case,
                mode=mode,
                epochs=LOSSY_EPOCHS if mode == LOSSY_MODE else 1,
                budget_bytes=cell.budget_bytes,
                link_gb_s=cell.link_gb_s,
            )
        )

    first = next(iter(cell.swapped), None)
    if first is None:
        return
    found = answer(first)
    while "failed" in found and (higher := int(_HIGHER * cell.budget_bytes)) < (
        cell.unswapped_peak_bytes
    ):
        cell.budget_bytes = higher
        found = answer(first)
    cell.swapped[first].append(found)
    for repeat in range(repeats):
        for mode, answers in cell.swapped.items():
            if len(answers) == repeat:
                answers.append(answer(mode))


def lines(cell: Cell) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines; unknown values are None, and "error" is the reason."""
    unswapped_s = _step_s(cell.unswapped)
    none_s = _step_s(cell.swapped.get("none", []))
    share = cell.budget_bytes / cell.unswapped_peak_bytes
    for mode, answers in cell.swapped.items():
        values: dict[str, Any] = dict.fromkeys(KEYS)
        values |= {
            "model": cell.model,
            "activation": cell.activation,
            "link_gb_s": cell.link_gb_s,
            "mode": mode,
            "budget_bytes": cell.budget_bytes,
            "unswapped_step_s": _rounded(unswapped_s),
        }
        if trained := [answer for answer in answers if "failed" not in answer]:
            step_s = _step_s(trained)
            last = trained[-1]
            encoded_bytes = sum(answer["encoded_bytes"] for answer in trained)
            kept_bytes = sum(answer["kept_bytes"] for answer in trained)
            values |= {
                "measured_peak_bytes": max(answer["peak_bytes"] for answer in trained),
                "step_s": _rounded(step_s),
                "predicted_step_s": _rounded(last["predicted_step_s"]),
                "predicted_wait_s": _rounded(last["predicted_wait_s"]),
                "compressed_tensors": last["compressed_tensors"],
                "swapped_tensors": last["swapped_tensors"],
                "ratio": _rounded(kept_bytes / encoded_bytes if encoded_bytes else None),
                "losses_equal": losses_equal(cell.unswapped, trained),
                **last.get("by_epoch", {}),
            }
            if step_s is not None and unswapped_s is not None:
                values["exposed_s"] = _rounded(step_s - unswapped_s)
                values["exposed_reduction"] = _rounded(reduction(unswapped_s, none_s, step_s))
        if share > _BUDGET_SHARE + 0.005:
            values["note"] = f"budget raised from 50% to {share:.0%} of the unswapped peak"
        if errors := [*_errors(cell.unswapped), *_errors(answers)]:
            values["error"] = "; ".join(errors)
        yield values


def reduction(unswapped_s: float, none_s: float | None, step_s: float) -> float | None:
    """Return the part of the exposed time of mode "none" that is saved."""
    if none_s is None or none_s - unswapped_s < _MIN_EXPOSED * unswapped_s:
        return None
    return 1 - max(step_s - unswapped_s, 0.0) / (none_s - unswapped_s)


def losses_equal(
    unswapped: Sequence[dict[str, Any]], swapped: Sequence[dict[str, Any]]
) -> bool | None:
    """Return whether all losses have the same bits; None if they need not."""
    baselines, losses = (
        [answer["losses"] for answer in answers if "failed" not in answer]
        for answers in (unswapped, swapped)
    )
    if not baselines or not all(agree(baselines[0], other) for other in baselines):
        return None
    return all(agree(max(baselines, key=len), each) for each in losses)


def _step_s(answers: Sequence[dict[str, Any]]) -> float | None:
    seconds = [s for answer in answers for s in answer.get("seconds", ())]
    return statistics.median(seconds) if seconds else None


def _errors(answers: Sequence[dict[str, Any]]) -> Iterator[str]:
    for answer in answers:
        if "failed" in answer:
            yield answer["failed"]
        elif answer["outcome"] not in ("swapped", "fits"):
            yield f"the outcome was {answer['outcome']!r}: {' '.join(answer['notes'])}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def summary(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a line for each activation, with reductions by mode."""
    for activation in dict.fromkeys(line["activation"] for line in found):
        by_mode: dict[str, list[float]] = {}
        for line in found:
            known = line["exposed_reduction"] is not None and line["mode"] != "none"
            if known and line["activation"] == activation:
                by_mode.setdefault(line["mode"], []).append(line["exposed_reduction"])
        yield {
            "activation": activation,
            "cells": {mode: len(values) for mode, values in by_mode.items()},
            "mean_reduction": {m: _rounded(statistics.mean(v)) for m, v in by_mode.items()},
            "max_reduction": {m: _rounded(max(v)) for m, v in by_mode.items()},
            "published_max_reduction": PUBLISHED[activation],
            "published_is_lossless": activation == "relu",
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines; return 1 if a training failed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = parse(arguments)
    if options.serve:
        return serve(train, Case)
    if options.accuracy:
        from benchmarks.compression_accuracy import compare

        for activation in options.activations:
            for link_gb_s in options.links:
                print(json.dumps(compare(activation, link_gb_s, options.epochs)), flush=True)
        return 0
    found = []
    for model in options.models:
        for activation in options.activations:
            with tempfile.TemporaryDirectory() as folder, Trainer(MODULE) as trainer:
                trains = aloud(trainer.train)
                prepared = prepare(options, model, activation, Path(folder), trains)
                for cell in cells(options, prepared, trains):
                    for line in lines(cell):
                        found.append(line)
                        print(json.dumps(line), flush=True)
    for line in summary(found):
        print(json.dumps(line), flush=True)
    return int(any("error" in line for line in found))


if __name__ == "__main__":
    sys.exit(main())
