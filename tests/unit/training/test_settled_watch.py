"""What is found under settled plans, by steps and recordings that are made here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tfswap.plan.measured_plan import MeasuredStep
from tfswap.training.drift_watch import FIRST_PAUSE
from tfswap.training.graph_turn import GraphTurn
from tfswap.training.graph_watch import LOOKS
from tfswap.training.phase import Phase
from tfswap.training.settled_watch import Finding, SettledWatch

USUAL_S = 1.0


@dataclass
class Choice:
    """A `PlanChoice` as the watch knows it.

    Attributes:
        longer: How much longer than planned with a recorded step's ops take; None: not known.
        finds_another: Whether there is another plan for that.
        asked: With which steps it was asked for one.
    """

    fingerprint: str
    graphs: Sequence[str] = ()
    planned_function: Any = "a plan"
    longer: float | None = 0.0
    finds_another: bool = True
    larger: bool = False
    machine: Any = None
    asked: list[Sequence[MeasuredStep]] = field(default_factory=list)
    has_profile: bool = True

    @property
    def planner(self) -> Choice:
        return self

    @property
    def op_times(self) -> Any:
        return SimpleNamespace(has_drifted=abs(self.longer or 0) > 0.3)

    def time_step(self, trace: Any) -> float | None:
        return self.longer

    def plan_drifted(self, measured: Sequence[MeasuredStep]) -> bool:
        self.asked.append(measured)
        return self.finds_another

    def is_larger(self, trace: Any) -> bool:
        return self.larger

    def training_graphs(self) -> set[str]:
        return {self.fingerprint, *self.graphs}


class Devices:
    """Those of one training, whose link says what it is told to."""

    shared = None
    said = ""

    @property
    def link(self) -> Any:
        return SimpleNamespace(look=lambda machine: self.said, is_off=False)


def step(bytes_out: int = 0, needed_bytes: int = 0) -> MeasuredStep:
    return MeasuredStep(USUAL_S, 1000, needed_bytes, bytes_out, bytes_out, 0)


class Watched:
    """A watch over one training.

    Attributes:
        first: Of its first graph.
    """

    def __init__(self, **options: Any) -> None:
        self.first = Choice("first")
        self.turn = GraphTurn(self.first)  # type: ignore[arg-type]
        self.devices = Devices()
        plan = SimpleNamespace(plan=SimpleNamespace(sections=1, chooses=False))
        given = SimpleNamespace(**{"lossy": False, "stream_weights": False, **options})
        self.watch = SettledWatch(given, self.devices, plan, self.turn)  # type: ignore[arg-type]
        self.recorded = 0

    def run(self, steps: int, graph: str = "first", **of_step: Any) -> Iterator[Finding]:
        """What is found behind each of so many steps."""
        for _ in range(steps):
            wants = self.watch.wants
            self.recorded += wants
            self.watch.drift.step_ended(USUAL_S, wants and self.watch.drift.wants)
            trace: Any = SimpleNamespace() if wants else None
            ran = graph if wants else None
            yield self.watch.look(step(**of_step), trace, ran, (step(),), True)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def found(findings: Iterator[Finding]) -> list[Finding]:
    return [each for each in findings if each != Finding()]


def test_where_nothing_changes_nothing_is_found_and_little_recorded(watched: Watched) -> None:
    assert found(watched.run(4000)) == []
    assert 0 < watched.recorded < 12


def test_ops_of_other_times_lead_to_another_plan_once_in_a_while(watched: Watched) -> None:
    watched.first.longer = 0.5
    findings = found(watched.run(4 * FIRST_PAUSE))
    assert findings == [Finding(drifted=watched.first)]  # type: ignore[arg-type]
    assert watched.first.asked == [(step(),)]


def test_a_plan_that_stays_is_not_asked_for_again_and_again(watched: Watched) -> None:
    watched.first.longer, watched.first.finds_another = 0.5, False
    assert found(watched.run(250)) == []
    assert len(watched.first.asked) == 1
    assert found(watched.run(4000)) == []
    assert len(watched.first.asked) <= 5


def test_times_that_are_a_little_off_are_looked_at_and_left(watched: Watched) -> None:
    watched.first.longer = 0.2
    assert found(watched.run(1000)) == [] and watched.first.asked == []


def test_no_plan_is_made_while_there_may_be_none(watched: Watched) -> None:
    watched.first.longer = 0.5
    for _ in range(300):
        watched.watch.drift.step_ended(USUAL_S, watched.watch.drift.wants)
        trace: Any = SimpleNamespace()
        assert watched.watch.look(step(), trace, "first", (), False) == Finding()
    assert watched.first.asked == []


def test_a_link_of_another_speed_is_told(watched: Watched) -> None:
    watched.devices.said = "the link takes 1 GB/s"
    assert found(watched.run(3 * FIRST_PAUSE)) == [Finding(link="the link takes 1 GB/s")]


def test_a_graph_without_plan_that_runs_often_and_moves_is_found(watched: Watched) -> None:
    watched.first.graphs = ("other",)
    findings = found(watched.run(3 * LOOKS, "other", bytes_out=5))
    assert findings[0] == Finding(further="other")


def test_a_planned_graph_s_larger_tensors_are_found(watched: Watched) -> None:
    watched.first.larger = True
    findings = found(watched.run(4 * LOOKS, bytes_out=5, needed_bytes=2000))
    assert findings[0] == Finding(larger=watched.first)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"lossy": True}, {"stream_weights": True}])
def test_under_some_options_further_graphs_have_none(options: dict[str, bool]) -> None:
    watched = Watched(**options)
    watched.first.graphs = ("other",)
    assert found(watched.run(300, "other", bytes_out=5)) == []


def test_a_further_graph_s_plan_is_not_compared_with_steps_of_all(watched: Watched) -> None:
    other: Any = Choice("other", longer=0.5)
    watched.turn.take(other, Phase.STEADY)
    watched.turn.leave()
    findings = found(watched.run(3 * FIRST_PAUSE, "other"))
    assert findings == [Finding(drifted=other)] and other.asked == [()]
