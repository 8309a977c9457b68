"""One stage in a process of its own, from both sides.

A process is started ahead of its turn: it imports TensorFlow, touches no GPU, and waits for its
line on stdin, the time at which it has to end. So the import costs the check nothing.
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

# What a stage keeps to end by itself, before it is ended.
_GRACE_S = 4.0
_TAIL_LINES, _TAIL_CHARACTERS = 30, 3000


class StageProcess:
    """A stage's process, as the check sees it: made ahead, told to go, waited for."""

    def __init__(self, stage: Stage, quick: bool) -> None:
        self.stage = stage
        self._folder = tempfile.TemporaryDirectory(prefix="tfswap-gpu-check-")
        self._result_file = Path(self._folder.name) / "result.json"
        self._output_file = Path(self._folder.name) / "output"
        command = [sys.executable, "-m", "benchmarks.gpu_check", "--stage", stage.name]
        command += ["--stage-result", str(self._result_file), *(["--quick"] if quick else [])]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, "PYTHONUNBUFFERED": "1"}
        with self._output_file.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=TREE,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what it starts ends with it
            )

    def run(self, seconds: float, fake: bool) -> dict[str, Any]:
        """Runs the stage for at most that long; answers its record."""
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
        """Ends whatever is left of it."""
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
    """The stage's side: prepares, waits for its turn, works."""
    faulthandler.register(signal.SIGUSR1)  # says where it is when its time is over
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
    except Exception as error:  # whatever it is, it is this stage's result
        traceback.print_exc()
        text = str(error).strip().splitlines()[0] if str(error).strip() else ""
        context.save(ended=True, status="failed", why=f"{type(error).__name__}: {text}")
    else:
        context.save(ended=True, status="done")
    sys.stdout.flush()
    # What the GPU still does, and TensorFlow's threads, are of no interest any more.
    os._exit(0)
