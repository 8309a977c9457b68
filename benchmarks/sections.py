r"""Batches of which a single layer does not fit: sections of the batch, one after the other.

    python -m benchmarks.sections [--quick] [--cases 256:4GiB:32:3,512:6GiB:64:1]

VGG-16 at 224 px, as tvDNN (Park et al., PPoPP 2018) has it: "a large batch size, such as 256 or
512, using a few GB". A case is batch:budget:sections:steps; each runs in a process of its own. One
JSON line a case goes to stdout, progress to stderr, and first one for a batch of 16 as TensorFlow
trains it. Keys: model batch image budget_bytes measured_peak_bytes step_s images_per_s
loss_relative_error; steps_s: each step's time, the first with tracing; sections; losses. The error
is the largest of all steps beside a training with gradient accumulation over the same images, 16 at
a time, which TensorFlow runs without tfswap's passes. ``--quick``: batch 256, one step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

MODEL, IMAGE = "VGG16", 224
# Of a training that needs no sections, and of gradient accumulation's parts.
SMALL_BATCH = 16
CASES = "256:4GiB:32:3,512:6GiB:64:1"
QUICK_CASES = "256:4GiB:32:1"


def trained(batch: int, steps: int, budget: str | None, sections: int) -> dict[str, Any]:
    """Trains on one batch again and again; every epoch is a step."""
    import keras

    import tfswap
    from benchmarks.models import workload
    from tfswap.budget import parse_bytes

    work = workload(MODEL, batch, IMAGE)

    begun, times, losses = 0.0, [], []

    class Steps(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            nonlocal begun
            begun = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            losses.append(float(logs["loss"]))
            times.append(time.perf_counter() - begun)
            print(f"batch {len(work.y)}, step {len(times)}: {times[-1]:.1f} s", file=sys.stderr)

    callbacks: list[Any] = [Steps()]
    if budget is not None:
        callbacks.insert(0, tfswap.AutoSwap(budget=budget, sections=sections, verbose=0))
    tfswap.reset_memory_stats()
    work.model.fit(
        work.x,
        work.y,
        batch_size=batch,
        epochs=steps,
        verbose=0,
        shuffle=False,
        callbacks=callbacks,
    )
    return {
        "steps_s": times,
        "losses": losses,
        "peak_bytes": tfswap.memory_stats()["peak_bytes"],
        "budget_bytes": parse_bytes(budget) if budget else None,
    }


def accumulated(batch: int, steps: int) -> dict[str, Any]:
    """The same by gradient accumulation, as users write it."""
    import tensorflow as tf

    from benchmarks.models import workload

    work = workload(MODEL, batch, IMAGE)
    weights = work.model.trainable_variables
    sums = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    @tf.function
    def add_part(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            each = tf.keras.losses.sparse_categorical_crossentropy(y, work.model(x, training=True))
            loss = tf.reduce_sum(each) / batch
        for total, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
            total.assign_add(gradient)
        return loss

    losses = []
    for step in range(steps):
        for total in sums:
            total.assign(tf.zeros_like(total))
        parts = range(0, batch, SMALL_BATCH)
        losses.append(
            sum(
                float(add_part(work.x[at : at + SMALL_BATCH], work.y[at : at + SMALL_BATCH]))
                for at in parts
            )
        )
        work.model.optimizer.apply_gradients(zip(sums, weights, strict=True))
        print(f"batch {batch}, accumulated: step {step + 1}", file=sys.stderr)
    return {"losses": losses}


def in_a_process(call: str) -> dict[str, Any]:
    """The answer of one of the above."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sections", "--call", call],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def line(batch: int, found: dict[str, Any]) -> dict[str, Any]:
    """What is printed of a training."""
    times = found["steps_s"]
    step_s = statistics.median(times[1:] or times)
    return {
        "model": MODEL,
        "batch": batch,
        "image": IMAGE,
        "budget_bytes": found["budget_bytes"],
        "measured_peak_bytes": found["peak_bytes"],
        "step_s": round(step_s, 2),
        "images_per_s": round(batch / step_s, 3),
        "loss_relative_error": None,
        "steps_s": [round(each, 2) for each in times],
        "losses": found["losses"],
    }


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="batch 256, one step")
    parser.add_argument("--cases", help=f"batch:budget:sections:steps, ... ({CASES})")
    parser.add_argument("--call", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        kind, *numbers = options.call.split(":")
        batch, steps = int(numbers[0]), int(numbers[1])
        if kind == "accumulated":
            answer = accumulated(batch, steps)
        else:
            answer = trained(batch, steps, numbers[2] or None, int(numbers[3]))
        print(json.dumps(answer))
        return
    small = in_a_process(f"trained:{SMALL_BATCH}:4::1")
    print(json.dumps(line(SMALL_BATCH, small)), flush=True)
    for case in (options.cases or (QUICK_CASES if options.quick else CASES)).split(","):
        batch, budget, sections, steps = case.split(":")
        found = in_a_process(f"trained:{batch}:{steps}:{budget}:{sections}")
        beside = in_a_process(f"accumulated:{batch}:{steps}")
        error = max(
            abs(own - other) / abs(other)
            for own, other in zip(found["losses"], beside["losses"], strict=True)
        )
        answer = {**line(int(batch), found), "sections": int(sections)}
        print(json.dumps({**answer, "loss_relative_error": error}), flush=True)


if __name__ == "__main__":
    main()
