"""Whether training works in the least budgets that messages name.

    python -m benchmarks.least [--models MobileNetV3Small,Transformer,LSTM] [--batch 8] \
        [--image 32] [--least planned,floor] [--parts 1,1.01,1.03] [--runs 100] [--steps 30]

One JSON line for each model, least budget, and part goes to stdout, progress to stderr. The least
budgets are of a training in half of the peak: `planned` is the least that a plan can keep, and
`floor` is what swaps on demand need at least. Each run trains from the same weights.

failed: by the number of steps that were done, the runs that ended then with an error.
over_budget: runs that used more than their budget.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.one_case import SERVE
from benchmarks.trainings import PLENTY_BYTES, Trainer, forget, repeatable, serve

_PART_FOR_PROFILE = 0.5


@dataclass(frozen=True)
class Case:
    """Several equal trainings.

    Attributes:
        model, batch, image: What is trained; see `benchmarks.models.workload`.
        steps: Steps of each run.
        runs: Number of runs.
        budget_bytes: The budget.
    """

    model: str
    batch: int
    image: int
    steps: int
    runs: int = 1
    budget_bytes: int = PLENTY_BYTES


def train(case: Case) -> dict[str, Any]:
    """Train in this process."""
    import keras
    import tensorflow as tf

    import tfswap
    from benchmarks.models import workload

    repeatable(2)
    trained = workload(case.model, case.batch, case.image)
    model = trained.model
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    initial = [variable.numpy() for variable in variables]
    data = tf.data.Dataset.from_tensors((trained.x, trained.y)).repeat()
    done: list[list[str]] = []  # by run: losses
    peaks_bytes: list[int] = []  # by run, from its second step on
    said = None

    class Losses(keras.callbacks.Callback):
        """Keeps the loss of each step, with all bits, and the peak."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done[-1].append(float(logs["loss"]).hex())
            if batch:  # not what the weights took that were made without a budget
                peaks_bytes[-1] = max(peaks_bytes[-1], tfswap.memory_stats()["peak_bytes"])
            tfswap.reset_memory_stats()

    for _ in range(case.runs):
        for variable, value in zip(variables, initial, strict=True):
            variable.assign(value)
        swap = tfswap.AutoSwap(budget=case.budget_bytes, verbose=0)
        done.append([])
        peaks_bytes.append(0)
        try:
            model.fit(data, steps_per_epoch=case.steps, verbose=0, callbacks=[swap, Losses()])
        except tf.errors.ResourceExhaustedError as error:
            said = said or str(error)
    least = swap.report["least_budgets"]
    forget(model)
    return {
        "losses": done,
        "peaks_bytes": peaks_bytes,
        "planned_bytes": least.swapped.bytes if least else None,
        "floor_bytes": least.floor.streamed.bytes if least and least.floor else None,
        "said": said,
    }


def lines(
    trainer: Trainer, case: Case, kinds: Sequence[str], parts: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a model."""
    begin = {"model": case.model, "batch": case.batch, "image": case.image, "steps": case.steps}
    unswapped = trainer.train(replace(case, runs=1))
    half = unswapped
    if "failed" not in unswapped:
        budget_bytes = int(_PART_FOR_PROFILE * unswapped["peaks_bytes"][0])
        half = trainer.train(replace(case, runs=1, budget_bytes=budget_bytes))
    if "failed" in half:
        yield {**begin, "error": half["failed"]}
        return
    for kind in kinds:
        least_bytes = half[f"{kind}_bytes"]
        if least_bytes is None:
            no_profile = f"there was no profile after {case.steps} steps"
            yield {**begin, "error": half["said"] or no_profile}
            return
        for part in parts:
            budget_bytes = int(part * least_bytes)
            line = {**begin, "least": kind, "least_bytes": least_bytes, "part": part}
            line |= {"budget_bytes": budget_bytes, "runs": case.runs}
            found = trainer.train(replace(case, budget_bytes=budget_bytes))
            if "failed" in found:
                yield {**line, "error": found["failed"]}
                continue
            failed = Counter(len(run) for run in found["losses"] if len(run) < case.steps)
            expected = unswapped["losses"][0]
            yield {
                **line,
                "failed": dict(sorted(failed.items())),
                "failed_late": sum(failed.values()) - failed[0],
                "over_budget": sum(peak > budget_bytes for peak in found["peaks_bytes"]),
                "loss_bit_equal": all(run == expected[: len(run)] for run in found["losses"]),
                "said": found["said"],
            }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.least", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=("MobileNetV3Small", "Transformer", "LSTM"),
        help="names of `benchmarks.models.workload`",
    )
    parser.add_argument("--batch", type=int, default=8, help="examples in a batch (8)")
    parser.add_argument(
        "--image", type=int, default=32, help="pixels of a side; steps of a sequence (32)"
    )
    parser.add_argument(
        "--parts",
        type=lambda text: [float(part) for part in text.split(",")],
        default=(1.0, 1.01, 1.03),
        help="budgets, of the least one (1,1.01,1.03)",
    )
    parser.add_argument(
        "--least",
        type=lambda text: text.split(","),
        default=("planned", "floor"),
        help="which least budgets (planned,floor)",
    )
    parser.add_argument("--runs", type=int, default=100, help="trainings in each budget (100)")
    parser.add_argument("--steps", type=int, default=30, help="steps of a training (30)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines of each model."""
    if arguments is None and sys.argv[1:2] == [SERVE]:
        return serve(train, Case)
    options = parse(arguments)
    with Trainer("benchmarks.least") as trainer:
        for model in options.models:
            print(f"{model} ...", file=sys.stderr, flush=True)
            case = Case(model, options.batch, options.image, options.steps, options.runs)
            for line in lines(trainer, case, options.least, options.parts):
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
