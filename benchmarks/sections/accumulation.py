"""Train with gradient accumulation: ``python -m benchmarks.sections.accumulation CASE``.

The case is one JSON object; the last line of stdout has the losses.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Accumulation:
    """A training without tfswap's passes.

    Attributes:
        model: One of `benchmarks.models`, with a classification loss.
        batch: Examples per update of the weights.
        part: Examples at a time.
        image: Height and width in pixels.
        steps: Number of updates.
    """

    model: str
    batch: int
    part: int
    image: int
    steps: int


def accumulated(case: Accumulation) -> list[float]:
    """Return the losses of a separate process."""
    process = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(case))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    losses: list[float] = json.loads(process.stdout.splitlines()[-1])
    return losses


def accumulate(case: Accumulation) -> list[float]:
    """Train in this process; return the loss of each step."""
    import tensorflow as tf

    from benchmarks.models import workload

    work = workload(case.model, case.batch, case.image)
    weights = work.model.trainable_variables
    sums = [tf.Variable(tf.zeros_like(weight)) for weight in weights]

    @tf.function
    def add_part(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            each = tf.keras.losses.sparse_categorical_crossentropy(y, work.model(x, training=True))
            loss = tf.reduce_sum(each) / case.batch
        for total, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
            total.assign_add(gradient)
        return loss

    losses = []
    for step in range(case.steps):
        for total in sums:
            total.assign(tf.zeros_like(total))
        parts = [slice(at, at + case.part) for at in range(0, case.batch, case.part)]
        losses.append(sum(float(add_part(work.x[part], work.y[part])) for part in parts))
        work.model.optimizer.apply_gradients(zip(sums, weights, strict=True))
        print(f"batch {case.batch}, accumulated: step {step + 1}", file=sys.stderr)
    return losses


if __name__ == "__main__":
    print(json.dumps(accumulate(Accumulation(**json.loads(sys.argv[1])))))
