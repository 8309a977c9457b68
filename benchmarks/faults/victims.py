"""Trainings in separate processes that are killed, and their successors.

Each process of a folder succeeds the one that was killed there before, and has to take over
what that has left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.faults.cases import Case
from benchmarks.one_case import TREE

_MODULE = "benchmarks.faults.victims"
_READY_S, _STEP_S = 120.0, 60.0
_STEPS = 14
_RIGHT, _WRONG = "right", "wrong"


class Victims:
    """Kill one training after the other.

    Args:
        folder: On a disk; for the file tier, remembered plans and the broker's socket.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file, self._plans = folder / "file", folder / "plans"
        self._file.mkdir()
        self._plans.mkdir(mode=0o700)
        self._socket = Path(tempfile.mkdtemp(prefix="tfswap-")) / "broker"
        self._broker: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()  # one after the other

    def run(self, case: Case) -> dict[str, Any]:
        """Kill a training in the case's step; return the same as `one_case.run`."""
        with self._lock:
            return self._run(case)

    def _run(self, case: Case) -> dict[str, Any]:
        brokered = case.detail != "alone"
        if brokered:
            self._have_broker()
        victim = self._start(brokered)
        try:
            why = self._kill(victim, case)
        finally:
            victim.kill()
            victim.wait()
        outcome = "wrong" if why else "correct"
        return {"outcome": outcome, "struck": 1, "said": "", "why": why or self._left()}

    def end(self) -> None:
        """End the broker."""
        if self._broker is not None:
            self._broker.terminate()
            self._broker.wait()

    def _kill(self, victim: subprocess.Popen[str], case: Case) -> str:
        """Return what is wrong, or ""."""
        assert victim.stdout is not None
        for step in range(_STEPS):
            line = victim.stdout.readline().strip()
            if line != _RIGHT:
                ended = victim.poll()
                said = f", which has ended with {ended}" if ended is not None else ""
                return f"step {step} of a training after a killed one was {line!r}{said}"
            if step != case.step:
                continue
            time.sleep(0.03 * case.part)  # during the next step
            if case.detail == "the broker":
                assert self._broker is not None
                self._broker.send_signal(signal.SIGKILL)
                self._broker.wait()
                self._broker = None
                continue  # the training continues
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            return ""
        return "" if victim.wait(_STEP_S) == 0 else f"it has ended with {victim.returncode}"

    def _left(self) -> str:
        left = os.listdir(self._file)
        return f"left behind: {left}" if left else ""

    def _have_broker(self) -> None:
        if self._broker is not None:
            return
        self._broker = subprocess.Popen(
            [sys.executable, "-m", "tfswap", "broker", "--socket", str(self._socket),
             "--budget", "300MiB"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=TREE,
            env=_environment(),
        )  # fmt: skip
        assert self._broker.stdout is not None
        for line in self._broker.stdout:
            if "ready at" in line:
                return
        raise RuntimeError("there is no broker")

    def _start(self, brokered: bool) -> subprocess.Popen[str]:
        socket = str(self._socket) if brokered else ""
        return subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(self._file), str(self._plans), socket],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=TREE,
            env=_environment(),
        )


def _environment() -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def main() -> int:
    """Train, and report for each step whether its loss is correct."""
    import keras
    import tensorflow as tf

    from benchmarks.faults.subjects import subject

    file, plans, socket = sys.argv[1:]
    tf.config.experimental.enable_op_determinism()
    one = subject("convolutions")

    class Say(keras.callbacks.Callback):  # type: ignore[misc]
        said = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            is_right = float(logs["loss"]).hex() == one.losses[self.said]
            print(_RIGHT if is_right else _WRONG, flush=True)
            self.said += 1

    others = {"broker": socket, "share": "wait_s=60"} if socket else {}
    swap = one.swap("whole", ("file",), Path(file), plan_cache=plans, **others)
    one.train([Say(), swap], _STEPS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
