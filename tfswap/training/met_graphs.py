"""OptimizedGraphs: what the pass said of the graphs of one training."""

from __future__ import annotations

from typing import Any

from tfswap.ops.loaded_library import Library
from tfswap.report.training_log import TrainingLog
from tfswap.step.graph import StepGraph
from tfswap.training.pass_session import PassSession


class OptimizedGraphs:
    """Graphs that the pass has met, and what became of the plan there.

    Args:
        lib: Describes them.
        session: Has what the pass said.
        voice: Warns.
    """

    def __init__(self, lib: Library, session: PassSession, voice: TrainingLog) -> None:
        self._library = lib
        self._session = session
        self._voice = voice
        self._trains: dict[str, bool] = {}  # by graph, whether it has gradients

    def in_first_step(self) -> list[dict[str, Any]]:
        """What it said of the first step's; empty, with a warning, if there is nothing to go by."""
        records = self._session.records()
        for record in records:
            if record["outcome"] == "refused" and self._session.is_new(record):
                self._voice.warn(f"the plan was not applied to a graph: {record['reason']}")
        if any(r["outcome"] in ("bootstrapped", "planned", "left") for r in records):
            return records
        if records:  # refused, all of them: they have lazy swaps
            return []
        self._voice.warn(
            "TensorFlow's graph optimizer did not run tfswap's pass, so nothing is swapped "
            "(is it disabled with tf.config.optimizer or 'disable_meta_optimizer'?). The "
            "budget is still enforced."
        )
        return []

    def training(self) -> set[str]:
        """Fingerprints of those with gradients that it has met under the plan."""
        for record in self._session.records():
            fingerprint = record["fingerprint"]
            if fingerprint not in self._trains and record["outcome"] != "refused":
                self._trains[fingerprint] = self.has_gradients(record)
        return {fingerprint for fingerprint, trains in self._trains.items() if trains}

    def has_gradients(self, record: dict[str, Any]) -> bool:
        """Whether the graph that this was said of trains."""
        graph = StepGraph.parse(self._library.describe(record["fingerprint"]))
        return any(node.backward for node in graph.nodes.values())

    def check_in_force(self, fingerprint: str) -> None:
        """Warns if it has refused the plan of a graph."""
        for record in self._session.records():
            if record["fingerprint"] == fingerprint and record["outcome"] == "refused":
                self._voice.warn(f"the plan was not applied: {record['reason']}")
