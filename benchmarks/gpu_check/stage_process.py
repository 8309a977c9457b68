"""Run one stage in a separate process; both sides.

A process is started early: it imports TensorFlow, does not touch the GPU, and waits for a line on
stdin, the time at which it has to end. So the import costs the check no time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.context import Context, Missing, Skip
from benchmarks.gpu_check.stages import Stage

TREE = Path(__file__).resolve().parents[2]

# The time that a stage has to end by itself, before it is killed.
_GRACE_S = 4.0
_TAIL_LINES, _TAIL_CHARACTERS = 30, 3000


class StageProcess:
    """A stage's process, from the check's side: started early, then run, then awaited."""

    def __init__(self, stage: Stage, quick: bool, logs: Path) -> None:
        self.stage = stage
        self._folder = tempfile.TemporaryDirectory(prefix="tfswap-gpu-check-")
        self._result_file = Path(self._folder.name) / "result.json"
        logs.mkdir(parents=True, exist_ok=True)
        self._output_file = logs / f"{stage.name.replace(':', '-')}.txt"
        command = [sys.executable, "-m", "benchmarks.gpu_check", "--stage", stage.name]
        command += ["--stage-result", str(self._result_file), *(["--quick"] if quick else [])]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "0", **os.environ, "PYTHONUNBUFFERED": "1"}
        with self._output_file.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=TREE,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its children end with it
            )

    def run(self, seconds: float, fake: bool) -> dict[str, Any]:
        """Run the stage for at most that long; return its record."""
        begun_s = time.monotonic()
        turn = {"deadline_s": begun_s + max(seconds - _GRACE_S, 1.0), "fake": fake}
        cut = False
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(turn).encode() + b"\n")
            self._process.stdin.flush()
            self._process.wait(seconds)
        except BrokenPipeError:
            self._process.wait()
        except subprocess.TimeoutExpired:
            cut = True
        return self._record(cut, time.monotonic() - begun_s)

    def end(self) -> None:
        """End the process and its children."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._folder.cleanup()

    def _record(self, cut: bool, seconds: float) -> dict[str, Any]:
        record: dict[str, Any] = {"stage": self.stage.name, "status": "failed"}
        if self._result_file.exists():
            record |= json.loads(self._result_file.read_text())
        record["seconds"] = round(seconds, 1)
        if not record.pop("ended", False):
            if cut:
                record["status"] = "cut"
                record["silent_s"] = round(self._silent_s(), 1)
                record["why"] = f"its time was over, {record['silent_s']:.0f} s after its last step"
                self._have_stacks_written()
            else:
                record["why"] = f"its process ended with status {self._process.returncode}"
        if record["status"] in ("cut", "failed"):
            record["tail"] = self._tail()
        return record

    def _silent_s(self) -> float:
        return time.time() - self._output_file.stat().st_mtime

    def _have_stacks_written(self) -> None:
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)

    def _tail(self) -> str:
        lines = self._output_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]


def serve(stage: Stage, result_file: Path, quick: bool) -> int:
    """Run the stage's side: prepare, wait for the turn, work."""
    faulthandler.register(signal.SIGUSR1)  # prints its stacks when its time is over
    if stage.trains:
        import tfswap  # noqa: F401, I001  # before anything that makes devices
        import keras  # noqa: F401
    text = sys.stdin.readline()
    if not text:
        return 1
    turn = json.loads(text)
    context = Context(result_file, turn["deadline_s"], quick, turn["fake"])
    try:
        stage.run(context)
    except Skip as reason:
        context.save(ended=True, status="skipped", why=str(reason))
    except Missing as reason:
        context.save(ended=True, status="missing", why=str(reason))
    except Exception as error:  # any error is this stage's result
        traceback.print_exc()
        text = str(error).strip().splitlines()[0] if str(error).strip() else ""
        context.save(ended=True, status="failed", why=f"{type(error).__name__}: {text}")
    else:
        context.save(ended=True, status="done")
    sys.stdout.flush()
    # The rest of the GPU's work and TensorFlow's threads are irrelevant.
    os._exit(0)
