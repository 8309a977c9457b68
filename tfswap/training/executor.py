"""Executor: execute the actions of a training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tfswap.plan.measured_plan import MeasuredPlan, MeasuredStep
from tfswap.plan.schema import FunctionPlan
from tfswap.planning.planners.assignment import FarMemoryTooSmall
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.report.out_of_memory import is_out_of_memory, with_floor
from tfswap.report.run_report import RunReport
from tfswap.report.summary import Report, summary_lines
from tfswap.step.op_floor import StepFloor
from tfswap.training.context import TrainingContext
from tfswap.training.events import (
    Action,
    AddressesSettled,
    BeginAgain,
    CheckApplied,
    CountGraphs,
    DropAddresses,
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
    Split,
    Summarize,
    Withdraw,
)
from tfswap.training.first_step import FirstStep
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.remembered_plans import RememberedPlans
from tfswap.training.step_addresses import StepAddresses
from tfswap.training.step_planner import Forgotten, StepPlanner
from tfswap.training.step_recordings import StepRecordings

FindFloor = Callable[[int], StepFloor]
"""Return the floor of a step; tensors below so many bytes do not leave."""


class Executor:
    """Execute the actions of one training.

    Args:
        context: The training.
        plan: Its installed plan.
        remembered: The plan cache.
        first_step: Inspects the first step.
        addresses: Plans addresses.
        recordings: Has the recorded steps.
        chooses: Whether the pass chooses the number of sections.
    """

    def __init__(
        self,
        context: TrainingContext,
        plan: InstalledPlan,
        remembered: RememberedPlans,
        first_step: FirstStep,
        addresses: StepAddresses,
        recordings: StepRecordings,
        chooses: bool,
    ) -> None:
        self._context = context
        self._plan = plan
        self._remembered = remembered
        self._first_step = first_step
        self._addresses = addresses
        self._recordings = recordings
        self._chooses = chooses
        self._shapes_vary = False  # in steps of one graph
        self._planners: list[StepPlanner] = []  # by graph
        self._by_sections: dict[int, StepPlanner] = {}  # of the first graph

    def planner(self, graph: int) -> StepPlanner:
        """Return the planner of a graph."""
        while len(self._planners) <= graph:
            self._planners.append(StepPlanner(self._context))
        return self._planners[graph]

    def leave_whole(self) -> None:
        """Install a plan that does not split the batch."""
        self._chooses = False
        self._plan.push(dataclasses.replace(self._plan.plan.in_sections(1), chooses=False))

    def failed(self, error: BaseException, find: FindFloor | None) -> BaseException:
        """Return the error of a failed step, with the floor of the step if memory ran out.

        Args:
            error: The error.
            find: Finds the floor of a step without a profile; None if that is impossible.
        """
        if is_out_of_memory(error):
            floor = self._floor(find)
            if floor is not None:
                devices = self._context.devices
                leave = devices.streams_weights
                forbidden = not self._context.options.may_stream_weights
                error = with_floor(error, floor, devices.budget_bytes, leave, forbidden)
        self._context.report.failed(error)
        return error

    def _floor(self, find: FindFloor | None) -> StepFloor | None:
        profile = self._planners[0].profile if self._planners else None
        if profile is not None:
            return profile.floor
        if find is None or self._plan.plan.sections > 1:
            return None
        try:
            return find(self._plan.plan.min_bytes)
        except Exception as error:  # anything may fail in a model's code
            self._context.log.say(f"the floor of the step is unknown: {error}")
            return None

    def update_report(
        self, steps: Sequence[MeasuredStep], measured: MeasuredPlan | None = None
    ) -> None:
        """Bring the report up to date.

        Args:
            steps: The latest steps.
            measured: The plan that counts instead of them, if it was just measured.
        """
        report = self._context.report
        report.report.tiers = self._context.devices.tiers()
        report.report.lossy = self._context.lossy.use()
        report.measured(steps, measured)

    def execute(self, action: Action) -> Event | None:  # noqa: C901, PLR0912
        """Execute an action; return the event that answers it, if there is one."""
        match action:
            case Log(text, warns, keeps):
                log = self._context.log
                (log.warn if warns else log.note if keeps else log.say)(text)
            case InspectGraphs(fits):
                self._context.library.trim_malloc()  # of tracing and optimising
                return self._inspected(fits)
            case PlanRecorded(graph, searches):
                if not searches:
                    self._by_sections.clear()
                return self._plan_recorded(graph)
            case PlanAgain(graph, corrects):
                return self._plan_again(graph, corrects)
            case Install(graph, function, is_new):
                self._install(graph, function, is_new)
            case LeaveUnchanged(graph):
                self._leave_unchanged(graph)
            case Withdraw(graph, forgets, step_s):
                self._withdraw(graph, forgets, step_s)
            case BeginAgain(leaves_fitting):
                self._planners.clear()
                self._plan.leaves_fitting &= leaves_fitting
                self._first_step.is_given = False
                self._plan.push(dataclasses.replace(self._plan.plan, functions=()))
                self._context.report.withdrawn()
            case Split(sections, examples):
                self._split(sections, examples)
            case NoteBudget(graph):
                self.note_budget(graph)
            case CheckApplied(graph):
                self._check_applied(graph)
            case Keep(graph, measured):
                if graph == 0:
                    self.update_report((), measured)
                self._plan.save()
            case Summarize():
                self._summarize()
            case Remember(graph):
                self._remember(graph)
            case PlanAddresses():
                if not self._addresses.begin(self.planner(0).fingerprint):
                    return AddressesSettled()
            case DropAddresses(fingerprint):
                if fingerprint in ("", self.planner(0).fingerprint):
                    self._addresses.end()
                self._plan.forget_layouts(fingerprint)
            case ResumeAddresses():
                self._context.report.report.plan = self._plan.plan
                self._addresses.expect()
            case Reassign():
                return self._reassign()
            case CountGraphs(planned):
                return GraphsCounted(bool(self._first_step.training_graphs() - planned))
        return None

    def _inspected(self, fits: bool) -> GraphSeen | Planned:
        seen = self._first_step.inspect(self.planner(0), self._chooses, fits)
        if isinstance(seen, GraphSeen) and seen.met in (Met.LEFT, Met.FITS):
            self.planner(0).fingerprint = seen.fingerprint
            if self._context.devices.refresh_auto_budget():
                self.note_budget(0)
            self._context.report.fits()
        return seen

    # Plans

    def _plan_recorded(self, graph: int) -> Planned | GraphForgotten:
        traces, seconds = self._recordings.fastest(), tuple(self._recordings.seconds)
        self._shapes_vary |= self._recordings.vary
        self._recordings.clear()
        fingerprint = traces[self._context.devices.device].main_graph() or ""
        # Steps under a remembered plan do not tell what steps take on demand.
        on_demand_s = seconds if self._remembered.plan(fingerprint) is None else ()
        if not self._note_sections(graph, fingerprint):
            return Planned(graph, fingerprint, self._plan.plan.sections, is_split=False)
        planner = self.planner(graph)
        try:
            profile = planner.read(traces, self._plan.plan.min_bytes)
        except Forgotten:
            self._plan.push_with_new_label()
            return GraphForgotten()
        except ValueError as error:
            return Planned(graph, fingerprint, problem=str(error), is_profiled=False)
        if graph == 0 and self._context.devices.refresh_auto_budget():
            self.note_budget(0)
        self._report(graph).profiled(profile, planner.least_budgets())
        return self._planned(graph, on_demand_s)

    def _note_sections(self, graph: int, fingerprint: str) -> bool:
        """Note the number of sections of a profiled step; return whether it was split at all."""
        records = self._context.library.pass_records()
        record = next((r for r in records if r["fingerprint"] == fingerprint), None)
        if record is None or graph > 0:
            return True
        sections, examples = record["sections"], record["examples"]
        if sections == 1 and self._by_sections:
            return False
        self._context.report.report.sections = sections
        if self._chooses and not self._by_sections:
            self._plan.note(batch=examples)
            self._plan.plan = self._plan.plan.in_sections(sections)
        elif sections > 1 and not self._plan.plan.batch:
            self._plan.note(batch=examples)
        return True

    def _plan_again(self, graph: int, corrects: MeasuredPlan | None) -> Planned:
        if corrects is None:
            self._by_sections.clear()
        else:
            self.planner(graph).correct(corrects)
            self._report(graph).report.corrections += 1
        return self._planned(graph)

    def _planned(self, graph: int, on_demand_s: tuple[float, ...] = ()) -> Planned:
        """Plan the profile of a graph."""
        planner, sections = self.planner(graph), self._plan.plan.sections
        profile = planner.profile
        assert profile is not None
        if graph == 0:
            self._by_sections[sections] = planner
        found = Planned(
            graph,
            profile.fingerprint,
            sections,
            step_ns=profile.timeline.step_ns,
            examples=self._plan.plan.batch,
            varies=self._shapes_vary or len(self._first_step.training_graphs()) > 1,
            on_demand_s=on_demand_s,
        )
        most_bytes = self._context.devices.fitting_bytes
        may_leave = self._plan.leaves_fitting and self._plan.may_lose_order
        if may_leave and profile.worst_peak_bytes <= most_bytes:
            return found
        try:
            planned = planner.plan()
        except (BudgetTooSmall, FarMemoryTooSmall) as error:
            return dataclasses.replace(found, problem=planner.advised(error, sections))
        return dataclasses.replace(
            found,
            function=planned.function,
            step_ns=planned.function.predicted_step_ns,
            wait_ns=int(planned.assignment.result.stall_ns),
        )

    def _install(self, graph: int, function: FunctionPlan, is_new: bool) -> None:
        planner, report = self.planner(graph), self._report(graph)
        planned = planner.planned_as(function)
        if planned is not None:
            self._context.lossy.rates = planned.rates
        if is_new and graph == 0:
            self._plan.note(chooses=self._chooses)  # for other graphs
        self._plan.push_function(function)
        report.adopted(self._plan.plan, function, planner.story(function))
        if is_new and planned is not None:
            report.planned(planned)

    def _leave_unchanged(self, graph: int) -> None:
        """Install a plan without swaps; other graphs, for longer sequences say, keep theirs."""
        planner = self.planner(graph)
        function = FunctionPlan(planner.fingerprint)
        if graph == 0:
            self._plan.note(chooses=self._chooses)  # for other graphs
        self._plan.push_function(function)
        report = self._report(graph)
        report.fits()
        if planner.profile is not None:
            report.fits_as_profiled(planner.profile, planner.story(function))

    def _withdraw(self, graph: int, forgets: bool, step_s: float) -> None:
        fingerprint = self.planner(graph).fingerprint
        if forgets:
            self._remembered.forget(fingerprint)
            self._planners[graph] = StepPlanner(self._context)
        else:
            self._remembered.decline(fingerprint)
        plan = self._plan.plan.without_function(fingerprint)
        if step_s:
            plan = dataclasses.replace(plan, chooses=False)
            self._report(graph).report.step_s = step_s
        self._plan.push(plan)
        self._report(graph).withdrawn()

    def _split(self, sections: int, examples: int) -> None:
        self._plan.split(sections, examples)
        self._context.report.report.sections = sections
        tried = self._by_sections.get(sections)
        self._planners[0] = tried or StepPlanner(self._context)
        if tried is not None and tried.profile is not None:
            tried.save_profile()
            self._context.report.profiled(tried.profile, tried.least_budgets())

    def note_budget(self, graph: int) -> None:
        """Use the budget and link as they are now from the next plan of a graph on."""
        devices = self._context.devices
        self._report(graph).budget_changed(devices.budget_bytes)
        self._plan.note(budget_bytes=devices.budget_bytes)
        self._remembered.budget_changed()
        self.planner(graph).machine = devices.link.machine()

    def _check_applied(self, graph: int) -> None:
        self._context.library.trim_malloc()
        for record in self._plan.records():
            is_same = record["fingerprint"] == self.planner(graph).fingerprint
            if is_same and record["outcome"] == "refused":
                self._context.log.warn(f"the plan was not applied: {record['reason']}")

    def _remember(self, graph: int) -> None:
        planner = self.planner(graph)
        function = self._plan.function(planner.fingerprint)
        if function is not None and planner.profile is not None:
            self._remembered.keep(planner.profile, function, planner.planned_bytes)

    def _reassign(self) -> Reassigned | None:
        planner = self.planner(0)
        function = self._plan.function(planner.fingerprint)
        if function is None:
            return None
        reassigned, text = planner.reassigned(function)
        if text:
            self._context.log.note(text)
        return None if reassigned is None else Reassigned(reassigned)

    # The report, which is of the first graph

    def _report(self, graph: int) -> RunReport:
        return self._context.report if graph == 0 else RunReport(Report())

    def _summarize(self) -> None:
        report = self._context.report.report
        if self._context.devices.codecs.lossy and report.outcome == "swapped":
            reason = self._context.lossy.why_unused()
            if reason:
                self._context.log.note(f"nothing is kept lossily so far: {reason}")
        self._context.log.lines(summary_lines(report))
