"""Run jobs in separate processes, with or without a broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.job import MAX_S, Job, Step
from benchmarks.reasons import reason

TREE = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """A training ended with an error, or never settled."""


class Running:
    """Processes that train.

    Args:
        folder: Folder of their output.
        swapped: Whether to use tfswap.
    """

    def __init__(self, folder: Path, swapped: bool = True) -> None:
        self._folder = folder
        self._swapped = swapped
        self._processes: list[subprocess.Popen[str]] = []

    def begin(self, job: Job) -> None:
        """Start one more process, which trains this job."""
        command = [sys.executable, "-m", "benchmarks.job", "--folder", str(self._folder)]
        command += [json.dumps(asdict(job))]
        command += ["--swapped"] if self._swapped else []
        log = (self._folder / f"{job.name}.log").open("w")
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        self._processes.append(
            subprocess.Popen(command, cwd=TREE, env=environment, stdout=log, stderr=log, text=True)
        )

    def steps(self, name: str) -> list[Step]:
        """Return the steps of a job so far."""
        path = self._folder / f"{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [Step(**json.loads(line)) for line in text.splitlines() if line.endswith("}")]

    def settled(self, name: str) -> list[Step]:
        """Return the last settled steps of a job."""
        found: list[Step] = []
        for step in reversed(self.steps(name)):
            if not step.settled:
                break
            found.insert(0, step)
        return found

    def wait(self, jobs: Sequence[Job], count: int) -> None:
        """Wait until each has enough settled steps that began when all had settled."""
        deadline_s = time.monotonic() + MAX_S
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
            raise Failed(f"not settled after {MAX_S:g} s")

    def end(self, *jobs: Job) -> None:
        """Stop jobs after their next step."""
        for job in jobs:
            (self._folder / f"{job.name}.stop").touch()

    def close(self, jobs: Sequence[Job]) -> None:
        """Stop all jobs."""
        self.end(*jobs)
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class BrokerRunning:
    """A broker in a separate process, for the duration of the context."""

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
