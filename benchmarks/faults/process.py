"""The process that cases run in, one after the other, under a watchdog."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.faults.cases import Case
from benchmarks.trainings import SERVE, TREE

_MODULE = "benchmarks.faults"
_TAIL_CHARACTERS = 3000
_READY_S = 120.0


class CaseProcess:
    """Runs cases in a process that is begun anew when one has taken it along.

    Args:
        folder: On a disk, for the file tier.
        most_s: What a case may take.
    """

    def __init__(self, folder: Path, most_s: float) -> None:
        self._folder, self._most_s = folder, most_s
        self._process: subprocess.Popen[str] | None = None
        self._said = tempfile.TemporaryFile("w+", errors="replace")

    @staticmethod
    def folder() -> str:
        """One whose file system reads and writes past the page cache.

        Raises:
            OSError: There is none.
        """
        for parent in (os.getcwd(), tempfile.gettempdir(), "/var/tmp"):
            folder = tempfile.mkdtemp(prefix="tfswap-faults-", dir=parent)
            try:
                handle = os.open(Path(folder) / "try", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
                os.close(handle)
                os.unlink(Path(folder) / "try")
                return folder
            except OSError:
                os.rmdir(folder)
        raise OSError("no disk here takes direct reads and writes")

    def __enter__(self) -> CaseProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._said.close()

    def run(self, case: Case) -> dict[str, Any]:
        """What the case came to, as `one_case.run` answers; or a crash, or a hang."""
        process = self._process or self._begin()
        assert process.stdin is not None
        process.stdin.write(json.dumps(dataclasses.asdict(case)) + "\n")
        process.stdin.flush()
        text = self._line(self._most_s)
        if text:
            answer: dict[str, Any] = json.loads(text)
            if answer["outcome"] == "wrong":
                self._end()  # what it has left is no other case's
            return answer
        status = process.poll()
        if text is None:
            os.kill(process.pid, signal.SIGUSR1)  # says where its threads are
            time.sleep(1)
        else:
            status = process.wait()
        self._end()
        outcome = "hang" if text is None else "crash"
        return {"outcome": outcome, "struck": -1, "said": "", "why": f"{status}: {self._tail()}"}

    def _line(self, most_s: float) -> str | None:
        """What it says next; "" if it has ended, None if it says nothing."""
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], most_s)
        return self._process.stdout.readline() if ready else None

    def _begin(self) -> subprocess.Popen[str]:
        self._said.seek(0)
        self._said.truncate()
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, SERVE, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=TREE,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TFSWAP_PLAN_CACHE": "none",
            },
        )
        if self._line(_READY_S) != "ready\n":
            self._end()
            raise RuntimeError(f"no process for cases: {self._tail()}")
        return self._process

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None

    def _tail(self) -> str:
        self._said.seek(0)
        return self._said.read()[-_TAIL_CHARACTERS:].strip()


def serve(folder: Path) -> int:
    """The other side: runs what comes, until nothing more does.

    Args:
        folder: On a disk, for the file tier.
    """
    import faulthandler

    import tensorflow as tf

    from benchmarks.faults.one_case import run

    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    answers = os.fdopen(os.dup(1), "w")
    os.set_inheritable(answers.fileno(), False)
    os.dup2(2, 1)  # whatever else is printed is no answer
    tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        fields = json.loads(line)
        fields["options"] = tuple(fields["options"])
        print(json.dumps(run(Case(**fields), folder)), file=answers, flush=True)
    return 0
