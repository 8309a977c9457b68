"""Properties of the state machine, after any order of events."""

from __future__ import annotations

import dataclasses
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from trainings import ended, plan, step

from tfswap.plan.schema import FunctionPlan
from tfswap.training.events import (
    Action,
    AddressesSettled,
    BatchStaysWhole,
    BeginAgain,
    BudgetChanged,
    CountGraphs,
    EpochBegan,
    Event,
    GraphForgotten,
    GraphsCounted,
    GraphSeen,
    InspectGraphs,
    Install,
    LeaveUnchanged,
    Met,
    PlanAddresses,
    PlanAgain,
    Planned,
    PlanRecorded,
    Reassign,
    Reassigned,
    Retraced,
    Split,
    StepEnded,
    Withdraw,
)
from tfswap.training.graph_watch import MAX_GRAPHS
from tfswap.training.section_search import SectionSearch
from tfswap.training.states import GraphState, Phase, TrainingState
from tfswap.training.transitions import next_state

GRAPHS = ("first", "second", "third")
BUDGETS = (50, 100, 200)
FITS = "fits"


class Training:
    """A training without devices: executes actions with answers that are drawn.

    Attributes:
        state: Its state.
        budget: The budget of the device.
        installed: By graph: the installed plan, `FITS` for an unchanged graph, or None for
            on-demand swaps.
    """

    def __init__(self, data: st.DataObject, regular: bool = False) -> None:
        self._data = data
        self._regular = regular  # whether all steps are of one graph, and do as predicted
        self.budget = max(BUDGETS)
        searches = False if regular else data.draw(st.booleans())
        first = GraphState(sections=SectionSearch(searches))
        self.state = TrainingState(
            plans_addresses=data.draw(st.booleans()),
            plans_further=not regular,
            reassigns=data.draw(st.booleans()),
            searches=searches,
            graphs=(first,),
        )
        self.sections = 1
        self.installed: dict[int, FunctionPlan | str | None] = {0: None}

    def handle(self, event: Event) -> None:
        events = deque([event])
        for _ in range(100):
            if not events:
                return
            self.state, actions = next_state(self.state, events.popleft())
            for action in actions:
                answer = self._execute(action)
                if answer is not None:
                    events.append(answer)
        raise AssertionError("actions and their answers never end")

    def _execute(self, action: Action) -> Event | None:
        draw = self._data.draw
        if isinstance(action, InspectGraphs):
            met = Met.UNPLANNED if self._regular else draw(st.sampled_from(Met))
            if not action.fits and met is Met.FITS:
                met = Met.UNPLANNED
            if met is Met.LEFT:
                self.installed[0] = FITS
            function = None
            if met in (Met.GIVEN, Met.REMEMBERED):
                function = self._plan(self.state.graphs[0].fingerprint or "first")
                if met is Met.REMEMBERED:
                    self.installed[0] = function
            return GraphSeen(met, function, "first")
        if isinstance(action, PlanRecorded):
            if not self._regular and draw(st.integers(0, 9)) == 0:
                return GraphForgotten()
            return self._planned(action.graph)
        if isinstance(action, PlanAgain):
            assert self.state.graphs[action.graph].is_profiled
            return self._planned(action.graph)
        if isinstance(action, Install):
            self.installed[action.graph] = action.function
        elif isinstance(action, LeaveUnchanged):
            self.installed[action.graph] = FITS
        elif isinstance(action, Withdraw):
            self.installed[action.graph] = None
        elif isinstance(action, BeginAgain):
            self.installed = {0: None}
        elif isinstance(action, Split):
            self.installed[0] = None
            self.sections = action.sections
        elif isinstance(action, PlanAddresses):
            return AddressesSettled() if draw(st.booleans()) else None
        elif isinstance(action, Reassign):
            function = self.installed.get(0)
            if isinstance(function, FunctionPlan) and draw(st.booleans()):
                return Reassigned(function)
        elif isinstance(action, CountGraphs):
            return GraphsCounted(draw(st.booleans()))
        return None

    def _plan(self, fingerprint: str) -> FunctionPlan:
        return plan(fingerprint, self.budget)

    def _planned(self, graph: int) -> Planned:
        draw = self._data.draw
        fingerprint = self.state.graphs[graph].fingerprint or f"first{self.sections}"
        found = Planned(graph, fingerprint, self.sections, examples=8)
        answer = draw(st.sampled_from(["plan", "fits", "problem"]))
        if not self._regular:
            found = dataclasses.replace(
                found,
                varies=draw(st.booleans()),
                is_split=graph > 0 or draw(st.integers(0, 4)) > 0,
                on_demand_s=draw(st.sampled_from([(), (1.0, 1.0)])),
            )
        if answer == "fits":
            return found
        if answer == "problem":
            is_profiled = draw(st.booleans())
            return dataclasses.replace(found, problem="no plan fits.", is_profiled=is_profiled)
        wait_ns = draw(st.sampled_from([0, 50]))
        function = self._plan(fingerprint)
        return dataclasses.replace(found, function=function, step_ns=100, wait_ns=wait_ns)

    def step(self) -> None:
        """End a step of any graph, which did as predicted or not."""
        draw = self._data.draw
        graph = draw(st.sampled_from((*GRAPHS, None)))
        measured = step(
            draw(st.sampled_from([0.5, 1.0, 3.0])),
            draw(st.sampled_from(BUDGETS)),
            needed_bytes=draw(st.sampled_from([0, 300])),
        )
        fits, before = draw(st.booleans()), self.state
        self.handle(StepEnded(measured, graph, draw(st.booleans()), draw(st.booleans()), fits))
        if before.phase.is_settled and before.graph.fits and before.counted is None and not fits:
            assert not self.state.graph.fits

    def check(self) -> None:
        """Check what holds between any two steps."""
        state = self.state
        assert 1 <= len(state.graphs) <= MAX_GRAPHS
        assert state.turn == 0 or state.counted is not None
        for index, graph in enumerate(state.graphs):
            installed = self.installed.get(index)
            # A graph has a plan or on-demand swaps; it is unchanged only if it fits.
            assert (installed == FITS) == graph.fits, (index, graph)
            if not graph.fits:
                assert graph.function == installed, (index, graph)
            # No plan needs more than the budget that it was made for, nor than the present one.
            if isinstance(installed, FunctionPlan):
                assert installed.predicted_peak_bytes <= self.budget


OTHER_EVENTS = st.sampled_from(
    [EpochBegan(), EpochBegan(True), Retraced(), AddressesSettled(), BatchStaysWhole(), "budget"]
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_after_any_events_each_graph_has_a_plan_within_the_budget_or_on_demand_swaps(
    data: st.DataObject,
) -> None:
    training = Training(data)
    for _ in range(data.draw(st.integers(1, 60))):
        if data.draw(st.integers(0, 5)):
            training.step()
        else:
            event = data.draw(OTHER_EVENTS)
            if event == "budget":
                training.budget = data.draw(st.sampled_from(BUDGETS))
                event = BudgetChanged("the budget changed")
            training.handle(event)  # type: ignore[arg-type]
        training.check()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_training_of_one_graph_settles(data: st.DataObject) -> None:
    training = Training(data, regular=True)
    for _ in range(40):
        peak_bytes = data.draw(st.sampled_from(BUDGETS))
        seconds = data.draw(st.sampled_from([0.5, 3.0]))
        # What fits goes on to fit: otherwise each such step begins the training again.
        training.handle(ended(seconds, peak_bytes, fits=training.state.graph.fits))
        training.check()
    training.handle(AddressesSettled())
    assert training.state.phase is Phase.STEADY


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_training_settles_again_after_any_events(data: st.DataObject) -> None:
    """Steps of the graph that is waited for, and of no other one, end each wait."""
    training = Training(data)
    for _ in range(data.draw(st.integers(1, 40))):
        training.step()
    for _ in range(300):
        counted = training.state.counted
        graph = counted.fingerprint if counted else None
        training.handle(StepEnded(step(), graph, True, True))
        training.handle(AddressesSettled())
        if training.state.phase in (Phase.STEADY, Phase.IDLE) and training.state.turn == 0:
            return
    raise AssertionError(training.state.phase)
