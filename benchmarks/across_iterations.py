r"""Swap weights and optimizer state across iterations, where they are most of the memory.

    python -m benchmarks.across_iterations [--model VGG16] [--batch 8] [--image 224] \
        [--budgets 0.8,0.6,0.5] [--steps 6] [--link-bandwidth 6GB/s]

Adam keeps two values for each weight. Each case trains in a separate process, with deterministic
ops, from the same weights:

    unswapped          without a budget, before the others and after them
    swaps              under the budget, with swaps of activations and gradients only
    weights too        with stream_weights=True; a checkpoint is written between two steps

The checkpoint is restored in a process without tfswap, and compared bit by bit with the values of
the unswapped training.

One JSON line a case: model, batch, image, link_bandwidth, mode, budget_part, budget_bytes, outcome,
least_budget_bytes (what the profile says), unswapped_peak_bytes, predicted_peak_bytes,
measured_peak_bytes, variable_bytes, bytes_out_per_step, step_s, predicted_step_s, step_ratio (over
the unswapped step), losses_equal, checkpoint_equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import one_case
from benchmarks.watched_steps import WatchedStep, watching

MODULE = "benchmarks.across_iterations"
UNSWAPPED, SWAPS, WEIGHTS_TOO, RESTORED = "unswapped", "swaps", "weights too", "restored"
# The maximum of steps until there is a plan with addresses.
MAX_STEPS = 60
# The step after which the checkpoint is written.
CHECKPOINT_STEP = 4


def model_of(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return a model with Adam, and its batch."""
    import keras

    from benchmarks.models import workload

    training = workload(options.model, options.batch, options.image)
    training.model.compile(
        optimizer=keras.optimizers.Adam(1e-4), loss=training.model.loss, jit_compile=False
    )
    return training.model, training.x, training.y


def digest(model: Any) -> str:
    """Return a digest of all variables of the model and its optimizer."""
    found = hashlib.sha256()
    for variable in (*model.variables, *model.optimizer.variables):
        found.update(variable.numpy().tobytes())
    return found.hexdigest()


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Run one training."""
    import keras
    import tensorflow as tf

    import tfswap

    tf.config.experimental.enable_op_determinism()
    swap = None
    if options.case != UNSWAPPED:
        swap = tfswap.AutoSwap(
            budget=options.budget_bytes,
            link_bandwidth=options.link_bandwidth,
            stream_weights=options.case == WEIGHTS_TOO,
            verbose=0,
        )
    model, x, y = model_of(options)
    found: dict[str, Any] = {}
    steps: list[WatchedStep] = []
    seconds: list[float] = []

    class UntilSettled(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch + 1 == CHECKPOINT_STEP:
                if options.checkpoint:
                    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(
                        options.checkpoint
                    )
                found["digest"] = digest(model)
            if steps[-1].phase == "steady" if swap is not None else batch >= CHECKPOINT_STEP:
                seconds.append(steps[-1].seconds)
            self.model.stop_training = len(seconds) > options.steps

    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    callbacks = [watching(steps), UntilSettled()]
    if swap is not None:
        callbacks.insert(0, swap)
    model.fit(data, steps_per_epoch=MAX_STEPS, verbose=0, callbacks=callbacks)
    found["losses"] = [step.loss for step in steps]
    found["peak_bytes"] = max(step.peak_bytes for step in steps)
    found["step_s"] = statistics.median(seconds[1:]) if len(seconds) > 1 else None
    variables = (*model.variables, *model.optimizer.variables)
    found["variable_bytes"] = sum(int(v.numpy().nbytes) for v in variables)
    if swap is not None:
        report = swap.report
        for key in ("outcome", "predicted_peak_bytes", "predicted_step_s", "bytes_out_per_step"):
            found[key] = report[key]
        if report.least_budgets is not None:
            found["least_budget_bytes"] = report.least_budgets.swapped.bytes
    return found


def restore(options: argparse.Namespace) -> dict[str, Any]:
    """Read the checkpoint without tfswap."""
    import tensorflow as tf

    model, _, _ = model_of(options)
    model.optimizer.build(model.trainable_variables)
    read = tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(options.checkpoint)
    read.assert_existing_objects_matched()
    assert "tfswap" not in sys.modules
    return {"digest": digest(model)}


def in_process(options: argparse.Namespace, case: str, **changes: Any) -> dict[str, Any]:
    """Run a case in a separate process."""
    return one_case.in_process(MODULE, {**vars(options), **changes, "case": case})


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Run the case in this process."""
    options = argparse.Namespace(**case)
    return restore(options) if options.case == RESTORED else train(options)


def sweep(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run all cases; yield their lines."""
    about = {key: getattr(options, key) for key in ("model", "batch", "image", "link_bandwidth")}
    first = in_process(options, UNSWAPPED)
    if "failed" in first:
        yield {**about, "mode": UNSWAPPED, **first}
        return
    peak_bytes = first["peak_bytes"]
    found: list[dict[str, Any]] = []
    for part in options.budgets:
        budget_bytes = int(part * peak_bytes)
        for case in (SWAPS, WEIGHTS_TOO):
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = str(Path(folder) / "weights")
                changes = {"budget_bytes": budget_bytes, "checkpoint": checkpoint}
                answer = in_process(options, case, **changes)
                line = {**about, "mode": case, "budget_part": part, "budget_bytes": budget_bytes}
                line["unswapped_peak_bytes"] = peak_bytes
                if "failed" in answer:
                    found.append({**line, "outcome": "failed", "error": answer["failed"]})
                    continue
                restored = in_process(options, RESTORED, **changes)
                losses = answer.pop("losses")
                common = min(len(losses), len(first["losses"]))
                line["losses_equal"] = losses[:common] == first["losses"][:common]
                read = restored.get("digest")
                line["checkpoint_equal"] = read == answer.pop("digest") == first["digest"]
                line["measured_peak_bytes"] = answer.pop("peak_bytes")
                found.append({**line, **answer})
    last = in_process(options, UNSWAPPED)
    unswapped_s = statistics.mean([first["step_s"], last.get("step_s", first["step_s"])])
    yield {
        **about,
        "mode": UNSWAPPED,
        "measured_peak_bytes": peak_bytes,
        "variable_bytes": first["variable_bytes"],
        "step_s": round(unswapped_s, 4),
        "losses_equal": first["losses"] == last.get("losses"),
    }
    for line in found:
        if line.get("step_s"):
            line["step_ratio"] = round(line["step_s"] / unswapped_s, 3)
        yield line


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.across_iterations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="VGG16", help="of keras.applications (VGG16)")
    parser.add_argument("--batch", type=int, default=8, help="examples in a batch (8)")
    parser.add_argument("--image", type=int, default=224, help="pixels of a side (224)")
    parser.add_argument(
        "--budgets",
        type=lambda text: [float(part) for part in text.split(",")],
        default=[0.8, 0.6, 0.5],
        help="parts of the unswapped peak (0.8,0.6,0.5)",
    )
    parser.add_argument("--steps", type=int, default=6, help="timed steps (6)")
    parser.add_argument("--link-bandwidth", help='emulate a link, such as "12GB/s"')
    parser.add_argument(one_case.SERVE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.checkpoint, options.budget_bytes = "", 0
    return options


def main() -> int:
    options = parse()
    if options.serve:
        return one_case.answer(options.serve, run)
    failed = False
    for line in sweep(options):
        failed = failed or "failed" in line
        print(json.dumps(line), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
