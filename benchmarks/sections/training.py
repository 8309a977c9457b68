"""A training in a separate process: ``python -m benchmarks.sections.training CASE``.

The case is one JSON object, as is the answer, the last line on stdout; progress goes to stderr.
Every epoch is one step on the same random batch, so that Keras's losses are those of single steps.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trainings import PLENTY_BYTES

# Phases of a training whose plan is final; the first of them tries addresses.
_SETTLED = ("addresses", "steady")
# The number of settled steps after which a timed training ends.
_STEADY_STEPS = 3
_OTHER_ERRORS = "a training failed, and not for want of memory: "


@dataclass(frozen=True)
class Case:
    """The training to run.

    Attributes:
        model: One of `benchmarks.models`.
        batch: Number of examples.
        image: Pixels, or tokens.
        steps: The maximum number of steps.
        budget_bytes: The budget; None: TensorFlow alone.
        sections: Number of sections of the batch; None: it is not cut.
        learning_rate: The optimizer's learning rate.
        until: "" is all steps; "profiled" ends when a step has been recorded, "timed" when
            nothing changes any more.
        spill_dir: A folder on a disk, for what host memory does not hold; None: there is none.
    """

    model: str
    batch: int
    image: int
    steps: int
    budget_bytes: int | None = None
    sections: int | None = None
    learning_rate: float = 0.01
    until: str = ""
    spill_dir: str | None = None


@dataclass(frozen=True)
class Training:
    """The result of a training.

    Attributes:
        out_of_memory: The error message; "" if there was none. With an error, the rest is the state
            until then.
        peak_bytes: The peak of the device in any step.
        losses: Of each step.
        steps_s: Of each step, the first with tracing.
        settled_steps: Number of the last steps under the final plan.
        profile: `Profiled`, as a dictionary; empty unless requested.
    """

    out_of_memory: str
    peak_bytes: int
    losses: list[float]
    steps_s: list[float]
    settled_steps: int
    profile: dict[str, Any]

    @property
    def step_s(self) -> float | None:
        """Return the median under the final plan; without one, of the steps after the first two."""
        untraced = self.steps_s[2:] or self.steps_s[1:] or self.steps_s
        settled = self.steps_s[-self.settled_steps :] if self.settled_steps else untraced
        return statistics.median(settled) if settled else None


@dataclass(frozen=True)
class Profiled:
    """Results of the profile.

    Attributes:
        least_bytes: The lower bound of all plans of swaps.
        limiting_op: The op that sets it.
        resident_bytes: Resident memory: weights, optimizer state, the batch.
    """

    least_bytes: int
    limiting_op: str
    resident_bytes: int


def trained(case: Case) -> Training:
    """Train in a separate process; return its answer.

    Raises:
        SystemExit: It failed for another reason than memory.
    """
    said = f"{case.model}, batch {case.batch}, {case.image} px"
    if case.budget_bytes not in (None, PLENTY_BYTES):
        said += f", budget {case.budget_bytes / (1 << 20):.0f} MiB"
    said += f", {case.sections} sections" if case.sections else ""
    print(f"{said}{', ' if case.until else ''}{case.until}:", file=sys.stderr)
    process = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(case))],
        stdout=subprocess.PIPE,
        text=True,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    if process.returncode:
        raise SystemExit(f"{_OTHER_ERRORS}its process ended with status {process.returncode}")
    answer = json.loads(process.stdout.splitlines()[-1])
    if "failed" in answer:
        raise SystemExit(f"{_OTHER_ERRORS}{answer['failed']}")
    return Training(**answer)


def relative_error(losses: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest error of common steps; where the other loss is 0, the difference."""
    pairs = zip(losses, others, strict=False)
    return max(abs(own - other) / (abs(other) or 1.0) for own, other in pairs)


def train(case: Case) -> Training:
    """Train in this process."""
    import keras
    import tensorflow as tf

    import tfswap
    from benchmarks.models import workload

    work = workload(case.model, case.batch, case.image)
    work.model.optimizer.learning_rate = case.learning_rate
    losses: list[float] = []
    steps_s: list[float] = []
    settled_steps = steady_steps = 0

    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder) / "step.profile"

        class Steps(keras.callbacks.Callback):
            """Runs after AutoSwap, and so sees the state after the step."""

            begun_s = 0.0

            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                self.begun_s = time.perf_counter()

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                nonlocal settled_steps, steady_steps
                losses.append(float(logs["loss"]))
                steps_s.append(time.perf_counter() - self.begun_s)
                phase = tfswap.status()["trainings"][0]["phase"] if swaps else ""
                settled_steps += phase in _SETTLED
                steady_steps += phase == "steady"
                print(f"  step {len(steps_s)}: {steps_s[-1]:.2f} s {phase}", file=sys.stderr)
                self.model.stop_training = (
                    recorded.exists()
                    if case.until == "profiled"
                    else case.until == "timed" and steady_steps >= _STEADY_STEPS
                )

        swaps: list[tfswap.AutoSwap] = []
        if case.budget_bytes is not None:
            swap = tfswap.AutoSwap(
                budget=case.budget_bytes,
                sections=case.sections,
                spill_dir=case.spill_dir,
                save_profile=recorded if case.until == "profiled" else None,
                verbose=0,
            )
            swaps.append(swap)
        tfswap.reset_memory_stats()
        out_of_memory = ""
        try:
            work.model.fit(
                work.x,
                work.y,
                batch_size=case.batch,
                epochs=case.steps,
                verbose=0,
                shuffle=False,
                callbacks=[*swaps, Steps()],
            )
        except tf.errors.ResourceExhaustedError as error:
            said = swaps[0].report["out_of_memory"] if swaps else ""
            out_of_memory = said or str(error)
            print(f"  {out_of_memory}", file=sys.stderr)
        profile = {}
        if case.until == "profiled" and not out_of_memory:
            profile = dataclasses.asdict(profiled(recorded))
    return Training(
        out_of_memory,
        tfswap.memory_stats()["peak_bytes"],
        losses,
        steps_s,
        settled_steps,
        profile,
    )


def profiled(path: Path) -> Profiled:
    """Read a file of `AutoSwap(save_profile=...)`."""
    from tfswap.machine.machine import Machine
    from tfswap.planning.least_budget import with_swaps
    from tfswap.traces.read import read_trace

    timeline = read_trace(path)
    # Speeds do not affect bytes.
    least = with_swaps(timeline, Machine("any", 1e10, 1e10))
    return Profiled(least.bytes, least.op, timeline.resident_bytes)


def main() -> None:
    """Train the case of the command line."""
    try:
        answer = dataclasses.asdict(train(Case(**json.loads(sys.argv[1]))))
    except Exception as error:  # any error ends the benchmark with its text
        answer = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
