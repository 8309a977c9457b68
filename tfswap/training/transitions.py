"""next_state: what a training does next."""

from __future__ import annotations

import dataclasses
import statistics

from tfswap.plan.measured_plan import MeasuredPlan, best
from tfswap.plan.schema import FunctionPlan
from tfswap.training.events import (
    Action,
    AddressesSettled,
    BatchStaysWhole,
    BeginAgain,
    BudgetChanged,
    CheckApplied,
    DropAddresses,
    EpochBegan,
    Event,
    GraphForgotten,
    GraphsCounted,
    GraphSeen,
    InspectGraphs,
    Install,
    Keep,
    LeaveUnchanged,
    Log,
    Met,
    NoteBudget,
    PlanAddresses,
    PlanAgain,
    Planned,
    PlanRecorded,
    Reassign,
    Reassigned,
    Remember,
    ResumeAddresses,
    Retraced,
    Split,
    StepEnded,
    Summarize,
    Withdraw,
    XlaRefused,
)
from tfswap.training.further_graphs import Step, counts, watch_graphs
from tfswap.training.section_search import SectionSearch, SectionTrial, sections_of
from tfswap.training.states import Counted, GraphState, Origin, Phase, TrainingState

PROFILED_STEPS = 2
MAX_CORRECTIONS = 3
# Steps of a plan that are measured; and where it seems slower than on-demand swaps, because other
# work on the machine may be why.
_MEASURED_STEPS, _DOUBTED_STEPS = 2, 8
# Steps of other graphs or shapes to wait for one that counts: to profile it, and to measure a plan,
# which holds without that, too.
_PATIENCE, _PATIENCE_TO_MEASURE = 64, 16
# Measured steps of a settled plan that are kept, and how many are dropped when there are more.
_MAX_STEPS, _DROPPED = 64, 32
# Steps between two reassignments of tensors; and where lossy codecs have a new rate.
_STEPS_BETWEEN, _STEPS_AT_A_RATE = 32, 8


def next_state(state: TrainingState, event: Event) -> Step:
    """Return the next state and the actions that it needs, in order.

    An action that is answered by an event (see `tfswap.training.events`) is the last one of its
    graph.
    """
    match event:
        case StepEnded():
            return _step_ended(state, event)
        case GraphSeen():
            return _graph_seen(state, event)
        case Planned():
            return _planned(state, event)
        case GraphForgotten():
            if state.turn:
                return _leave(state)
            return state.put(0, phase=Phase.BOOTSTRAP, recorded=0), ()
        case AddressesSettled():
            if state.graphs[0].phase is not Phase.ADDRESSES:
                return state, ()
            state = state.put(0, phase=Phase.STEADY, steps=())
            return state, ((Remember(0),) if state.graphs[0].is_proven else ())
        case BudgetChanged():
            return _budget_changed(state, event)
        case EpochBegan(has_new_rate):
            due = _STEPS_AT_A_RATE if has_new_rate else _STEPS_BETWEEN
            return dataclasses.replace(state, reassigns_next=state.may_reassign(due)), ()
        case Reassigned(function):
            return state.put(0, function=function, steps=()), (Install(0, function),)
        case GraphsCounted(has_unplanned):
            return dataclasses.replace(state, watch=state.watch.looked(has_unplanned)), ()
        case Retraced():
            is_idle = state.phase is Phase.IDLE
            return (state.put(0, phase=Phase.BOOTSTRAP) if is_idle else state), ()
        case XlaRefused():
            return state.begun_again(), (BeginAgain(state.leaves_fitting),)
        case BatchStaysWhole():
            return dataclasses.replace(state, searches=False).put(0, sections=SectionSearch()), ()


# Steps


def _step_ended(state: TrainingState, event: StepEnded) -> Step:
    graph = state.graph
    if graph.phase is Phase.IDLE:
        return state, ()
    if state.counted is not None:
        if not counts(state, event):
            return _other_step(state, state.counted)
        state = dataclasses.replace(state, counted=dataclasses.replace(state.counted, others=0))
    state = dataclasses.replace(state, since_reassigned=state.since_reassigned + 1)
    if graph.phase is Phase.COMPILED:
        if not graph.fits:  # the first step, in which XLA compiles
            return state.put(0, fits=True), (Summarize(),)
        return state.put(0, steps=(*graph.steps, event.step)[-_MAX_STEPS:]), ()
    if graph.phase is Phase.BOOTSTRAP:
        return state, (InspectGraphs(event.fits and state.leaves_fitting),)
    if graph.phase is Phase.WARM:
        return state.put(state.turn, phase=Phase.PROFILE, recorded=0), ()
    if graph.phase is Phase.PROFILE:
        recorded = graph.recorded + 1
        state = state.put(state.turn, recorded=recorded)
        if recorded < PROFILED_STEPS:
            return state, ()
        log = Log(f"profiled {recorded} steps, planning ...", keeps=False)
        return state, (log, PlanRecorded(state.turn, bool(graph.sections.trials)))
    if graph.phase is Phase.SETTLE:
        return state.put(state.turn, phase=Phase.MEASURE, steps=()), (CheckApplied(state.turn),)
    state = state.put(state.turn, steps=(*graph.steps, event.step))
    if graph.phase is Phase.MEASURE:
        return _measured(state)
    return _settled_step(state, event)


def _other_step(state: TrainingState, counted: Counted) -> Step:
    """Wait for a step that counts, up to a limit."""
    others = counted.others + 1
    limit = _PATIENCE_TO_MEASURE if state.phase.has_planned else _PATIENCE
    if others < limit:
        return dataclasses.replace(state, counted=dataclasses.replace(counted, others=others)), ()
    actions: tuple[Action, ...] = ()
    if state.turn:
        state, actions = _leave(state)
    state = dataclasses.replace(state, counted=None)
    if not counted.larger:
        return state, actions
    state, more = _plan_all_again(state, "steps for larger tensors come no more")
    return state, (*actions, *more)


def _measured(state: TrainingState) -> Step:
    """Decide about a plan: correct it, drop it or keep it."""
    turn, graph = state.turn, state.graph
    if graph.function is None or len(graph.steps) < _MEASURED_STEPS:
        return state, ()
    trial = MeasuredPlan.of(graph.function, graph.steps)
    if trial.is_slower_than(graph.on_demand_s) and len(graph.steps) < _DOUBTED_STEPS:
        return state, ()
    if graph.origin is Origin.REMEMBERED and not trial.is_as_predicted:
        note = Log("the remembered plan needs another peak than predicted: it is made again")
        first = GraphState(phase=Phase.WARM, sections=graph.sections)
        state = dataclasses.replace(state, graphs=(first, *state.graphs[1:]))
        return state, (note, DropAddresses(), Withdraw(0, forgets=True))
    state = state.put(turn, trials=(*graph.trials, trial))
    if not trial.is_as_predicted and graph.is_profiled and len(graph.trials) < MAX_CORRECTIONS:
        return state, (PlanAgain(turn, corrects=trial),)
    return _choose(state)


def _choose(state: TrainingState) -> Step:
    """Keep the best of the measured plans, unless on-demand swaps are clearly faster."""
    turn, graph = state.turn, state.graph
    chosen = best(graph.trials)
    if chosen.is_slower_than(graph.on_demand_s):
        on_demand_s = statistics.median(graph.on_demand_s)
        note = Log(
            f"the plan was given up: with it, a step took {chosen.step_s:.3g} s, under on-demand "
            f"swaps {on_demand_s:.3g} s. Training goes on under those."
        )
        state = state.put(turn, function=None)
        return _settle(state, (note, Withdraw(turn, step_s=on_demand_s)), plans_addresses=False)
    actions: tuple[Action, ...] = (Keep(turn, chosen),)
    if graph.function is None or dataclasses.replace(graph.function, layouts=()) != chosen.function:
        state = state.put(turn, function=chosen.function)
        actions = (Install(turn, chosen.function), *actions)
    return _settle(state.put(turn, origin=Origin.PROFILE), actions)


def _settle(
    state: TrainingState, actions: tuple[Action, ...], plans_addresses: bool = True
) -> Step:
    """End the turn of a graph whose plan, or whose on-demand swaps, stay."""
    if state.turn:
        state, more = _leave(state)
        return state, (*actions, *more)
    state = dataclasses.replace(state, counted=None)
    actions = (*actions, Summarize())
    if plans_addresses and state.plans_addresses:
        return state.put(0, phase=Phase.ADDRESSES, steps=()), (*actions, PlanAddresses())
    remember = (Remember(0),) if state.graphs[0].is_proven else ()
    return state.put(0, phase=Phase.STEADY, steps=()), (*actions, *remember)


def _leave(state: TrainingState) -> Step:
    """Return from a further graph to the first one."""
    graph, is_new = state.graph, state.counted is None or not state.counted.larger
    watch = state.watch if graph.moves else state.watch.refuse(graph.fingerprint)
    state = state.put(state.turn, phase=Phase.STEADY)
    state = dataclasses.replace(state, turn=0, counted=None, watch=watch)
    state = state.put(0, steps=())
    if not graph.moves or graph.function is None:
        return state, (ResumeAddresses(),)
    planned = sum(each.is_profiled for each in state.graphs)
    note = Log(
        f"{planned} graphs of this training (for other shapes, say) have plans of their own: in "
        f"the last one {len(graph.function.swaps)} tensors are swapped and "
        f"{len(graph.function.recomputes)} recomputed, for steps of "
        f"{graph.function.predicted_step_ns / 1e9:.3g} s"
    )
    return state, ((note,) if is_new else ()) + (ResumeAddresses(),)


# The first step


def _graph_seen(state: TrainingState, event: GraphSeen) -> Step:
    if event.met is Met.INFERENCE:
        return state.put(0, phase=Phase.IDLE), ()
    if event.met is Met.NOTHING:
        return state.put(0, phase=Phase.STEADY), ()
    if event.met in (Met.LEFT, Met.FITS):
        state = state.put(0, phase=Phase.STEADY, fingerprint=event.fingerprint, fits=True, steps=())
        leave: tuple[Action, ...] = (LeaveUnchanged(0),) if event.met is Met.FITS else ()
        return state, (*leave, Summarize())
    if event.function is None:
        phase = Phase.BOOTSTRAP if event.met is Met.RENAMED else Phase.WARM
        return state.put(0, phase=phase), ()
    is_given = event.met is Met.GIVEN
    state = state.put(
        0,
        phase=Phase.MEASURE,
        fingerprint=event.function.fingerprint,
        function=event.function,
        origin=Origin.GIVEN if is_given else Origin.REMEMBERED,
        is_profiled=not is_given,
        steps=(),
    )
    return state, ((Install(0, event.function),) if is_given else ())


# Plans


def _planned(state: TrainingState, event: Planned) -> Step:
    index, graph = event.graph, state.graphs[event.graph]
    if graph.phase is Phase.MEASURE:  # it was to be corrected
        if event.function is None:
            return _choose(state)
        state = state.put(index, function=event.function, phase=Phase.SETTLE, steps=())
        return state, (Install(index, event.function, is_new=True),)
    if not event.is_profiled:
        return _stay_on_demand(state, index, event.problem)
    search = graph.sections
    if search.trials and not event.is_split:
        search = dataclasses.replace(search, searches=False)
    else:
        search = dataclasses.replace(search, examples=search.examples or event.examples)
        search = search.add(
            SectionTrial(
                event.sections,
                event.fingerprint,
                event.function,
                event.problem,
                event.step_ns,
                event.wait_ns,
            )
        )
    state = state.put(
        index,
        sections=search,
        fingerprint=event.fingerprint,
        is_profiled=True,
        on_demand_s=event.on_demand_s,
        origin=Origin.PROFILE,
    )
    sections = search.next()
    if sections is None:
        return _use(state, event, search.best)
    note = Log(f"{search.reason}: {sections_of(sections)} are tried")
    state = state.put(index, phase=Phase.BOOTSTRAP, function=None, fits=False)
    return state, (note, Split(sections, search.examples))


def _use(state: TrainingState, event: Planned, trial: SectionTrial) -> Step:
    """Use the best number of sections, and its plan."""
    index = event.graph
    actions: tuple[Action, ...] = ()
    if trial.sections != event.sections or trial.fingerprint != event.fingerprint:
        state = state.put(index, fingerprint=trial.fingerprint, on_demand_s=())
        examples = state.graphs[index].sections.examples
        note = Log(f"training goes on with {sections_of(trial.sections)}")
        actions = (Split(trial.sections, examples), note)
    if trial.problem:
        state, more = _stay_on_demand(state, index, trial.problem)
        return state, (*actions, *more)
    fits = trial.function is None
    function = trial.function or FunctionPlan(trial.fingerprint)
    state = state.put(index, function=function, fits=fits, steps=())
    actions = (*actions, LeaveUnchanged(index) if fits else Install(index, function, is_new=True))
    if index != state.turn:
        return state.put(index, phase=Phase.STEADY), actions
    if fits:
        return _settle(state, actions, plans_addresses=False)
    if event.varies and state.counted is None:
        state = dataclasses.replace(state, counted=Counted(trial.fingerprint))
    return state.put(index, phase=Phase.SETTLE), actions


def _stay_on_demand(state: TrainingState, index: int, problem: str) -> Step:
    """Go on without a plan; or with the plan that there was before larger tensors came."""
    graph = state.graphs[index]
    if graph.trials:
        function: FunctionPlan | None = best(graph.trials).function
        actions: tuple[Action, ...] = (Install(index, best(graph.trials).function),)
    else:
        function = None
        text = f"{problem} Training goes on under on-demand swaps, which keep the budget but wait."
        actions = (Withdraw(index), Log(text, warns=True))
    state = state.put(index, function=function, fits=False, steps=(), phase=Phase.STEADY)
    if index != state.turn:
        return state, actions
    if index:
        state, more = _leave(state)
        return state, (*actions, *more)
    return dataclasses.replace(state, counted=None), actions


def _budget_changed(state: TrainingState, event: BudgetChanged) -> Step:
    actions: tuple[Action, ...] = ()
    if state.turn:
        state, actions = _leave(state)
    if not state.phase.has_planned:
        # A search for sections goes on without the plans that it made for another budget.
        search = dataclasses.replace(state.graph.sections, trials=())
        return state.put(0, sections=search), (*actions, NoteBudget(0))
    state, more = _plan_all_again(state, event.reason)
    return state, (*actions, *more)


def _plan_all_again(state: TrainingState, reason: str) -> Step:
    """Plan each graph from its profile, for the budget and link as they are now."""
    actions: list[Action] = [Log(f"{reason}: a new plan is made"), DropAddresses()]
    if not state.graphs[0].is_profiled:
        return state.begun_again(), (*actions, NoteBudget(0), BeginAgain(state.leaves_fitting))
    state = dataclasses.replace(state, counted=None)
    for index, graph in reversed(list(enumerate(state.graphs))):
        if not graph.is_profiled:
            continue
        state = state.put(
            index,
            phase=Phase.PROFILE if index == 0 else Phase.STEADY,
            origin=Origin.PROFILE,
            trials=(),
            on_demand_s=(),
            sections=SectionSearch(state.searches and index == 0, graph.sections.examples),
        )
        actions += [NoteBudget(index), PlanAgain(index)]
    return state, tuple(actions)


# A settled plan


def _settled_step(state: TrainingState, event: StepEnded) -> Step:
    if state.graph.fits and not event.fits:
        return _plan_after_all(state)
    steps = state.graph.steps
    if len(steps) > _MAX_STEPS:
        state = state.put(state.turn, steps=steps[_DROPPED:])
    actions: tuple[Action, ...] = ()
    if state.reassigns_next:
        state = dataclasses.replace(state, reassigns_next=False, since_reassigned=0)
        actions = (Reassign(),)
    state, more = watch_graphs(state, event)
    return state, (*actions, *more)


def _plan_after_all(state: TrainingState) -> Step:
    """Begin again: a graph that clearly fit needs more now.

    That happens once at most: afterwards no graph counts as one that fits without a plan.
    """
    note = Log("a step needed more memory than before, near the budget: a plan is made")
    state = dataclasses.replace(state.begun_again(), leaves_fitting=False)
    return state, (note, DropAddresses(), NoteBudget(0), BeginAgain(leaves_fitting=False))
