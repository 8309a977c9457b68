"""One case of a benchmark, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parent.parent
SERVE = "--serve"
"""The argument by which a benchmark's own module becomes the process that does the work."""

_RESULT = "result"
_TAIL_CHARACTERS = 1500


def in_process(
    module: str,
    case: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> dict[str, Any]:
    """Runs a case on the CPU; what it answers, or {"failed": the end of what it said}.

    Args:
        module: Of the benchmark.
        case: As `answer` is given it there.
        environment: All of that process's variables. Defaults to None: this one's.
        limit_s: Ends it when so many seconds have passed. Defaults to None: never.
    """
    with tempfile.TemporaryDirectory() as name:
        result = Path(name) / "result.json"
        variables = dict(os.environ if environment is None else environment)
        variables.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
        command = [sys.executable, "-m", module, SERVE, json.dumps({**case, _RESULT: str(result)})]
        try:
            ended = subprocess.run(
                command,
                cwd=TREE,
                env=variables,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"it takes more than {limit_s:.0f} s"}
        if ended.returncode or not result.exists():
            said = ended.stderr[-_TAIL_CHARACTERS:]
            return {"failed": said or f"the process ended with status {ended.returncode}"}
        answer: dict[str, Any] = json.loads(result.read_text())
        return answer


def answer(text: str, run: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """That process's side.

    Args:
        text: The case, behind `SERVE`.
        run: Called with the case.
    """
    case = json.loads(text)
    Path(case.pop(_RESULT)).write_text(json.dumps(run(case)))
    return 0
