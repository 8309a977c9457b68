r"""What encoding of far memory saves of the time that swapping takes, over emulated links.

    python -m benchmarks.compression [--quick] [--models AlexNet,...] [--links 0.25,0.5,2]
        [--activations relu,leaky_relu] [--modes none,all,cswap,auto]

The models are those of CSWAP+ (Chen et al. 2022), trained on enlarged digits with the device's
memory capped at half of what they need (or a little above the least that works, where that is more;
"note" says so). Modes: ``none`` swaps everything as it is, ``all`` encodes it with ZVC wherever
that makes it smaller, ``cswap`` where that paper's inequality says so, ``auto`` where it shortens
the step in the simulator. All are lossless; leaky ReLU leaves no zeros to save. To a few cores, a
link of 0.25 GB/s is what PCI Express is to a GPU; over one of 2 GB/s hardly anything is exposed.

    prepare ─▶ unswapped ─▶ none ─▶ all ─▶ cswap ─▶ auto ─▶ unswapped ─▶ ...
    (warm weights, profile)  └──────── --repeats times ───────┘

Each training is a process of its own, from the same warm weights, so that zeros are as frequent as
in training. One JSON line a mode goes to stdout, progress to stderr. Keys: model activation
link_gb_s mode budget_bytes measured_peak_bytes unswapped_step_s step_s predicted_step_s exposed_s
exposed_reduction compressed_tensors swapped_tensors ratio losses_equal. Times are medians over all
timed steps. ``exposed_s``: by how much the step is longer than the unswapped one, which has planned
addresses too. ``exposed_reduction``: the part of it that the mode saves against ``none``, 1 at
most; null where that exposes less than 2 % of the step, which noise alone does. ``ratio``: kept to
source bytes of what was encoded. ``losses_equal``: null where unswapped trainings differ.

Last, a line for each activation: the mean and the largest reduction by mode over all models and
links, beside what CSWAP+ printed as its largest.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.allocator import load_bound
from tfswap.traces.timeline_file import load_profile

TREE = Path(__file__).resolve().parent.parent

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
# How AutoSwap's `codec` is called here.
CODECS: dict[str, str | None] = {"none": None, "all": "zvc", "cswap": "cswap", "auto": "auto"}
QUICK_MODEL, QUICK_BATCH, QUICK_LINK = "Plain20", 64, 0.25
KEYS = (
    "model activation link_gb_s mode budget_bytes measured_peak_bytes unswapped_step_s step_s "
    "predicted_step_s exposed_s exposed_reduction compressed_tensors swapped_tensors ratio "
    "losses_equal"
).split()
# The largest reduction of the swaps' latency that CSWAP+ printed; that of dense tensors is lossy.
PUBLISHED = {"relu": 0.509, "leaky_relu": 0.461}

_BUDGET_SHARE = 0.5
# Where that is below the load bound, so much above that; and more, until lazy swaps do.
_ABOVE_BOUND, _HIGHER = 1.05, 1.08
_LEAST_EXPOSED = 0.02
_UNTIMED_STEPS = 2
_MOST_STEPS = 60
_CLASSES = 10
# More than any of the models needs; address space, not memory.
_PLENTY_BYTES = 64 << 30


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compression", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = lambda text: text.split(",")  # noqa: E731
    speeds = lambda text: [float(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--quick", action="store_true", help="one model and link, in two minutes")
    parser.add_argument("--models", type=names, help=f"of {', '.join(WORKLOADS)} (all)")
    parser.add_argument("--links", type=speeds, help="speeds in GB/s (0.25,0.5,2)")
    parser.add_argument("--activations", type=names, help="relu,leaky_relu (both)")
    parser.add_argument("--modes", type=names, default=list(CODECS), help="none,all,cswap,auto")
    parser.add_argument("--batch", type=int, help="examples in a batch (by model)")
    parser.add_argument("--steps", type=int, help="timed in a training (7; quick: 5)")
    parser.add_argument("--repeats", type=int, help="of each training (2; quick: 1)")
    parser.add_argument("--threads", type=int, default=2, help="between and inside of ops (2)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    quick = options.quick
    if quick and options.models is None:
        options.batch = options.batch or QUICK_BATCH
    options.models = options.models or ([QUICK_MODEL] if quick else list(WORKLOADS))
    options.links = options.links or ([QUICK_LINK] if quick else [0.25, 0.5, 2.0])
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


# One training, in a process of its own.


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        model, activation, batch, image: What is trained.
        threads: Between and inside of ops.
        timed_steps: How many steps are timed.
        mode: One of CODECS; None for no swapping.
        budget_bytes: None for no limit.
        link_gb_s: Of the emulated link; None for none.
        weights: File of those to begin with; None for new ones.
        save_weights: File that they are written to in the end.
        save_profile: File that the profile is written to.
    """

    model: str
    activation: str
    batch: int
    image: int
    threads: int
    timed_steps: int
    mode: str | None = None
    budget_bytes: int | None = None
    link_gb_s: float | None = None
    weights: str | None = None
    save_weights: str | None = None
    save_profile: str | None = None


def net(model: str, activation: str, image: int) -> Any:
    """One of the models, without weights of others, for images of so many pixels."""
    import keras

    from benchmarks import models
    from examples.alexnet import alexnet
    from examples.plain20 import plain20

    if model == "AlexNet":
        return alexnet(image, _CLASSES, activation, hidden=512)
    if model == "Plain20":
        return plain20(_CLASSES, activation)
    if model == "SqueezeNet":
        return models.squeezenet(image, _CLASSES, activation)
    # As for CIFAR, VGG16 goes without the hidden layers that most of its weights are in.
    factory = getattr(keras.applications, model)
    features = factory(
        weights=None, input_shape=(image, image, 3), include_top=False, pooling="avg"
    )
    outputs = keras.layers.Dense(_CLASSES, activation="softmax")(features.output)
    built = keras.Model(features.input, outputs, name=model.lower())
    return built if activation == "relu" else models.with_activation(built, activation)


def train(case: Case) -> dict[str, Any]:
    """Trains until some steps have been timed; in this process."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfswap
    from examples.digits import digits, for_digits

    tf.config.threading.set_inter_op_parallelism_threads(case.threads)
    tf.config.threading.set_intra_op_parallelism_threads(case.threads)
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    model = for_digits(net(case.model, case.activation, case.image))
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.01),
        loss="sparse_categorical_crossentropy",
        jit_compile=False,
    )
    if case.weights is not None:
        with np.load(case.weights) as saved:
            model.set_weights([saved[f"arr_{i}"] for i in range(len(saved.files))])

    class Timer(keras.callbacks.Callback):
        """Goes behind AutoSwap: what it sees is the state after the step."""

        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []
            self.losses: list[str] = []
            self.start_s = 0.0
            self.before: dict[str, Any] = {}

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.start_s = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seconds = time.perf_counter() - self.start_s
            self.losses.append(float(logs["loss"]).hex())
            if tfswap.status()["trainings"][0]["phase"] != "steady":
                return
            # The first step after a change touches memory for the first time.
            self.seconds.append(seconds)
            if len(self.seconds) == _UNTIMED_STEPS:
                self.before = tfswap.memory_stats()
            self.model.stop_training = len(self.seconds) == _UNTIMED_STEPS + case.timed_steps

    swap = tfswap.AutoSwap(
        budget=case.budget_bytes or _PLENTY_BYTES,
        codec=None if case.mode is None else CODECS[case.mode],
        link_bandwidth=None if case.link_gb_s is None else case.link_gb_s * 1e9,
        save_profile=case.save_profile,
        verbose=0,
    )
    timer = Timer()
    data = tf.data.Dataset.from_tensors(digits(case.batch)).repeat(_MOST_STEPS)
    tfswap.reset_memory_stats()
    model.fit(data, epochs=1, verbose=0, callbacks=[swap, timer])
    if len(timer.seconds) < _UNTIMED_STEPS + case.timed_steps:
        raise RuntimeError(f"no steady state in {_MOST_STEPS} steps: {swap.report['notes']}")
    if case.save_weights is not None:
        np.savez(case.save_weights, *model.get_weights())
    after = tfswap.memory_stats()
    encoded_bytes, kept_bytes = (
        after[key] - timer.before[key]
        for key in ("far_compressed_bytes_out", "far_compressed_kept_bytes_out")
    )
    plan = swap.report["plan"]
    swaps = [each for function in plan.functions for each in function.swaps] if plan else []
    return {
        "losses": timer.losses,
        "seconds": timer.seconds[_UNTIMED_STEPS:],
        "peak_bytes": after["peak_bytes"],
        "unswapped_peak_bytes": swap.report["unswapped_peak_bytes"],
        "predicted_step_s": swap.report["predicted_step_s"],
        "outcome": swap.report["outcome"],
        "notes": swap.report["notes"],
        "swapped_tensors": len(swaps),
        "compressed_tensors": sum(each.tier == "compressed" for each in swaps),
        "encoded_bytes": encoded_bytes,
        "kept_bytes": kept_bytes,
    }


def in_a_process(case: Case) -> dict[str, Any]:
    """The same in a process of its own; {"failed": why} if it does not train."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TREE), os.environ.get("PYTHONPATH", "")]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    begun_s = time.monotonic()
    text = json.dumps(dataclasses.asdict(case))
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.compression", "--case", text],
        capture_output=True,
        text=True,
        env=environment,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    answer: dict[str, Any] = json.loads(lines[-1]) if lines else {"failed": ran.stderr[-1500:]}
    done = f"failed: {answer['failed'][-600:]}" if "failed" in answer else "done"
    print(
        f"{case.model} {case.activation}, {case.mode or 'unswapped'}: {done}, "
        f"{time.monotonic() - begun_s:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return answer


# All trainings of one model, activation and link.


@dataclass(frozen=True)
class Prepared:
    """What all trainings of one model and activation begin with.

    Attributes:
        case: With the warm weights.
        unswapped_peak_bytes: Measured.
        bound_bytes: What no plan of swaps goes below.
    """

    case: Case
    unswapped_peak_bytes: int
    bound_bytes: int


def prepare(options: argparse.Namespace, model: str, activation: str, folder: Path) -> Prepared:
    """Warms the weights up, and profiles a step.

    Raises:
        RuntimeError: It does not train.
    """
    batch, image = WORKLOADS[model]
    weights, profile = str(folder / "warm.npz"), str(folder / "step.profile")
    case = Case(model, activation, options.batch or batch, image, options.threads, options.steps)
    answer = in_a_process(dataclasses.replace(case, save_weights=weights, save_profile=profile))
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
        model, activation, link_gb_s: Which.
        unswapped_peak_bytes: Without a budget.
        budget_bytes: In which all of them are.
        unswapped: Answers of those without a budget.
        swapped: Answers by mode.
    """

    model: str
    activation: str
    link_gb_s: float
    unswapped_peak_bytes: int
    budget_bytes: int
    unswapped: list[dict[str, Any]]
    swapped: dict[str, list[dict[str, Any]]]


def measure(options: argparse.Namespace, prepared: Prepared, link_gb_s: float) -> Cell:
    """Runs them, in turns."""
    peak_bytes = prepared.unswapped_peak_bytes
    cell = Cell(
        prepared.case.model,
        prepared.case.activation,
        link_gb_s,
        peak_bytes,
        max(int(_BUDGET_SHARE * peak_bytes), int(_ABOVE_BOUND * prepared.bound_bytes)),
        [in_a_process(prepared.case)],
        {mode: [] for mode in options.modes},
    )
    while True:
        first = options.modes[0]
        answer = in_a_process(_swapped(prepared.case, cell, first))
        higher = int(_HIGHER * cell.budget_bytes)
        if "failed" not in answer or higher >= peak_bytes:
            break
        cell.budget_bytes = higher
    cell.swapped[first].append(answer)
    for repeat in range(options.repeats):
        for mode in options.modes:
            if len(cell.swapped[mode]) == repeat:
                cell.swapped[mode].append(in_a_process(_swapped(prepared.case, cell, mode)))
        cell.unswapped.append(in_a_process(prepared.case))
    return cell


def _swapped(case: Case, cell: Cell, mode: str) -> Case:
    return dataclasses.replace(
        case, mode=mode, budget_bytes=cell.budget_bytes, link_gb_s=cell.link_gb_s
    )


def lines(cell: Cell) -> Iterator[dict[str, Any]]:
    """The JSON lines; what is not known is None, and "error" says why."""
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
                "compressed_tensors": last["compressed_tensors"],
                "swapped_tensors": last["swapped_tensors"],
                "ratio": _rounded(kept_bytes / encoded_bytes if encoded_bytes else None),
                "losses_equal": losses_equal(cell.unswapped, trained),
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
    """The part of the exposed time of mode "none" that is saved."""
    if none_s is None or none_s - unswapped_s < _LEAST_EXPOSED * unswapped_s:
        return None
    return 1 - max(step_s - unswapped_s, 0.0) / (none_s - unswapped_s)


def losses_equal(
    unswapped: Sequence[dict[str, Any]], swapped: Sequence[dict[str, Any]]
) -> bool | None:
    """Whether all losses have the same bits as far as two went; None where they need not."""
    baselines = [answer["losses"] for answer in unswapped if "failed" not in answer]
    if not baselines or not all(_agree(baselines[0], other) for other in baselines):
        return None
    return all(_agree(max(baselines, key=len), answer["losses"]) for answer in swapped)


def _agree(one: Sequence[str], other: Sequence[str]) -> bool:
    return all(a == b for a, b in zip(one, other, strict=False))


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
    """A line for each activation; reductions by mode."""
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
    """Prints the lines; answers 1 if some training failed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = parse(arguments)
    if options.case is not None:
        try:
            answer = train(Case(**json.loads(options.case)))
        except Exception as error:  # whatever it is, it is the case's answer
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        return 0
    found = []
    for model in options.models:
        for activation in options.activations:
            with tempfile.TemporaryDirectory() as folder:
                prepared = prepare(options, model, activation, Path(folder))
                for link_gb_s in options.links:
                    for line in lines(measure(options, prepared, link_gb_s)):
                        found.append(line)
                        print(json.dumps(line), flush=True)
    for line in summary(found):
        print(json.dumps(line), flush=True)
    return int(any("error" in line for line in found))


if __name__ == "__main__":
    sys.exit(main())
