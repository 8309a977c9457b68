"""Run one case of a benchmark in a separate process."""

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
    """Run a case on the CPU; return its answer, or {"failed": the end of its output}.

    Args:
        module: The benchmark's module.
        case: The argument of `answer` there.
        environment: All variables of that process. Defaults to None: those of this process.
        limit_s: Time limit in seconds. Defaults to None: none.
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
    """Run the process's side.

    Args:
        text: The case, after `SERVE`.
        run: Called with the case.
    """
    case = json.loads(text)
    Path(case.pop(_RESULT)).write_text(json.dumps(run(case)))
    return 0
