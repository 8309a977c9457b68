"""PlanDesk: has the pass answered when it meets a graph that it has no plan for.

The pass runs in a thread of TensorFlow's, while Python waits for the step that is about to begin;
see ``tfswap/cc/grappler/plan_desk.h``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tfswap.jobs.share import STEP_WAIT_S
from tfswap.ops.loaded_library import Library
from tfswap.plan.schema import SwapPlan

# For the work; and where others share the device, for what they are to leave.
_PATIENCE_S = 20.0 + STEP_WAIT_S


@dataclass(frozen=True)
class Question:
    """A graph without a plan, before it has run.

    Attributes:
        fingerprint, portable: The graph's.
        examples: That were taken for those of a batch of unknown size; 0: it is known, or nobody
            knows.
        costs: Of its ops, for `tfswap.cost_model.op_costs.step_costs`; "": they are not known.
        description: The graph, for `StepGraph.parse`.
    """

    fingerprint: str
    portable: str
    examples: int
    costs: str
    description: str


Answer = Callable[[Question], SwapPlan | None]
"""What a training makes of a question: a plan of that graph alone, or None."""


class PlanDesk:
    """The thread, from the first `open` on; and who of its trainings answers.

    Args:
        library: The library.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._answers: dict[str, Answer] = {}
        self._thread: threading.Thread | None = None

    def open(
        self,
        label: str,
        answer: Answer,
        speed: tuple[float, float, float],
        examples: int,
    ) -> None:
        """Has a training's graphs ask.

        Args:
            label: By which the pass knows the training.
            answer: Answers, in a thread of its own; what it raises is taken for None.
            speed: As of `Library.open_desk`.
            examples: Likewise.
        """
        with self._lock:
            self._answers[label] = answer
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="tfswap_desk", daemon=True)
                self._thread.start()
        self._library.open_desk(label, speed, examples, _PATIENCE_S)

    def close(self, label: str) -> None:
        """Has them ask no more; harmless when called again."""
        self._library.close_desk(label)
        with self._lock:
            self._answers.pop(label, None)

    def _serve(self) -> None:
        while True:
            question = _parse(self._library.next_question())
            # An answer may wait for a larger share from the broker; others do not wait for it.
            threading.Thread(
                target=self._answer, args=question, name="tfswap_answer", daemon=True
            ).start()

    def _answer(self, number: int, label: str, question: Question) -> None:
        with self._lock:
            answer = self._answers.get(label)
        plan = None
        try:
            plan = None if answer is None else answer(question)
        finally:
            self._library.answer_question(number, "" if plan is None else plan.to_json())


def _parse(text: str) -> tuple[int, str, Question]:
    head, _, rest = text.partition("\n\n")
    number, label, fingerprint, portable, examples = head.split("\n")
    costs, _, description = ("", "", rest[1:]) if rest[:1] == "\n" else rest.partition("\n\n")
    return int(number), label, Question(fingerprint, portable, int(examples), costs, description)


@cache
def of_process(library: Library) -> PlanDesk:
    """The one desk of this process."""
    return PlanDesk(library)
