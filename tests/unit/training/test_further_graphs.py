"""Further graphs of a training, and larger tensors: when they are planned, and when not."""

from __future__ import annotations

import dataclasses

import pytest
from trainings import ended, follow, kinds, measured, plan, state_of, step

from tfswap.training.events import (
    CountGraphs,
    Event,
    GraphForgotten,
    GraphsCounted,
    Install,
    Planned,
    PlanRecorded,
    StepEnded,
)
from tfswap.training.states import Counted, GraphState, Phase, TrainingState

PLAN = plan()
PLANNED = Planned(0, "first", function=PLAN, on_demand_s=(2.0, 2.0))


def watched() -> TrainingState:
    """Return a steady training that observes steps."""
    state = state_of(Phase.STEADY, function=PLAN, is_profiled=True, trials=(measured(PLAN),))
    return state


def observed(state: TrainingState, graph: str, larger: bool = False) -> TrainingState:
    """Return the state after so many steps that a graph deserves a plan."""
    count: Event = ended()
    for _ in range(100):
        state, actions = follow(state, count)
        if any(isinstance(action, CountGraphs) for action in actions):
            state, _ = follow(state, GraphsCounted(True))
        if state.observes:
            for _ in range(9):
                if state.turn == 0 and state.counted is None:
                    event = StepEnded(step(), graph, is_like_profiled=not larger, is_larger=larger)
                    state, actions = follow(state, event)
            return state
    raise AssertionError("it does not observe steps")


def test_a_further_graph_gets_a_plan() -> None:
    state = observed(watched(), "second")
    assert (state.turn, state.counted) == (1, Counted("second"))
    assert state.phase is Phase.WARM and state.graphs[0].function == PLAN
    second = ended(graph="second")
    state, actions = follow(state, second, second, second)
    assert PlanRecorded(1) in actions
    function = plan("second")
    state, actions = follow(state, Planned(1, "second", function=function), second)
    assert kinds(actions) == ["CheckApplied"]
    state, actions = follow(state, second, second)
    assert state.turn == 0 and state.counted is None and state.phase is Phase.STEADY
    assert state.graphs[1].function == function
    assert kinds(actions) == ["Keep", "Log", "ResumeAddresses"]
    assert "2 graphs of this training" in actions[1].text  # type: ignore[union-attr]


def test_a_further_graph_without_a_plan_is_refused() -> None:
    state = observed(watched(), "second")
    second = ended(graph="second")
    state, _ = follow(state, second, second, second)
    state, actions = follow(state, Planned(1, "second", problem="no plan fits."))
    assert state.turn == 0 and kinds(actions) == ["Withdraw", "Log", "ResumeAddresses"]
    assert not state.watch.ran("second", True, False).is_due("second")


@pytest.mark.parametrize(("phase", "steps"), [(Phase.WARM, 64), (Phase.MEASURE, 16)])
def test_a_further_graph_is_waited_for_up_to_a_limit(phase: Phase, steps: int) -> None:
    further = GraphState(phase, "second")
    state = dataclasses.replace(watched(), turn=1, counted=Counted("second"))
    state = dataclasses.replace(state, graphs=(*state.graphs, further))
    state, _ = follow(state, *[ended(graph="first")] * (steps - 1))
    assert state.turn == 1
    state, _ = follow(state, ended(graph="first"))
    assert state.turn == 0 and state.counted is None and state.phase is Phase.STEADY


def test_a_forgotten_further_graph_ends_its_turn() -> None:
    state = observed(watched(), "second")
    assert follow(state, GraphForgotten())[0].turn == 0


def test_larger_tensors_lead_to_another_profile_of_the_graph() -> None:
    state = observed(watched(), "first", larger=True)
    assert state.counted == Counted("first", larger=True)
    assert state.phase is Phase.WARM and state.graph.function is None
    larger = StepEnded(step(), "first", is_larger=True)
    state, actions = follow(state, ended(graph="first"), larger, larger, larger)
    assert PlanRecorded(0) in actions
    state, actions = follow(state, Planned(0, "first", problem="no plan fits."))
    assert actions == (Install(0, PLAN),)  # the old plan is better than none
    assert state.phase is Phase.STEADY


def test_the_plan_is_restored_if_larger_tensors_do_not_run_again() -> None:
    state = observed(watched(), "first", larger=True)
    state, actions = follow(state, *[ended(graph="first")] * 64)
    assert kinds(actions) == ["Log", "DropAddresses", "NoteBudget", "PlanAgain"]
    assert state.counted is None


def test_steps_of_other_shapes_do_not_count() -> None:
    varying = dataclasses.replace(PLANNED, varies=True)
    state, _ = follow(state_of(Phase.PROFILE), varying)
    assert state.counted == Counted("first") and state.records
    state, _ = follow(state, ended(graph="other"))
    assert state.phase is Phase.SETTLE
    state, _ = follow(state, ended(graph="first"))
    assert state.phase is Phase.MEASURE
    smaller = StepEnded(step(), "first", is_like_profiled=False)
    assert follow(state, smaller, smaller)[0].graph.steps == ()


@pytest.mark.parametrize("changes", [{"plans_further": False}, {"graphs": (GraphState(),) * 8}])
def test_no_further_graph_is_planned(changes: dict[str, object]) -> None:
    state = dataclasses.replace(watched(), **changes)  # type: ignore[arg-type]
    for _ in range(100):
        state, actions = follow(state, ended())
        assert "CountGraphs" not in kinds(actions)
