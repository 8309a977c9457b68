r"""Several trainings on one device: memory saved, time lost and total throughput.

    python -m benchmarks.jobs [--quick] [--models VGG16,ResNet50] [--image 128] [--budget 0.5]

Each model alone, under what TENSILE's authors logged as its saving; then two and three at once, of
the same and of different models, under one budget (a part of the sum of their unswapped peaks):

    (unswapped      at once, without a budget: what step times are compared with)
    processes       in processes, under a broker
    threads         in threads of one process, under one budget
    comes and goes  processes, of which all but one join later, and that one leaves earlier
    static          a rival: in processes, each under an equal share
    sequential      a rival: one after the other, each under all of the budget

One JSON line a case: jobs, models, mode, budget_bytes, measured_peak_bytes (the largest sum of what
all steps that ran at one time needed), msr (memory saving ratio, 1 - peak / unswapped peak), eor
(extra overhead ratio, step time / unswapped step time - 1, the mean of the jobs), throughput_ratio
(examples a second, all jobs together, over one after the other); logged_msr and logged_eor are what
the authors' repository has (papers' batch 16, another framework, a GPU).

Source: Zhang, Wang et al., TENSILE, arXiv 2105.13336; the ratios as in the first author's code.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.reasons import reason

TREE = Path(__file__).resolve().parent.parent
MIB = 1 << 20
# (memory saving, extra overhead) of one job at batch 16, as logged.
LOGGED = {
    "VGG16": (0.3264, 0.2626),
    "InceptionV3": (0.5895, 0.2955),
    "ResNet50": (0.6709, 0.6089),
    "DenseNet121": (0.7597, 0.1644),
}
ALONE, UNSWAPPED, PROCESSES, THREADS = "alone", "unswapped", "processes", "threads"
STATIC, SEQUENTIAL, COMES_AND_GOES = "static", "sequential", "comes and goes"
MODES = (PROCESSES, THREADS, STATIC, SEQUENTIAL, COMES_AND_GOES)
DEVICE = "device"  # the lines of what jobs share
# A model that does not fit is given up after this.
MOST_S = 900.0
UNTIMED = 2
# Of the least that is possible.
_SPARE = 1.03


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        name: By which its lines are known.
        model: Of `benchmarks.models`.
        batch: Examples.
        image: Pixels of a side.
        budget_bytes: Its own; 0: none.
        socket: Of the broker; "": there is none.
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
        begin_s, end_s: On the clock of all processes.
        peak_bytes: Of the device; 0 where jobs share a process.
        before_bytes: In use when it began, be it that its share had shrunk; likewise.
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
        """From when on it needed how many bytes at the most."""
        at_s = self.begin_s
        for then_s, budget_bytes in self.grew:
            yield at_s, min(self.peak_bytes, budget_bytes)
            at_s = then_s
        yield at_s, self.peak_bytes


# In a process of its own.


def train(job: Job, folder: Path, swapped: bool, shared: bool) -> None:
    """Trains until there is a file that says stop; writes a line for each step."""
    import keras
    import tensorflow as tf

    import tfswap
    from benchmarks.models import workload
    from tfswap.ops.loaded_library import Library

    growths: list[tuple[float, int]] = []
    budgets: dict[int, int | None] = {}
    set_budget = Library.set_budget

    def noted(lib: Library, device: int, budget_bytes: int | None) -> None:
        before = budgets.get(device)
        if before and budget_bytes and budget_bytes > before:
            growths.append((time.monotonic(), before))
        budgets[device] = budget_bytes
        set_budget(lib, device, budget_bytes)

    if not shared:
        Library.set_budget = noted  # type: ignore[method-assign]

    class Lines(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.file = (folder / f"{job.name}.jsonl").open("w", buffering=1)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            growths.clear()
            self.begun_s = time.monotonic()
            self.before_bytes = 0 if shared else tfswap.memory_stats()["bytes_in_use"]
            if not shared:
                tfswap.reset_memory_stats()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            peak_bytes = 0 if shared else tfswap.memory_stats()["peak_bytes"]
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
            options |= {"broker": job.socket, "share": tfswap.Share(name=job.name, wait_s=MOST_S)}
        swap = tfswap.AutoSwap(**options)
    callbacks = [Lines()] if swap is None else [swap, Lines()]
    training = workload(job.model, job.batch, job.image)
    # At the process's end, tf.data waits for its thread that tunes, which may sleep for a minute.
    untuned = tf.data.Options()
    untuned.autotune.enabled = False
    data = tf.data.Dataset.from_tensors((training.x, training.y)).repeat().with_options(untuned)
    training.model.fit(data, steps_per_epoch=1_000_000, verbose=0, callbacks=callbacks)


def serve(options: argparse.Namespace) -> None:
    """One process: its jobs, each in a thread if there are several."""
    jobs = [Job(**each) for each in json.loads(options.serve)]
    folder = Path(options.folder)
    if len(jobs) == 1:
        train(jobs[0], folder, options.swapped, shared=False)
        return
    import keras  # noqa: F401  not in several threads at once
    import tensorflow as tf  # noqa: F401

    import tfswap  # noqa: F401

    def run(job: Job) -> None:
        try:
            train(job, folder, options.swapped, shared=True)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the others, too: nobody is to wait for what will not come

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    watch(threads, folder)


def watch(threads: Sequence[threading.Thread], folder: Path) -> None:
    """Writes what the device needs, for jobs that share it."""
    import tfswap

    with (folder / f"{DEVICE}.jsonl").open("w", buffering=1) as file:
        while any(thread.is_alive() for thread in threads):
            tfswap.reset_memory_stats()
            begun_s = time.monotonic()
            time.sleep(0.25)
            peak_bytes = tfswap.memory_stats()["peak_bytes"]
            file.write(json.dumps(asdict(Step(begun_s, time.monotonic(), peak_bytes, True))) + "\n")


# The benchmark's side.


class Failed(Exception):
    """A training ended with an error, or never settled."""


class Running:
    """Processes that train.

    Args:
        folder: Where they write.
        swapped: Whether under tfswap.
    """

    def __init__(self, folder: Path, swapped: bool = True) -> None:
        self._folder = folder
        self._swapped = swapped
        self._processes: list[subprocess.Popen[str]] = []

    def begin(self, *jobs: Job) -> None:
        """One more process, with these jobs."""
        command = [sys.executable, "-m", "benchmarks.jobs", "--folder", str(self._folder)]
        command += ["--serve", json.dumps([asdict(job) for job in jobs])]
        command += ["--swapped"] if self._swapped else []
        log = (self._folder / f"{jobs[0].name}.log").open("w")
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        self._processes.append(
            subprocess.Popen(command, cwd=TREE, env=environment, stdout=log, stderr=log, text=True)
        )

    def steps(self, name: str) -> list[Step]:
        """Of a job, so far."""
        path = self._folder / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [Step(**json.loads(line)) for line in text.splitlines() if line.endswith("}")]

    def settled(self, name: str) -> list[Step]:
        """The last steps of a job, all of them settled."""
        found: list[Step] = []
        for step in reversed(self.steps(name)):
            if not step.settled:
                break
            found.insert(0, step)
        return found

    def wait(self, jobs: Sequence[Job], count: int) -> None:
        """Until each has so many settled steps that began when all had settled."""
        deadline_s = time.monotonic() + MOST_S
        while True:
            self._check(deadline_s)
            settled = [self.settled(job.name) for job in jobs]
            if all(settled):
                since_s = max(steps[0].begin_s for steps in settled)
                if all(sum(s.begin_s >= since_s for s in steps) >= count for steps in settled):
                    return
            time.sleep(0.1)

    def _check(self, deadline_s: float) -> None:
        if any(process.poll() not in (None, 0) for process in self._processes):
            said = [log.read_text() for log in sorted(self._folder.glob("*.log"))]
            raise Failed("\n".join(reason(log) for log in said if "Traceback" in log))
        if time.monotonic() > deadline_s:
            raise Failed(f"not settled after {MOST_S:g} s")

    def end(self, *jobs: Job) -> None:
        """Has jobs stop behind their next step."""
        for job in jobs:
            (self._folder / f"{job.name}.stop").touch()

    def close(self, jobs: Sequence[Job]) -> None:
        """Has all stop."""
        self.end(*jobs)
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class BrokerRunning:
    """A broker in a process of its own, for as long as the context lasts."""

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.socket = folder / "run" / "broker.sock"
        command = [sys.executable, "-m", "tfswap", "broker", "--device", "CPU:0"]
        command += ["--budget", str(budget_bytes), "--socket", str(self.socket)]
        self._log = (folder / "broker.txt").open("w")
        self._process = subprocess.Popen(command, cwd=TREE, stdout=self._log, stderr=self._log)
        deadline_s = time.monotonic() + 60
        while not self.socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise Failed((folder / "broker.txt").read_text()[-2000:])
            time.sleep(0.05)

    def __enter__(self) -> BrokerRunning:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait(30)


@dataclass(frozen=True)
class Measured:
    """What came of jobs that ran at once.

    Attributes:
        step_s: Of each, the median.
        examples_per_s: Of all together.
        peak_bytes: The largest sum at any time.
        least_bytes: What the first one can run in with swaps; 0: it was not planned.
    """

    step_s: tuple[float, ...]
    examples_per_s: float
    peak_bytes: int
    least_bytes: int = 0


def at_once(jobs: Sequence[Job], options: argparse.Namespace, mode: str, budget: int) -> Measured:
    """Runs jobs beside each other until all have settled and made some more steps."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if mode in (PROCESSES, COMES_AND_GOES):
            broker = stack.enter_context(BrokerRunning(folder, budget))
            jobs = [replace(job, socket=str(broker.socket)) for job in jobs]
        elif mode == STATIC:
            jobs = [replace(job, budget_bytes=budget // len(jobs)) for job in jobs]
        elif mode != UNSWAPPED:
            jobs = [replace(job, budget_bytes=budget) for job in jobs]
        running = Running(folder, swapped=mode != UNSWAPPED)
        stack.callback(running.close, jobs)
        if mode == THREADS:
            running.begin(*jobs)
        elif mode == COMES_AND_GOES:
            first, *others = jobs
            running.begin(first)
            running.wait([first], options.steps)
            for job in others:
                running.begin(job)
            running.wait(jobs, options.steps)
            running.end(first)
            running.wait(others, options.steps)
        else:
            for job in jobs:
                running.begin(job)
        if mode != COMES_AND_GOES:
            running.wait(jobs, options.steps)
        device = running.steps(DEVICE) if mode == THREADS else []
        found = [running.steps(job.name) for job in jobs]
        peak_bytes = max((s.peak_bytes for s in device), default=0) or largest_sum(found)
        settled = [running.settled(job.name) for job in jobs]
        if mode == COMES_AND_GOES:
            since_s = min(steps[0].begin_s for steps in found)
            settled = found
        else:
            since_s = max(steps[0].begin_s for steps in settled)
        measured = Measured(*rates(jobs, settled, since_s), peak_bytes)
        running.close(jobs)
        least = folder / f"{jobs[0].name}.least"
        return replace(measured, least_bytes=int(least.read_text()) if least.exists() else 0)


def rates(
    jobs: Sequence[Job], steps: Sequence[Sequence[Step]], since_s: float
) -> tuple[tuple[float, ...], float]:
    """Median step times, and examples a second of all steps between a time and the last end."""
    until_s = max(each[-1].end_s for each in steps)
    examples, step_s = 0.0, []
    for job, each in zip(jobs, steps, strict=True):
        inside = [step for step in each if step.begin_s >= since_s]
        step_s.append(statistics.median(step.end_s - step.begin_s for step in inside))
        examples += job.batch * len(inside)
    return tuple(step_s), examples / (until_s - since_s)


def largest_sum(jobs: Sequence[Sequence[Step]]) -> int:
    """The largest sum of what steps needed that ran at one time.

    Between two steps a job counts with what it has when the second begins: in between it gives up
    what its share has no room for any more, before anybody else gets that.
    """
    changes: list[tuple[float, int, int]] = []
    for number, steps in enumerate(jobs):
        changes += [(at_s, number, peak) for step in steps for at_s, peak in step.needs()]
        between = zip(steps, steps[1:], strict=False)
        changes += [(step.end_s, number, after.before_bytes) for step, after in between]
        if steps:
            changes.append((steps[-1].end_s, number, 0))
    now, most = [0] * len(jobs), 0
    for _, number, peak_bytes in sorted(changes):
        now[number] = peak_bytes
        most = max(most, sum(now))
    return most


def compare(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All cases, as they are done."""
    alone: dict[str, Measured] = {}
    for model in dict.fromkeys([*options.models, *(m for each in options.together for m in each)]):
        job = Job("a", model, options.batch, options.image)
        alone[model] = at_once([job], options, UNSWAPPED, 0)
        if model in LOGGED and model in options.models:
            logged = int((1 - LOGGED[model][0]) * alone[model].peak_bytes)
            possible = at_once([job], options, ALONE, 4 * alone[model].peak_bytes).least_bytes
            budget = max(logged, int(_SPARE * possible))
            yield measured_line([job], options, ALONE, budget, alone)
    for models in options.together:
        jobs = [
            Job(chr(ord("a") + place), model, options.batch, options.image)
            for place, model in enumerate(models)
        ]
        budget = int(options.budget * sum(alone[model].peak_bytes for model in models))
        beside = at_once(jobs, options, UNSWAPPED, 0)
        for mode in options.modes:
            yield measured_line(jobs, options, mode, budget, alone, beside)


def measured_line(
    jobs: Sequence[Job],
    options: argparse.Namespace,
    mode: str,
    budget: int,
    alone: dict[str, Measured],
    beside: Measured | None = None,
) -> dict[str, Any]:
    """One case, and what it is compared with."""
    models = [job.model for job in jobs]
    line: dict[str, Any] = {
        "jobs": len(jobs),
        "models": models,
        "mode": mode,
        "budget_bytes": budget,
        "measured_peak_bytes": None,
        "msr": None,
        "eor": None,
        "throughput_ratio": None,
    }
    if mode == ALONE and models[0] in LOGGED:
        line["logged_msr"], line["logged_eor"] = LOGGED[models[0]]
    unswapped_bytes = sum(alone[model].peak_bytes for model in models)
    unswapped_s = beside.step_s if beside else tuple(alone[model].step_s[0] for model in models)
    try:
        if mode == SEQUENTIAL:
            each = [at_once([job], options, ALONE, budget) for job in jobs]
            found = Measured(
                tuple(one.step_s[0] for one in each),
                len(jobs) / sum(1 / one.examples_per_s for one in each),
                max(one.peak_bytes for one in each),
            )
            unswapped_s = tuple(alone[model].step_s[0] for model in models)
        else:
            found = at_once(jobs, options, mode, budget)
    except Failed as failure:
        return {**line, "error": str(failure)}
    in_turns = len(jobs) / sum(1 / alone[model].examples_per_s for model in models)
    slower = [now / before - 1 for now, before in zip(found.step_s, unswapped_s, strict=True)]
    line["measured_peak_bytes"] = found.peak_bytes
    line["msr"] = round(1 - found.peak_bytes / unswapped_bytes, 4)
    line["eor"] = round(statistics.mean(slower), 4)
    line["throughput_ratio"] = round(found.examples_per_s / in_turns, 4)
    return line


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--quick", action="store_true", help="two jobs, small images, a minute")
    parser.add_argument("--models", type=names, help="alone (four; none with --together)")
    parser.add_argument(
        "--together",
        type=lambda text: [each.split("+") for each in text.split(",")],
        help="what runs at once, such as ResNet50+VGG16, instead of what is said above",
    )
    parser.add_argument("--modes", type=names, default=list(MODES), help=f"({','.join(MODES)})")
    parser.add_argument("--batch", type=int, default=16, help="examples (16)")
    parser.add_argument("--image", type=int, default=128, help="pixels of a side (128)")
    parser.add_argument("--budget", type=float, default=0.5, help="of the sum of peaks (0.5)")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each job (8)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--swapped", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.modes) - set(MODES)
    if unknown:
        parser.error(f"unknown modes {sorted(unknown)}: allowed are {', '.join(MODES)}")
    if options.models is None:
        options.models = [] if options.together else list(LOGGED)
    if options.quick:
        options.models, options.image, options.batch = ["U-Net"], 96, 8
        options.modes, options.steps = [PROCESSES], 4
        options.together = [["U-Net", "U-Net"]]
        return options
    if options.together:
        return options
    same = [[options.models[-2 % len(options.models)]] * count for count in (2, 3)]
    mixed = [options.models[-2:], options.models[-3:]] if len(options.models) > 2 else []
    options.together = [*same, *mixed]
    return options


def main() -> int:
    """Runs the benchmark, or one of its processes."""
    options = parse()
    if options.serve:
        serve(options)
        return 0
    for line in compare(options):
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
