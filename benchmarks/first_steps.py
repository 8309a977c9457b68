r"""Measure the first steps of a training: with on-demand swaps, and under a remembered plan.

    python -m benchmarks.first_steps [--models ResNet50,VGG16] [--batch 16] [--image 128] \
        [--budget 0.6] [--links 1GB/s,6GB/s] [--steps 16]

Each training runs in a separate process, all from the same weights:

    unswapped     without a budget
    lazy          with on-demand swaps until the step is profiled; the plan cache is empty
    remembered    under the plan that the previous training left in the cache

One JSON line a training: model, link_bandwidth, mode, budget_bytes, first_plan, steps_s (of each
step), first_steps_s (of the four after the first one, which is traced), until_steady
(steps before the plan stays), steady_step_s, measured_peak_bytes, predicted_peak_bytes,
losses_equal (to the unswapped ones; of an unswapped training, to those of another
one, and null in all others where those differ).

The exit status is 1 if a training with a remembered plan, or an unswapped one, fails. On-demand
swaps have no order for ops that are ready at once, so that they need more memory than a plan does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.one_case import SERVE, answer, in_process
from benchmarks.watched_steps import WatchedStep, watching

MODULE = "benchmarks.first_steps"
UNSWAPPED, LAZY, REMEMBERED = "unswapped", "lazy", "remembered"


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Run one training."""
    import tensorflow as tf

    import tfswap
    from benchmarks.models import workload

    tf.config.experimental.enable_op_determinism()
    swap = None
    if options.mode != UNSWAPPED:
        swap = tfswap.AutoSwap(
            budget=options.budget_bytes,
            link_bandwidth=options.link,
            plan_cache=options.folder,
            verbose=0,
        )
    training = workload(options.model, options.batch, options.image)
    steps: list[WatchedStep] = []
    data = tf.data.Dataset.from_tensors((training.x, training.y)).repeat()
    callbacks = [watching(steps)] if swap is None else [swap, watching(steps)]
    training.model.fit(data, steps_per_epoch=options.steps, verbose=0, callbacks=callbacks)
    seconds = [step.seconds for step in steps]
    settled = next((i for i, step in enumerate(steps) if step.phase in ("", "steady")), len(steps))
    return {
        "first_plan": "" if swap is None else swap.report.first_plan,
        "steps_s": [round(took_s, 3) for took_s in seconds],
        "first_steps_s": round(sum(seconds[1:5]), 3),
        "until_steady": settled,
        "steady_step_s": round(statistics.median(seconds[settled:] or seconds[-3:]), 4),
        "measured_peak_bytes": max(step.peak_bytes for step in steps),
        "predicted_peak_bytes": None if swap is None else swap.report.predicted_peak_bytes,
        "losses": [step.loss for step in steps],
    }


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run all trainings; yield their lines."""
    for model in options.models:
        common = {key: getattr(options, key) for key in ("batch", "image", "steps")}
        unswapped, again = (
            in_process(MODULE, {"model": model, "mode": UNSWAPPED, **common}) for _ in range(2)
        )
        repeats = unswapped.get("losses") == again.get("losses")
        line = {"model": model, "mode": UNSWAPPED, **without_losses(unswapped)}
        if "failed" in unswapped:
            yield line
            continue
        yield {**line, "losses_equal": repeats}
        budget_bytes = int(options.budget * unswapped["measured_peak_bytes"])
        for link in options.links:
            with tempfile.TemporaryDirectory() as folder:
                for mode in (LAZY, REMEMBERED):
                    given = {"budget_bytes": budget_bytes, "link": link, "folder": folder}
                    found = in_process(MODULE, {"model": model, "mode": mode, **given, **common})
                    line = {"model": model, "link_bandwidth": link, "mode": mode}
                    line |= {"budget_bytes": budget_bytes, **without_losses(found)}
                    if "failed" not in found:
                        equal = found["losses"] == unswapped["losses"]
                        line["losses_equal"] = equal if repeats else None
                    yield line


def without_losses(found: dict[str, Any]) -> dict[str, Any]:
    """Return the printed part of a line."""
    return {key: value for key, value in found.items() if key != "losses"}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def names(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--models", type=names, default=["ResNet50", "VGG16"])
    parser.add_argument("--batch", type=int, default=16, help="examples in a batch (16)")
    parser.add_argument("--image", type=int, default=128, help="pixels of a side (128)")
    parser.add_argument("--budget", type=float, default=0.7, help="of the unswapped peak (0.7)")
    parser.add_argument("--links", type=names, default=["1GB/s", "6GB/s"], help="(1GB/s,6GB/s)")
    parser.add_argument("--steps", type=int, default=16, help="of each training (16)")
    parser.add_argument(SERVE, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    if options.serve:
        return answer(options.serve, lambda case: train(argparse.Namespace(**case)))
    failed = False
    for line in compare(options):
        failed = failed or ("failed" in line and line["mode"] != LAZY)
        print(json.dumps(line), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
