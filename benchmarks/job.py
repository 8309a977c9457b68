"""Run one job: a training in a separate process, concurrent with others.

    python -m benchmarks.job --folder FOLDER [--swapped] JOB

trains until it is told to stop (by a file, NAME.stop in the folder), and writes the time and need
of each step into the folder: a line a step in NAME.jsonl, and the least budget with swaps, if it
was planned, in NAME.least. JOB is a `Job` as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# The time limit for a model that does not fit.
MAX_S = 900.0
UNTIMED = 2


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        name: Its name in output.
        model: One of `benchmarks.models`.
        batch: Number of examples.
        image: Height and width in pixels.
        budget_bytes: Its own budget; 0: none.
        socket: The broker's socket; "": no broker.
    """

    name: str
    model: str
    batch: int
    image: int
    budget_bytes: int = 0
    socket: str = ""


@dataclass(frozen=True)
class Step:
    """One step of a job.

    Attributes:
        begin_s, end_s: Times on the clock of all processes.
        peak_bytes: Peak of the device.
        before_bytes: In use when it began, for example after its share had shrunk.
        settled: Whether the plan, if any, is made.
        grew: When its budget became more in the middle of it (a first step waits for that), and
            what it was until then.
    """

    begin_s: float
    end_s: float
    peak_bytes: int
    settled: bool
    before_bytes: int = 0
    grew: Sequence[tuple[float, int]] = ()

    def needs(self) -> Iterator[tuple[float, int]]:
        """Yield times and the most bytes that the step needed from then on."""
        at_s = self.begin_s
        for then_s, budget_bytes in self.grew:
            yield at_s, min(self.peak_bytes, budget_bytes)
            at_s = then_s
        yield at_s, self.peak_bytes


def train(job: Job, folder: Path, swapped: bool) -> None:
    """Train until the stop file exists; write a line for each step."""
    import keras
    import tensorflow as tf

    import tfswap
    from benchmarks.models import workload
    from tfswap.ops import library

    growths: list[tuple[float, int]] = []
    budgets: dict[int, int | None] = {}
    native = type(library.load())
    set_budget = native.set_budget

    def noted(device: int, budget_bytes: int | None) -> None:
        before = budgets.get(device)
        if before and budget_bytes and budget_bytes > before:
            growths.append((time.monotonic(), before))
        budgets[device] = budget_bytes
        set_budget(device, budget_bytes)

    native.set_budget = staticmethod(noted)  # type: ignore[method-assign]

    class Lines(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.file = (folder / f"{job.name}.jsonl").open("w", buffering=1)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            growths.clear()
            self.begun_s = time.monotonic()
            self.before_bytes = tfswap.memory_stats()["bytes_in_use"]
            tfswap.reset_memory_stats()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            peak_bytes = tfswap.memory_stats()["peak_bytes"]
            phases = {each["phase"] for each in tfswap.status()["trainings"]}
            settled = phases == {"steady"} if swapped else batch >= UNTIMED
            now_s = time.monotonic()
            step = Step(self.begun_s, now_s, peak_bytes, settled, self.before_bytes, tuple(growths))
            self.file.write(json.dumps(asdict(step)) + "\n")
            if (folder / f"{job.name}.stop").exists():
                self.model.stop_training = True

        def on_train_end(self, logs: Any = None) -> None:
            least = None if swap is None else swap.report.least_budgets
            if least is not None:
                (folder / f"{job.name}.least").write_text(str(least.swapped.bytes))

    swap = None
    if swapped:
        options: dict[str, Any] = {"verbose": 0}
        if job.budget_bytes:
            options["budget"] = job.budget_bytes
        if job.socket:
            options |= {"broker": job.socket, "share": tfswap.Share(name=job.name, wait_s=MAX_S)}
        swap = tfswap.AutoSwap(**options)
    callbacks = [Lines()] if swap is None else [swap, Lines()]
    training = workload(job.model, job.batch, job.image)
    # At exit, tf.data waits for its tuning thread, which may sleep for a minute.
    untuned = tf.data.Options()
    untuned.autotune.enabled = False
    data = tf.data.Dataset.from_tensors((training.x, training.y)).repeat().with_options(untuned)
    training.model.fit(data, steps_per_epoch=1_000_000, verbose=0, callbacks=callbacks)


def main() -> int:
    """Train a job."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("job", help="as JSON")
    parser.add_argument("--folder", type=Path, required=True, help="where to write")
    parser.add_argument("--swapped", action="store_true", help="under tfswap")
    options = parser.parse_args()
    train(Job(**json.loads(options.job)), options.folder, options.swapped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
