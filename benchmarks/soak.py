r"""Train for half an hour in one process: check losses, and measure growth.

    python -m benchmarks.soak [--minutes 30] [--steps 2000] [--seed 0] [--quick]
                              [--mode tfswap|unswapped] [--models fresh|kept]

Trainings run in sequence until both the minutes and the steps have passed: small models
(convolutions; dense layers with Adam; an embedding and an LSTM) in turns, with batches of several
sizes, under budgets, policies and options as drawn, some with validation. Losses are compared, bit
for bit, with those of the same training without tfswap. ``--mode unswapped`` is the baseline: the
same trainings with TensorFlow alone, whose growth is the least possible.

One JSON line a training: mode, training, step (of all so far), minutes, model, batch, budget_bytes,
outcome ("budget too small": it ended with the error that says so), options, losses_equal (of the
steps that there were), resident_bytes, threads, handles, load_bytes (on the device). Then one of
the whole: mode, trainings, steps, minutes, wrong (trainings with other losses), too_small, growth
(resident memory at the end over that when a quarter of the trainings had passed, medians of 24,
minus 1), threads_gained, handles_gained, load_gained_bytes (computed in the same way).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
TFSWAP, UNSWAPPED, TOO_SMALL = "tfswap", "unswapped", "budget too small"
FRESH, KEPT = "fresh", "kept"
MODES, MODELS = (TFSWAP, UNSWAPPED), (KEPT, FRESH)
BATCHES = (1.0, 0.75, 0.5)  # of a model's own batch
EPOCHS = 2
# Small batches need more of their unswapped need, since weights are a larger part.
_SPARE = 0.05
# Trainings whose medians are compared, and which part of all is left out as warming up. What
# TensorFlow has optimised for a model is forgotten in every second of its trainings, so memory goes
# up and down by a twentieth with a period of twice as many trainings as there are models.
_COMPARED, _WARM = 24, 0.25
_SETTLED_S = 0.2  # for threads that are about to end


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=30.0, help="at least (30)")
    parser.add_argument("--steps", type=int, default=2000, help="at least, in all (2000)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    parser.add_argument("--quick", action="store_true", help="twenty seconds")
    parser.add_argument("--mode", choices=MODES, default=TFSWAP, help=f"({TFSWAP})")
    parser.add_argument("--models", choices=MODELS, default=KEPT, help=f"({KEPT})")
    options = parser.parse_args(arguments)
    if options.quick:
        options.minutes, options.steps = 0.3, 60
    return options


@dataclass(frozen=True)
class Training:
    """A drawn training.

    Attributes:
        model: Its name.
        batch: Number of examples.
        steps: Steps of an epoch.
        part: The part of the unswapped need on the device, beyond the bytes in use before.
        policy: `AutoSwap`'s policy.
        options: Other options of `AutoSwap`, by name.
        validates: Whether to validate after each epoch.
    """

    model: str
    batch: int
    steps: int
    part: float
    policy: str
    options: tuple[tuple[str, Any], ...]
    validates: bool


def drawn(seed: int, models: Sequence[tuple[str, int, float]]) -> Iterator[Training]:
    """Yield endless trainings, the same ones for the same seed.

    Args:
        seed: Seed of the draws.
        models: Name, usual batch, and the least part of its need that each trains in.
    """
    dice = random.Random(seed)
    while True:
        for name, batch, least in models:
            options: dict[str, Any] = {}
            if dice.random() < 0.3:
                options["verify"] = True
            if dice.random() < 0.4:
                options["codec"] = dice.choice(("zvc", "lz4", "auto"))
            if dice.random() < 0.2:
                options["stream_weights"] = True
            if dice.random() < 0.3:
                options["spill_dir"] = True
            yield Training(
                model=name,
                batch=int(batch * dice.choice(BATCHES)),
                steps=dice.choice((7, 10, 14)),
                part=dice.uniform(least, 1.1),
                policy=dice.choice(("auto", "greedy", "auto")),
                options=tuple(options.items()),
                validates=dice.random() < 0.3,
            )


def resident_bytes() -> int:
    """Return the resident memory of this process, as the kernel counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """The trainings of one process.

    Args:
        mode: One of `MODES`.
        models: One of `MODELS`: whether each training has a new model.
        folder: On a disk, for the file tier.
    """

    def __init__(self, mode: str, models: str, folder: Path) -> None:
        from benchmarks.faults import subjects

        self._mode, self._models, self._folder = mode, models, folder
        self._subjects = subjects
        # (losses, bytes needed) without tfswap.
        self._expected: dict[tuple[str, int, int, bool], tuple[list[str], int]] = {}

    def train(self, training: Training) -> dict[str, Any]:
        """Run one training; return the values of its line."""
        import keras

        import tfswap

        if self._models == FRESH:
            keras.backend.clear_session()
            self._subjects.subject.cache_clear()
        subject = self._subjects.subject(training.model)
        key = (training.model, training.batch, training.steps, training.validates)
        if key not in self._expected:
            self._expected[key] = self._unswapped(subject, training)
        losses, needed_bytes = self._expected[key]
        line: dict[str, Any] = {"budget_bytes": None, "outcome": UNSWAPPED, "options": {}}
        if self._mode == UNSWAPPED:
            found = self._fit(subject, training, [])
        else:
            options = self._options(training, needed_bytes)
            swap = tfswap.AutoSwap(policy=training.policy, **options)
            found, ended = self._fit_within(subject, training, swap)
            line["budget_bytes"] = options["budget"]
            line["outcome"] = ended or swap.report.outcome
            losses = losses[: len(found)] if ended else losses
            line["options"] = {"policy": training.policy, **dict(training.options)}
        line["losses_equal"] = found == losses
        return line

    def _fit_within(self, subject: Any, training: Training, swap: Any) -> tuple[list[str], str]:
        """Return the losses of the completed steps; `TOO_SMALL` if the budget was too small."""
        import tensorflow as tf

        try:
            return self._fit(subject, training, [swap]), ""
        except tf.errors.ResourceExhaustedError as error:
            if "tfswap: the memory budget" not in str(error):
                raise
        return subject.last.losses, TOO_SMALL

    def _options(self, training: Training, needed_bytes: int) -> dict[str, Any]:
        """Return the options of the `AutoSwap`."""
        import tfswap

        gc.collect()
        options: dict[str, Any] = {**dict(training.options), "plan_cache": None, "verbose": 0}
        if options.pop("spill_dir", False):
            options |= {"spill_dir": str(self._folder), "host_limit": MIB}
        budget = int(tfswap.memory_stats()["bytes_in_use"] + training.part * needed_bytes)
        return {**options, "budget": budget}

    def _unswapped(self, subject: Any, training: Training) -> tuple[list[str], int]:
        import tfswap

        gc.collect()
        tfswap.reset_memory_stats()
        before_bytes = tfswap.memory_stats()["bytes_in_use"]
        losses = self._fit(subject, training, [])
        return losses, tfswap.memory_stats()["peak_bytes"] - before_bytes

    def _fit(self, subject: Any, training: Training, callbacks: list[Any]) -> list[str]:
        x, y = (each[: training.steps * training.batch] for each in subject.data)
        more: dict[str, Any] = {}
        if training.validates:
            more["validation_data"] = (x[: training.batch], y[: training.batch])
            more["validation_batch_size"] = training.batch
        subject.last = losses = self._subjects.Losses()
        subject.forget()
        subject.model.fit(
            x,
            y,
            batch_size=training.batch,
            shuffle=False,
            epochs=EPOCHS,
            verbose=0,
            callbacks=[*callbacks, losses],
            **more,
        )
        return losses.losses


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the line of each training."""
    from benchmarks.faults.disk_folder import disk_folder
    from benchmarks.faults.subjects import MODELS, subject

    folder = disk_folder()
    soak = Soak(options.mode, options.models, folder)
    models = [(name, subject(name).batch, part + _SPARE) for name, part in MODELS.items()]
    begun_s, step = time.monotonic(), 0
    for number, training in enumerate(drawn(options.seed, models)):
        minutes = (time.monotonic() - begun_s) / 60
        if minutes >= options.minutes and step >= options.steps:
            break
        line = soak.train(training)
        step += EPOCHS * training.steps
        yield {
            "mode": options.mode,
            "training": number,
            "step": step,
            "minutes": round((time.monotonic() - begun_s) / 60, 2),
            "model": training.model,
            "batch": training.batch,
            **line,
            **_held(),
        }
    os.rmdir(folder)


def _held() -> dict[str, int]:
    """Return the process's resources between two trainings."""
    import tfswap

    gc.collect()
    time.sleep(_SETTLED_S)
    return {
        "resident_bytes": resident_bytes(),
        "threads": len(os.listdir("/proc/self/task")),
        "handles": len(os.listdir("/proc/self/fd")),
        "load_bytes": tfswap.memory_stats()["load_bytes"],
    }


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Summarize all trainings.

    Args:
        lines: Lines of all trainings, at least one.
    """
    warm = lines[int(_WARM * len(lines)) :]

    def gained(key: str) -> tuple[float, float]:
        first, last = warm[:_COMPARED], warm[-_COMPARED:]
        return statistics.median(a[key] for a in first), statistics.median(b[key] for b in last)

    first_bytes, last_bytes = gained("resident_bytes")
    found = {key: int(b - a) for key in ("threads", "handles") for a, b in [gained(key)]}
    load = gained("load_bytes")
    return {
        "mode": lines[-1]["mode"],
        "trainings": len(lines),
        "steps": lines[-1]["step"],
        "minutes": lines[-1]["minutes"],
        "wrong": sum(not line["losses_equal"] for line in lines),
        "too_small": sum(line["outcome"] == TOO_SMALL for line in lines),
        "growth": round(last_bytes / first_bytes - 1, 4),
        "threads_gained": found["threads"],
        "handles_gained": found["handles"],
        "load_gained_bytes": int(load[1] - load[0]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; the exit status is 1 if a training had wrong losses."""
    options = parse(arguments)
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", TFSWAP_PLAN_CACHE="none")
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    lines: list[dict[str, Any]] = []
    for line in run(options):
        lines.append(line)
        print(json.dumps(line), flush=True)
    found = summary(lines)
    print(json.dumps(found), flush=True)
    return int(found["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
