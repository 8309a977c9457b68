"""PlanChoice: which plan a training goes by, from its profile to the one that stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tfswap.devices.managed_devices import ManagedDevices
from tfswap.devices.swap_options import SwapOptions
from tfswap.ops.loaded_library import Library
from tfswap.plan.measured_plan import CLEARLY_FITS, Attempt, MeasuredStep
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.planning.plan_function import Planned
from tfswap.planning.planners.assignment import FarMemoryTooSmall
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.report.run_report import RunReport
from tfswap.report.summary import REMEMBERED, summary_lines
from tfswap.report.training_log import TrainingLog
from tfswap.step.profile import Profile
from tfswap.step.trace import StepTrace
from tfswap.training.attempts import Attempts
from tfswap.training.batch_sections import BatchSections
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.lossy import LossyRun
from tfswap.training.met_graphs import OptimizedGraphs
from tfswap.training.pass_session import PassSession
from tfswap.training.phase import Phase
from tfswap.training.remembered_plans import RememberedPlans, RememberedStep
from tfswap.training.sampling import RatioSamples
from tfswap.training.section_search import Trial
from tfswap.training.step_planner import Forgotten, StepPlanner

# Kept of a number of sections that was tried: what is known of its step, and its plan.
_Kept = tuple[StepPlanner, Planned | None]


class PlanChoice:
    """Plans, tries and corrects, and says which phase of the training is next.

    Args:
        lib: The library.
        options: Of the training.
        devices: Of the training.
        session: Knows what the pass said.
        plan: Gets what is chosen.
        remembered: Plans of earlier trainings.
        ratios: What codecs make of the training's tensors.
        lossy: What may be kept lossily.
        voice: Says things.
        filled: The report.
        given: A plan to begin with; None: to be made.
        cuts: Whether the batch can be cut into sections, should the options say so.
        further: Whether it is for one more graph of a training whose first one has the report. What
            holds for all graphs is the first one's choice.

    Attributes:
        planner: What is known of the step.
        is_stock: The graph is as TensorFlow made it: the model fits.
        planned_bytes: The budget that was planned for; 0 before.
    """

    def __init__(
        self,
        lib: Library,
        options: SwapOptions,
        devices: ManagedDevices,
        session: PassSession,
        plan: InstalledPlan,
        remembered: RememberedPlans,
        ratios: RatioSamples,
        lossy: LossyRun,
        voice: TrainingLog,
        filled: RunReport,
        *,
        given: SwapPlan | None = None,
        cuts: bool = True,
        further: bool = False,
    ) -> None:
        self._library = lib
        self._options = options
        self._devices = devices
        self._session = session
        self._plan = plan
        self._remembered = remembered
        self._ratios = ratios
        self._lossy = lossy
        self._voice = voice
        self._filled = filled
        self._report = filled.report
        self._given = given
        self._further = further
        wanted = options.sections or 1 if cuts else 1
        self._sections = BatchSections[_Kept](
            lib, plan, self._report, voice, wanted, searches=not (given and given.functions)
        )
        self._met = OptimizedGraphs(lib, session, voice)
        self.planner = self._new_planner()
        self._attempts = Attempts()
        self._was_measured = False  # the plan, in an earlier training
        self.is_stock = False
        self.planned_bytes = 0

    def begin(self) -> None:
        """Install on-demand swaps, or the given plan, and offer remembered plans to the pass."""
        self._remembered.begin()
        self._sections.begin(self._given or SwapPlan())
        self._plan.install_layouts()

    def _new_planner(self) -> StepPlanner:
        return StepPlanner(
            self._library, self._options, self._devices, self._ratios, self._lossy, self._voice.say
        )

    @property
    def fingerprint(self) -> str:
        """Of the graph that was planned; "" before."""
        return self.planner.fingerprint

    def training_graphs(self) -> set[str]:
        """Fingerprints of the graphs with gradients that the pass has met under the plan."""
        return self._met.training()

    @property
    def has_profile(self) -> bool:
        """Whether `plan_anew` has something to go by."""
        return self.planner.profile is not None

    @property
    def can_move(self) -> bool:
        """Whether `place_anew` may find something."""
        return self.planner.has_planned and self._report.outcome == "swapped"

    def expect_batch(self, examples: int) -> None:
        """Says before the first step how many examples a whole batch has."""
        plan = self._plan.plan
        if plan.sections > 1 and not plan.batch:
            self._plan.push(dataclasses.replace(plan, batch=examples))

    def leave_whole(self) -> None:
        """Says before the first step that batches cannot be cut."""
        self._sections.leave_whole()

    def devices_changed(self) -> None:
        """Use the devices' present budget and link, and withdraw plans that no longer fit."""
        self._note_budget()
        self.planner.machine = self._devices.link.machine()
        self._remembered.budget_changed()

    def _note_budget(self) -> None:
        self._filled.budget_changed(self._devices.budget_bytes)
        self._plan.note(budget_bytes=self._devices.budget_bytes)

    # The first step.

    def first_ended(self, surely_trains: bool) -> Phase:
        """Goes by what the pass said of the training's graphs.

        Args:
            surely_trains: Otherwise there is only a plan if a graph has gradients.
        """
        records = self._met.in_first_step()
        if not records:
            return Phase.STEADY
        if not surely_trains and not any(map(self._met.has_gradients, records)):
            return Phase.LAZY
        self._sections.met(records)
        planned = [r for r in records if r["outcome"] == "planned"]
        given = [f for r in planned if (f := self._plan.function(r["fingerprint"])) is not None]
        if self._given is not None and given:
            function = given[-1]
            self.planner.fingerprint = function.fingerprint
            self.planned_bytes = self._devices.budget_bytes
            self._adopt(function)
            return Phase.MEASURE
        if self._given is not None and self._plan.rename(records):
            return Phase.FIRST
        for record in records:
            step = self._remembered.step(record, self._library, self._new_planner())
            if step is not None:
                return self._begin_with(step)
            if record["outcome"] == "planned":
                self._remembered.decline(record["fingerprint"])
                self._plan.push(self._plan.plan)
        known = any(self._plan.function(r["fingerprint"]) is not None for r in records)
        if self._given is not None and not known:
            self._voice.warn(
                "the plan that was given fits none of this training's graphs (another model, "
                "optimizer, shapes or TensorFlow): a new one is made."
            )
        return Phase.WARM

    def _begin_with(self, step: RememberedStep) -> Phase:
        """Go on with the plan that the first step ran under, or with one of the old profile."""
        self.planner = step.planner
        self._report.first_plan = REMEMBERED
        self._sections.take(self.planner.fingerprint)
        self.planner.save_profile()
        self._filled.profiled(step.profile, self.planner.least_budgets())
        self.planned_bytes = self._devices.budget_bytes
        self._voice.say("this step was profiled before: training begins under its plan")
        if isinstance(step.plan, Planned):
            return self._adopt_planned(step.plan)
        self._was_measured = True
        self._plan.note(functions=self._plan.plan.with_function(step.plan).functions)
        self._plan.install_layouts()
        self._filled.adopted(self._plan.plan, step.plan, step.story)
        return Phase.MEASURE

    def _profile_after_all(self) -> Phase:
        """Drop the remembered plan, whose measured peak is not as predicted, and profile again."""
        self._was_measured = False
        fingerprint = self.planner.fingerprint
        self._voice.note("the remembered plan needs another peak than predicted: it is made again")
        self._remembered.forget(fingerprint)
        self._plan.forget_layouts()
        self._plan.push(self._plan.plan.without_function(fingerprint))
        self.planner = self._new_planner()
        self._attempts.begin_anew()
        self._filled.withdrawn()
        return Phase.WARM

    def remember(self) -> None:
        """Write the plan to the plan cache if its measured peak is as predicted."""
        function = self._plan.function(self.planner.fingerprint)
        profile = self.planner.profile
        if function is None or profile is None or not self._attempts:
            return
        if self._attempts.best.is_as_foretold and self._report.outcome == "swapped":
            self._remembered.keep(profile, function, self.planned_bytes)

    # From the profile to a plan.

    def plan_from(self, traces: Mapping[int, StepTrace], lazy_s: Sequence[float]) -> Phase:
        """Plans a recorded step.

        Args:
            traces: The recordings, by device.
            lazy_s: What steps took under lazy swaps.
        """
        fingerprint = traces[self._devices.device].main_graph()
        # Steps under a remembered plan do not tell what steps take without one.
        is_lazy = fingerprint is None or self._remembered.plan(fingerprint) is None
        self._attempts.lazy_s = list(lazy_s) if is_lazy else []
        if not self._sections.take(fingerprint):
            return self._go_on_with(self._sections.search.best)
        try:
            profile = self.planner.read(traces, self._plan.plan.min_bytes)
        except Forgotten:
            # Another text has the pass see it again.
            self._session.push_anew(self._plan.plan)
            return Phase.FIRST
        except ValueError as error:
            return self._stay_with_bootstrap(str(error))
        if not self._further and self._devices.look_again():
            self._note_budget()
        return self._plan_profiled(profile)

    def plan_anew(self) -> Phase:
        """Plans once more, for the devices' budget and link as they are now; pushes that.

        Of the profile that is there. Without one (the plan was given) the training begins again.
        """
        self.devices_changed()
        self._plan.forget_layouts()
        self._sections.search_anew()
        self._attempts.begin_anew()
        self._attempts.lazy_s = []  # were for another budget or link
        self._given = None
        self.is_stock = False
        if self.planner.profile is None:
            self._plan.push(dataclasses.replace(self._plan.plan, functions=()))
            return Phase.FIRST
        return self._plan_profiled(self.planner.profile)

    def _plan_profiled(self, profile: Profile) -> Phase:
        self._filled.profiled(profile, self.planner.least_budgets())
        self._sections.search.add(self._tried(profile))
        more = self._sections.search.next()
        if more is None:
            return self._go_on_with(self._sections.search.best)
        self.planner = self._new_planner()
        self._sections.try_out(more)
        return Phase.FIRST

    def _tried(self, profile: Profile) -> Trial[_Kept]:
        """What can be foretold of the profiled step with as many sections as there are."""
        self.planned_bytes = self._devices.budget_bytes
        sections = self._plan.plan.sections
        if profile.worst_peak_bytes <= CLEARLY_FITS * self._devices.budget_bytes:
            return Trial(sections, (self.planner, None), step_ns=profile.timeline.step_ns)
        try:
            planned = self.planner.plan()
        except (BudgetTooSmall, FarMemoryTooSmall) as error:
            return Trial(sections, (self.planner, None), self.planner.advised(error, sections))
        step_ns = planned.function.predicted_step_ns
        wait_ns = int(planned.assignment.result.stall_ns)
        return Trial(sections, (self.planner, planned), step_ns=step_ns, wait_ns=wait_ns)

    def _go_on_with(self, trial: Trial[_Kept]) -> Phase:
        """Puts the plan of a number of sections in force; of another one than now, again."""
        if self._sections.go_back_to(trial.sections):
            self._attempts.lazy_s = []  # of another graph
            trial.kept[0].save_profile()
        self.planner, planned = trial.kept
        profile = self.planner.profile
        assert profile is not None
        self._filled.profiled(profile, self.planner.least_budgets())
        if trial.problem:
            return self._stay_with_bootstrap(trial.problem)
        if not self._further:
            self._plan.note(chooses=self._sections.chooses)  # for other graphs
        if planned is not None:
            return self._adopt_planned(planned)
        # The graph stays as it is. Others, for longer sequences say, keep their lazy swaps.
        function = FunctionPlan(self.planner.fingerprint)
        self._plan.push_function(function)
        self._filled.fits(profile, self.planner.story(function))
        self.is_stock = True
        self._print_summary()
        return Phase.LAYOUT

    def _plan_corrected(self) -> Phase | None:
        """Plans what was corrected; None if it cannot be."""
        try:
            planned = self.planner.plan()
        except (BudgetTooSmall, FarMemoryTooSmall) as error:
            self._stay_with_bootstrap(self.planner.advised(error, self._plan.plan.sections))
            return None
        return self._adopt_planned(planned)

    def _adopt_planned(self, planned: Planned) -> Phase:
        self._lossy.rates = planned.rates
        self._adopt(planned.function)
        self._filled.planned(planned)
        return Phase.SETTLE

    def _stay_with_bootstrap(self, why: str) -> Phase:
        self._report.outcome = "bootstrap"
        remembered = self._remembered.plan(self.planner.fingerprint) is not None
        if self._attempts:
            self._adopt(self._attempts.best.function)
            return Phase.STEADY
        if self._plan.function(self.planner.fingerprint) is not None or remembered:
            self._remembered.decline(self.planner.fingerprint)
            self._plan.push(self._plan.plan.without_function(self.planner.fingerprint))
            self._filled.withdrawn()
        self._voice.warn(
            f"{why} Training goes on under lazy swaps, which keep the budget but wait."
        )
        return Phase.STEADY

    def _adopt(self, function: FunctionPlan) -> None:
        self._plan.push_function(function)
        self._filled.adopted(self._plan.plan, function, self.planner.story(function))

    def place_anew(self) -> bool:
        """Puts tensors elsewhere if that is worth having the graph optimised again."""
        function = self._plan.function(self.planner.fingerprint)
        if function is None:
            return False
        elsewhere, said = self.planner.placed_anew(function)
        if elsewhere is not None:
            self._adopt(elsewhere)
        if said:
            self._voice.note(said)
        return elsewhere is not None

    # What drifts.

    @property
    def planned_function(self) -> FunctionPlan | None:
        """The plan that was made of a profile and moves something; None if there is none."""
        function = self._plan.function(self.planner.fingerprint)
        if function is None or not self.planner.has_planned:
            return None
        return function if function.swaps or function.recomputes else None

    def profile_anew(self, measured: Sequence[MeasuredStep]) -> None:
        """Goes by lazy swaps until `plan_from`.

        Args:
            measured: Steps under the plan that there is, which comes back if there is no other.
        """
        function = self.planned_function
        assert function is not None
        self._plan.forget_layout(function.fingerprint)
        self._plan.push(self._plan.plan.without_function(function.fingerprint))
        self._attempts.keep(function, measured)
        self._sections.search_no_more()

    def plan_drifted(self, measured: Sequence[MeasuredStep]) -> bool:
        """Has the plan go by what ops take by now; says whether that is another plan.

        Args:
            measured: Steps under the one that there is, which stays if it did better in the end.
        """
        function, times = self.planned_function, self.planner.op_times
        assert function is not None and times is not None
        before_s, now_s = times.planned_ns / 1e9, times.average_ns / 1e9
        said = f"ops take {now_s:.3g} s a step, not {before_s:.3g} s as planned with"
        rates = self._lossy.rates
        try:
            known, planned = self.planner.planned_drifted(function)
        except ValueError as error:  # there is no plan for the budget, say
            self._lossy.rates = rates
            self._voice.note(f"{said}; the plan stays: {error}")
            return False
        known_s = known.predicted_step_ns / 1e9
        if planned is None:
            self._lossy.rates = rates
            self._plan.note(functions=self._plan.plan.with_function(known).functions)
            self._filled.adopted(self._plan.plan, known, self.planner.story(known))
            self._voice.note(f"{said}; the plan stays, for steps of {known_s:.3g} s")
            return False
        self._voice.note(
            f"{said}: a new plan is made, for steps of "
            f"{planned.function.predicted_step_ns / 1e9:.3g} s instead of {known_s:.3g} s"
        )
        self._plan.forget_layout(self.planner.fingerprint)
        self._attempts.keep(known, measured)
        self._attempts.lazy_s = []  # were with ops that took other times
        self._adopt_planned(planned)
        return True

    # How the plan does.

    def check_in_force(self) -> None:
        """Warns if the pass has refused the plan."""
        self._met.check_in_force(self.planner.fingerprint)

    def check(self, measured: Sequence[MeasuredStep]) -> Phase:
        """Corrects the plan if its steps, of which these were measured, are not as foretold."""
        function = self._plan.function(self.planner.fingerprint)
        assert function is not None
        attempt = self._attempts.measured(function, measured)
        if attempt is None:
            return Phase.MEASURE
        if self._was_measured and not attempt.is_as_foretold:
            return self._profile_after_all()
        self._was_measured = False
        given = self._given is not None and self.planner.profile is None
        if not attempt.is_as_foretold and not given and self._attempts.may_correct:
            self.planner.correct(attempt)
            self._report.corrections += 1
            corrected = self._plan_corrected()
            if corrected is not None:
                return corrected
        chosen = self._attempts.best
        if self._attempts.is_slower(chosen):
            return self._give_up_plan(chosen)
        if chosen.function is not function:
            self._adopt(chosen.function)
        self.update_measured(measured, chosen)
        self._plan.save()
        self._print_summary()
        return Phase.LAYOUT

    def _give_up_plan(self, attempt: Attempt) -> Phase:
        """Lazy swaps did better, be it that a step is not as regular as the profiled ones."""
        lazy_s = self._attempts.lazy_step_s
        self._voice.note(
            f"the plan was given up: with it, a step took {attempt.step_s:.3g} s, under lazy "
            f"swaps {lazy_s:.3g} s. Training goes on under those."
        )
        self._remembered.decline(self.planner.fingerprint)
        plan = self._plan.plan.without_function(self.planner.fingerprint)
        self._plan.push(dataclasses.replace(plan, chooses=False))
        self.update_measured((), attempt)
        self._filled.given_up(lazy_s)
        self._print_summary()
        return Phase.STEADY

    def update_measured(
        self, steps: Sequence[MeasuredStep], attempt: Attempt | None = None
    ) -> None:
        """Brings the report up to date with steps under the plan; of an attempt, that counts."""
        self._report.tiers = self._devices.tiers()
        self._report.lossy = self._lossy.use()
        self._filled.measured(steps, attempt)

    def _print_summary(self) -> None:
        if self._further:
            return
        if self._devices.codecs.lossy and self._report.outcome == "swapped":
            reason = self._lossy.why_unused()
            if reason:
                self._voice.note(f"nothing is kept lossily so far: {reason}")
        self._voice.lines(summary_lines(self._report))
