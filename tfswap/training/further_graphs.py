"""Plan a further graph of a training, or a planned one for larger tensors, that runs often."""

from __future__ import annotations

import dataclasses

from tfswap.plan.measured_plan import MeasuredPlan
from tfswap.training.events import Action, CountGraphs, DropAddresses, Log, StepEnded, Withdraw
from tfswap.training.graph_watch import MAX_GRAPHS
from tfswap.training.section_search import SectionSearch
from tfswap.training.states import Counted, GraphState, Phase, TrainingState

# Steps under the old plan that a plan for larger tensors is compared with.
_LATEST = 8

Step = tuple[TrainingState, tuple[Action, ...]]
"""The next state of a training, and the actions that it needs."""


def counts(state: TrainingState, event: StepEnded) -> bool:
    """Return whether a step counts for the graph whose turn it is."""
    counted = state.counted
    if counted is None:
        return True
    if event.graph != counted.fingerprint:
        return False
    if state.phase.has_planned:
        return event.is_like_profiled
    return event.is_larger or not counted.larger


def watch_graphs(state: TrainingState, event: StepEnded) -> Step:
    """Plan a further graph, or one for larger tensors, that runs often."""
    if not state.plans_further or not state.graphs[0].fingerprint:
        return state, ()
    if len(state.graphs) >= MAX_GRAPHS:
        return state, ()
    watch, is_time = state.watch.step_ended(event.step.needed_bytes > 0)
    state = dataclasses.replace(state, watch=watch)
    planned = frozenset(graph.fingerprint for graph in state.graphs)
    actions: tuple[Action, ...] = (CountGraphs(planned),) if is_time else ()
    if not watch.has_unplanned or event.graph is None:
        return state, actions
    index = state.index(event.graph)
    is_known = index is not None and (index == 0 or state.graphs[index].is_profiled)
    watch = watch.ran(event.graph, event.step.bytes_out > 0, is_known and not event.is_larger)
    state = dataclasses.replace(state, watch=watch)
    if not watch.is_due(event.graph):
        return state, actions
    if index is None or not is_known:
        state, more = _plan_further(state, event.graph, index)
    else:
        state, more = _plan_larger(state, index)
    return state, (*actions, *more)


def _plan_further(state: TrainingState, fingerprint: str, index: int | None) -> Step:
    graph = GraphState(phase=Phase.WARM, fingerprint=fingerprint)
    graphs = list(state.graphs)
    if index is None:
        index = len(graphs)
        graphs.append(graph)
    else:
        graphs[index] = graph
    state = dataclasses.replace(
        state,
        graphs=tuple(graphs),
        turn=index,
        counted=Counted(fingerprint),
        watch=state.watch.restart(),
    )
    return state, (DropAddresses(fingerprint),)


def _plan_larger(state: TrainingState, index: int) -> Step:
    """Profile a planned graph again, in steps for larger tensors: smaller ones fit, too."""
    graph, steps = state.graphs[index], state.graphs[0].steps
    if graph.function is None or not graph.moves or not graph.is_profiled:
        return state, ()
    note = Log(
        "steps for larger tensors than were planned come often: they are profiled, for a plan that "
        "has room for them"
    )
    state = state.put(
        index,
        phase=Phase.WARM,
        function=None,
        steps=(),
        trials=(MeasuredPlan.of(graph.function, steps[-_LATEST:]),),
        sections=SectionSearch(),
    )
    watch = state.watch.profiled_larger(graph.fingerprint)
    counted = Counted(graph.fingerprint, larger=True)
    state = dataclasses.replace(state, turn=index, counted=counted, watch=watch)
    return state, (note, DropAddresses(graph.fingerprint), Withdraw(index))
