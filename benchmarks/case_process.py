"""A process that runs one case after the other, so that it starts only once.

benchmark ── a case, as a line of JSON ──▶ process: does it, waits for the next
          ◀─ its answer, as another one ──
"""

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from benchmarks.one_case import SERVE, TREE

if TYPE_CHECKING:
    from typing_extensions import Self

_READY = "ready\n"
_READY_S = 120.0
_TAIL_CHARACTERS = 3000


@dataclass(frozen=True)
class NoAnswer:
    """The process did not answer.

    Attributes:
        status: Exit status of the process; None if it did not answer in time.
        said: The end of its other output; without any, the stacks of its threads.
    """

    status: int | None
    said: str


class CaseProcess:
    """The benchmark's side. A process that does not answer is ended; the next case starts another.

    Args:
        module: The benchmark's module; with `SERVE` as argument it calls `serve`.
        arguments: Further arguments.
        environment: Changes of this process's environment; GPUs are hidden.
        most_s: Time limit of a case in seconds; None: no limit.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        most_s: float | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", module, SERVE, *arguments]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TREE), os.environ.get("PYTHONPATH", "")]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",
            **(environment or {}),
        }
        self._most_s = most_s
        self._process: subprocess.Popen[str] | None = None
        self._said = tempfile.TemporaryFile("w+", errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        self._said.close()

    def ask(self, case: Any) -> dict[str, Any] | NoAnswer:
        """Return the answer to a case, which is a dataclass."""
        process = self._process or self._begin()
        assert process.stdin is not None
        text: str | None = ""
        try:
            process.stdin.write(json.dumps(dataclasses.asdict(case)) + "\n")
            process.stdin.flush()
            text = self._line(self._most_s)
        except BrokenPipeError:
            pass
        if text:
            answer: dict[str, Any] = json.loads(text)
            return answer
        status = None
        if text is None:
            os.kill(process.pid, signal.SIGUSR1)
            time.sleep(1)
        else:
            status = process.wait()
        self.end()
        return NoAnswer(status, self._tail())

    def end(self) -> None:
        """End the process: its state must not affect another case."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None

    def _line(self, most_s: float | None) -> str | None:
        """Return the next line; "" if the process has ended, None after the time limit."""
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], most_s)
        return self._process.stdout.readline() if ready else None

    def _begin(self) -> subprocess.Popen[str]:
        self._said.seek(0)
        self._said.truncate()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=TREE,
            env=self._environment,
        )
        if self._line(_READY_S) != _READY:
            self.end()
            raise RuntimeError(f"no process for cases: {self._tail()}")
        return self._process

    def _tail(self) -> str:
        self._said.seek(0)
        return self._said.read()[-_TAIL_CHARACTERS:].strip()


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """Answer cases until the input ends.

    Args:
        answer: Called with the fields of each case.
    """
    import faulthandler

    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    answers = os.fdopen(os.dup(1), "w")
    os.set_inheritable(answers.fileno(), False)
    os.dup2(2, 1)  # other output is not the answer
    answers.write(_READY)
    answers.flush()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
    return 0
