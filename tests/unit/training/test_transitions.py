"""next_state: each rule of a training, as a table of events, phases and actions."""

from __future__ import annotations

import dataclasses

import pytest
from trainings import ended, follow, kinds, measured, plan, state_of, step

from tfswap.plan.measured_plan import MeasuredPlan
from tfswap.plan.schema import FunctionPlan
from tfswap.training.events import (
    AddressesSettled,
    BatchStaysWhole,
    BeginAgain,
    BudgetChanged,
    EpochBegan,
    Event,
    GraphForgotten,
    GraphSeen,
    InspectGraphs,
    Install,
    Met,
    PlanAgain,
    Planned,
    PlanRecorded,
    Reassigned,
    Retraced,
    Split,
    Withdraw,
    XlaRefused,
)
from tfswap.training.section_search import SectionSearch, SectionTrial
from tfswap.training.states import GraphState, Origin, Phase, TrainingState

PLAN, OTHER = plan(), plan(tensor="b:0")
GOOD = [ended(), ended()]
KEPT = ["Keep", "Summarize", "PlanAddresses"]
OFF = [ended(peak_bytes=200), ended(peak_bytes=200)]
PLANNED = Planned(0, "first", function=PLAN, on_demand_s=(2.0, 2.0))


# The way to a plan


@pytest.mark.parametrize(
    ("event", "phase", "actions"),
    [
        (ended(), Phase.BOOTSTRAP, ["InspectGraphs"]),
        (GraphSeen(Met.NOTHING), Phase.STEADY, []),
        (GraphSeen(Met.INFERENCE), Phase.IDLE, []),
        (GraphSeen(Met.UNPLANNED), Phase.WARM, []),
        (GraphSeen(Met.RENAMED), Phase.BOOTSTRAP, []),
        (GraphSeen(Met.LEFT, fingerprint="first"), Phase.STEADY, ["Summarize"]),
        (GraphSeen(Met.FITS, fingerprint="first"), Phase.STEADY, ["LeaveUnchanged", "Summarize"]),
        (GraphSeen(Met.GIVEN, PLAN), Phase.MEASURE, ["Install"]),
        (GraphSeen(Met.REMEMBERED, PLAN), Phase.MEASURE, []),  # it is active already
        (PLANNED, Phase.SETTLE, ["Install"]),  # from a remembered profile
    ],
)
def test_the_first_step(event: Event, phase: Phase, actions: list[str]) -> None:
    state, found = follow(TrainingState(), event)
    assert state.phase is phase
    assert kinds(found) == actions


def test_a_graph_that_fits_is_watched() -> None:
    state, _ = follow(TrainingState(), ended(), GraphSeen(Met.LEFT, fingerprint="first"))
    assert state.graph.fits and state.graph.fingerprint == "first"
    state, actions = follow(state, *[ended(fits=True)] * 3)
    assert state.graph.fits and kinds(actions) == []
    state, actions = follow(state, ended(fits=False))
    assert state.phase is Phase.BOOTSTRAP and not state.graph.fits
    assert kinds(actions) == ["Log", "DropAddresses", "NoteBudget", "BeginAgain"]
    assert actions[-1] == BeginAgain(leaves_fitting=False)
    # From then on it is planned, even if it seems to fit again.
    state, actions = follow(state, ended(fits=True))
    assert actions == (InspectGraphs(fits=False),)


def test_a_compiled_step_stays_until_xla_is_refused() -> None:
    state, actions = follow(state_of(Phase.COMPILED), ended(9.0))
    assert kinds(actions) == ["Summarize"]  # in the first step, XLA compiles
    state, actions = follow(state, *[ended(2.0)] * 99, BudgetChanged("another"), ended(2.0))
    assert state.phase is Phase.COMPILED and actions == ()
    assert {each.seconds for each in state.graph.steps} == {2.0} and len(state.graph.steps) == 64
    state, actions = follow(state, XlaRefused())
    assert state.phase is Phase.BOOTSTRAP and not state.graph.fits
    assert actions == (BeginAgain(leaves_fitting=True),)
    _, actions = follow(state, ended(fits=True))
    assert actions == (InspectGraphs(fits=True),)


def test_a_first_step_that_fits_needs_no_plan() -> None:
    _, actions = follow(TrainingState(), ended(fits=True))
    assert actions == (InspectGraphs(fits=True),)


def test_a_plan_is_profiled_installed_and_measured() -> None:
    state, actions = follow(TrainingState(), ended(), GraphSeen(Met.UNPLANNED))
    phases = [state.phase]
    while PlanRecorded(0) not in actions:
        state, actions = follow(state, ended())
        phases.append(state.phase)
    assert phases == [Phase.WARM, Phase.PROFILE, Phase.PROFILE, Phase.PROFILE]
    state, actions = follow(state, PLANNED)
    assert actions == (Install(0, PLAN, is_new=True),)
    state, actions = follow(state, ended())
    assert (state.phase, kinds(actions)) == (Phase.MEASURE, ["CheckApplied"])
    state, actions = follow(state, *GOOD)
    assert (state.phase, kinds(actions)) == (
        Phase.ADDRESSES,
        ["Keep", "Summarize", "PlanAddresses"],
    )
    state, actions = follow(state, AddressesSettled())
    assert (state.phase, kinds(actions)) == (Phase.STEADY, ["Remember"])


def test_a_function_that_is_traced_again_is_inspected_again() -> None:
    state, _ = follow(state_of(Phase.IDLE), ended())
    assert state.phase is Phase.IDLE
    assert follow(state, Retraced())[0].phase is Phase.BOOTSTRAP
    assert follow(state_of(Phase.STEADY), Retraced())[0].phase is Phase.STEADY


def test_a_forgotten_graph_is_seen_again() -> None:
    state, _ = follow(state_of(Phase.PROFILE, recorded=2), GraphForgotten())
    assert (state.phase, state.graph.recorded) == (Phase.BOOTSTRAP, 0)


def test_a_model_that_fits_runs_unchanged() -> None:
    state, actions = follow(state_of(Phase.PROFILE), Planned(0, "first", step_ns=5))
    assert state.graph.fits and not state.graph.moves
    assert (state.phase, kinds(actions)) == (
        Phase.STEADY,
        ["LeaveUnchanged", "Summarize"],
    )


@pytest.mark.parametrize(
    "event",
    [
        Planned(0, "first", problem="no plan fits."),
        Planned(0, "first", problem="nothing to plan.", is_profiled=False),
    ],
)
def test_without_a_plan_on_demand_swaps_stay(event: Planned) -> None:
    state, actions = follow(state_of(Phase.PROFILE), event)
    assert state.phase is Phase.STEADY and state.graph.function is None
    assert kinds(actions) == ["Withdraw", "Log"]
    assert actions[1].warns and event.problem in actions[1].text  # type: ignore[union-attr]


def test_without_addresses_a_plan_is_steady_at_once() -> None:
    state = dataclasses.replace(
        state_of(Phase.MEASURE, function=PLAN, is_profiled=True), plans_addresses=False
    )
    state, actions = follow(state, *GOOD)
    assert (state.phase, kinds(actions)) == (Phase.STEADY, ["Keep", "Summarize", "Remember"])


# Corrections


def test_a_wrong_prediction_is_corrected_at_most_three_times() -> None:
    state = state_of(Phase.MEASURE, function=PLAN, is_profiled=True)
    for _ in range(3):
        state, actions = follow(state, *OFF)
        assert kinds(actions) == ["PlanAgain"] and state.phase is Phase.MEASURE
        state, actions = follow(state, Planned(0, "first", function=PLAN))
        assert (state.phase, kinds(actions)) == (Phase.SETTLE, ["Install"])
        state, _ = follow(state, ended())
    state, actions = follow(state, *OFF)
    assert (state.phase, kinds(actions)) == (
        Phase.ADDRESSES,
        ["Keep", "Summarize", "PlanAddresses"],
    )


def test_the_best_measured_plan_stays() -> None:
    tried = (measured(PLAN, 1.0), measured(OTHER, 2.0, 200))
    state = state_of(Phase.MEASURE, function=OTHER, is_profiled=True, trials=tried)
    state, actions = follow(state, Planned(0, "first", problem="cannot be corrected"))
    assert state.graph.function == PLAN
    assert actions[0] == Install(0, PLAN)
    assert kinds(actions)[1:] == ["Keep", "Summarize", "PlanAddresses"]


def test_a_given_plan_is_not_corrected() -> None:
    state, _ = follow(TrainingState(), GraphSeen(Met.GIVEN, PLAN))
    state, actions = follow(state, *OFF)
    assert (state.phase, kinds(actions)) == (
        Phase.ADDRESSES,
        ["Keep", "Summarize", "PlanAddresses"],
    )


def test_a_given_plan_keeps_its_addresses() -> None:
    given = dataclasses.replace(PLAN, layouts=((),))
    state, _ = follow(TrainingState(), GraphSeen(Met.GIVEN, given))
    _, actions = follow(state, *GOOD)
    assert "Install" not in kinds(actions)


def test_a_remembered_plan_with_another_peak_is_made_again() -> None:
    state, _ = follow(TrainingState(), GraphSeen(Met.REMEMBERED, PLAN))
    state, actions = follow(state, *OFF)
    assert state.phase is Phase.WARM and state.graph == GraphState(phase=Phase.WARM)
    assert kinds(actions) == ["Log", "DropAddresses", "Withdraw"]
    assert actions[-1] == Withdraw(0, forgets=True)


def test_a_plan_that_is_slower_than_on_demand_swaps_is_given_up() -> None:
    state = state_of(Phase.MEASURE, function=PLAN, is_profiled=True, on_demand_s=(1.0, 1.2))
    slow = [ended(3.0)] * 8
    state, actions = follow(state, *slow[:7])
    assert state.phase is Phase.MEASURE and not actions  # other work on the machine may be why
    state, actions = follow(state, slow[7])
    assert state.phase is Phase.STEADY and state.graph.function is None
    assert kinds(actions) == ["Log", "Withdraw", "Summarize"]
    assert actions[1] == Withdraw(0, step_s=1.1)


# Sections


def test_other_numbers_of_sections_are_tried() -> None:
    first = GraphState(phase=Phase.PROFILE, sections=SectionSearch(True))
    state = TrainingState(searches=True, graphs=(first,))
    one = Planned(0, "one", 1, problem="no plan fits.", examples=8)
    state, actions = follow(state, one)
    assert (state.phase, kinds(actions)) == (Phase.BOOTSTRAP, ["Log", "Split"])
    assert actions[1] == Split(2, 8)
    state, _ = follow(state, ended(), GraphSeen(Met.UNPLANNED), ended(), ended())
    state, actions = follow(state, ended())
    assert PlanRecorded(0, searches=True) in actions
    two = Planned(0, "two", 2, plan("two"), step_ns=10, examples=8)
    state, actions = follow(state, two)
    assert (state.phase, kinds(actions)) == (Phase.SETTLE, ["Install"])
    assert state.graph.fingerprint == "two"


@pytest.mark.parametrize(
    "second",
    [
        Planned(0, "two", 2, plan("two"), step_ns=30, wait_ns=20, examples=8),
        Planned(0, "one", 2, is_split=False),
    ],
)
def test_the_better_number_of_sections_is_used(second: Planned) -> None:
    first = GraphState(phase=Phase.PROFILE, sections=SectionSearch(True))
    state = TrainingState(searches=True, graphs=(first,))
    one = Planned(0, "one", 1, plan("one"), step_ns=20, wait_ns=15, examples=8)
    state, _ = follow(state, one)
    state, actions = follow(state, second)
    assert kinds(actions) == ["Split", "Log", "Install"]
    assert actions[0] == Split(1, 8)
    assert state.graph.function == plan("one") and state.graph.on_demand_s == ()


def test_a_batch_that_cannot_be_split_is_not_searched() -> None:
    first = GraphState(sections=SectionSearch(True))
    state, _ = follow(TrainingState(searches=True, graphs=(first,)), BatchStaysWhole())
    assert not state.searches and not state.graph.sections.searches


# Another budget


@pytest.mark.parametrize("phase", [Phase.BOOTSTRAP, Phase.WARM, Phase.PROFILE, Phase.IDLE])
def test_before_the_first_plan_another_budget_is_only_noted(phase: Phase) -> None:
    state, actions = follow(state_of(phase), BudgetChanged("less is left"))
    assert state == state_of(phase) and kinds(actions) == ["NoteBudget"]


def test_another_budget_drops_the_plans_of_a_search() -> None:
    search = SectionSearch(True, 8, (SectionTrial(1, "first", PLAN, step_ns=100, wait_ns=50),))
    state = state_of(Phase.BOOTSTRAP, sections=search)
    state, _ = follow(state, BudgetChanged("less is left"))
    assert state.graph.sections == SectionSearch(True, 8)


@pytest.mark.parametrize("phase", [Phase.SETTLE, Phase.MEASURE, Phase.ADDRESSES, Phase.STEADY])
def test_another_budget_leads_to_a_new_plan_of_the_same_profile(phase: Phase) -> None:
    tried = (measured(PLAN),)
    state = state_of(phase, function=PLAN, is_profiled=True, trials=tried, on_demand_s=(1.0,))
    state, actions = follow(state, BudgetChanged("less is left"))
    assert kinds(actions) == ["Log", "DropAddresses", "NoteBudget", "PlanAgain"]
    assert state.graph.trials == () and state.graph.on_demand_s == ()
    state, actions = follow(state, Planned(0, "first", function=OTHER))
    assert (state.phase, state.graph.function) == (Phase.SETTLE, OTHER)


def test_a_budget_without_a_plan_leads_to_on_demand_swaps() -> None:
    state = state_of(Phase.STEADY, function=PLAN, is_profiled=True, trials=(measured(PLAN),))
    state, actions = follow(
        state, BudgetChanged("less is left"), Planned(0, "first", problem="no plan fits.")
    )
    assert state.phase is Phase.STEADY and state.graph.function is None
    assert kinds(actions) == ["Withdraw", "Log"]


def test_with_a_given_plan_another_budget_starts_again() -> None:
    state = state_of(Phase.STEADY, function=PLAN, origin=Origin.GIVEN)
    state, actions = follow(state, BudgetChanged("less is left"))
    assert state.phase is Phase.BOOTSTRAP and state.graph.function is None
    assert kinds(actions) == ["Log", "DropAddresses", "NoteBudget", "BeginAgain"]


def test_another_budget_plans_all_graphs_again() -> None:
    second = GraphState(Phase.STEADY, "second", plan("second"), is_profiled=True)
    first = state_of(Phase.STEADY, function=PLAN, is_profiled=True).graph
    state, actions = follow(TrainingState(graphs=(first, second)), BudgetChanged("less is left"))
    assert [a for a in actions if isinstance(a, PlanAgain)] == [PlanAgain(1), PlanAgain(0)]
    state, actions = follow(state, Planned(1, "second", problem="no plan fits."))
    assert kinds(actions) == ["Withdraw", "Log"]
    assert state.graphs[1].function is None and state.turn == 0


# Reassignment


def steady(**changes: object) -> TrainingState:
    state = state_of(Phase.STEADY, function=PLAN, is_profiled=True)
    state = dataclasses.replace(state, reassigns=True, since_reassigned=32)
    return dataclasses.replace(state, **changes)  # type: ignore[arg-type]


def test_tensors_are_reassigned_in_the_first_step_of_an_epoch() -> None:
    state, _ = follow(steady(), EpochBegan())
    assert state.samples
    state, actions = follow(state, ended())
    assert kinds(actions) == ["Reassign"] and state.since_reassigned == 0 and not state.samples
    state, actions = follow(state, Reassigned(OTHER))
    assert state.graph.function == OTHER and actions == (Install(0, OTHER),)


@pytest.mark.parametrize(
    "state",
    [
        steady(reassigns=False),
        steady(since_reassigned=31),
        steady(graphs=state_of(Phase.MEASURE, function=PLAN, is_profiled=True).graphs),
        steady(graphs=state_of(Phase.STEADY).graphs),
        steady(graphs=state_of(Phase.STEADY, function=FunctionPlan("first")).graphs),
    ],
)
def test_tensors_are_not_reassigned(state: TrainingState) -> None:
    assert not follow(state, EpochBegan())[0].samples


def test_another_rate_of_lossy_codecs_reassigns_sooner() -> None:
    assert follow(steady(since_reassigned=8), EpochBegan(has_new_rate=True))[0].samples
    assert not follow(steady(since_reassigned=8), EpochBegan())[0].samples


def test_only_the_latest_steps_are_kept() -> None:
    state, _ = follow(steady(), *[ended()] * 65)
    assert len(state.graph.steps) == 33


def test_a_plan_is_proven_by_its_own_measurement() -> None:
    assert state_of(Phase.STEADY, function=PLAN, trials=(measured(PLAN),)).graph.is_proven
    off = MeasuredPlan.of(PLAN, [step(peak_bytes=200)])
    assert not state_of(Phase.STEADY, function=PLAN, trials=(off,)).graph.is_proven
    assert not state_of(Phase.STEADY, trials=(measured(PLAN),)).graph.is_proven
