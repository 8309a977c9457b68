"""The process that cases run in, one after the other, under a watchdog."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import case_process
from benchmarks.case_process import NoAnswer
from benchmarks.faults.cases import Case

_MODULE = "benchmarks.faults"


class FaultProcess:
    """Runs cases in a process that is begun anew when one has taken it along.

    Args:
        folder: On a disk, for the file tier.
        most_s: What a case may take.
    """

    def __init__(self, folder: Path, most_s: float) -> None:
        self._process = case_process.CaseProcess(
            _MODULE, str(folder), environment={"TFSWAP_PLAN_CACHE": "none"}, most_s=most_s
        )

    def __enter__(self) -> FaultProcess:
        self._process.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.__exit__(kind, error, trace)

    def run(self, case: Case) -> dict[str, Any]:
        """What the case came to, as `one_case.run` answers; or a crash, or a hang."""
        answer = self._process.ask(case)
        if isinstance(answer, NoAnswer):
            outcome = "hang" if answer.status is None else "crash"
            why = f"{answer.status}: {answer.said}"
            return {"outcome": outcome, "struck": -1, "said": "", "why": why}
        if answer["outcome"] == "wrong":
            self._process.end()  # what it has left is no other case's
        return answer


def serve(folder: Path) -> int:
    """The other side: runs what comes, until nothing more does.

    Args:
        folder: On a disk, for the file tier.
    """
    import tensorflow as tf

    from benchmarks.faults.one_case import run

    tf.config.experimental.enable_op_determinism()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)

    def answer(fields: dict[str, Any]) -> dict[str, Any]:
        return run(Case(**{**fields, "options": tuple(fields["options"])}), folder)

    return case_process.serve(answer)
