"""The process that runs cases, one after the other, under a watchdog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import case_process
from benchmarks.case_process import CaseProcess, NoAnswer
from benchmarks.faults.cases import Case

_MODULE = "benchmarks.faults"


class FaultProcess(CaseProcess):
    """Run cases in a process that is replaced when a case has ended it.

    Args:
        folder: On a disk, for the file tier.
        most_s: What a case may take.
    """

    def __init__(self, folder: Path, most_s: float) -> None:
        environment = {"TFSWAP_PLAN_CACHE": "none"}
        super().__init__(_MODULE, str(folder), environment=environment, most_s=most_s)

    def run(self, case: Case) -> dict[str, Any]:
        """Return a case's outcome, as `one_case.run` does; or a crash, or a hang."""
        answer = self.ask(case)
        if isinstance(answer, NoAnswer):
            outcome = "hang" if answer.status is None else "crash"
            why = f"{answer.status}: {answer.said}"
            return {"outcome": outcome, "struck": -1, "said": "", "why": why}
        if answer["outcome"] == "wrong":
            self.end()  # its leftovers must not count for another case
        return answer


def serve(folder: Path) -> int:
    """Run cases until the input ends.

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
