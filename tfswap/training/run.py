"""TrainingRun: one training, from its first step to its last."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from contextlib import ExitStack
from typing import Any

from tfswap.devices.sampling import RatioSamples
from tfswap.devices.swap_options import AUTO_SECTIONS
from tfswap.devices.swap_session import SwapSession
from tfswap.plan.measured_plan import MeasuredStep
from tfswap.plan.schema import SwapPlan
from tfswap.planning.planners.assignment import AUTO, CSWAP
from tfswap.report.run_report import RunReport
from tfswap.report.summary import Report
from tfswap.report.tensorboard import TensorBoardLog
from tfswap.report.training_log import TrainingLog
from tfswap.step.trace import StepTrace
from tfswap.training.context import TrainingContext
from tfswap.training.events import (
    AddressesSettled,
    BatchStaysWhole,
    BudgetChanged,
    EpochBegan,
    Event,
    Remember,
    Retraced,
    StepEnded,
    XlaRefused,
)
from tfswap.training.executor import Executor, FindFloor
from tfswap.training.first_step import FirstStep
from tfswap.training.further_graphs import counts
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.lossy import LossyRun, check_plan
from tfswap.training.remembered_plans import RememberedPlans
from tfswap.training.section_search import SectionSearch
from tfswap.training.states import GraphState, Phase, TrainingState
from tfswap.training.step_addresses import TEST, TRAIN, StepAddresses
from tfswap.training.step_recordings import StepRecordings
from tfswap.training.transitions import next_state

# The trainings that are under way in this process.
_runs: list[TrainingRun] = []


def training_states() -> list[dict[str, Any]]:
    """Return the state of each training, for `tfswap.status()`."""
    return [run.state() for run in _runs]


class TrainingRun:
    """Measure each step of a training, report it to `next_state` and execute what follows.

    Args:
        session: The session that has the devices.
        key: The model or function that is trained; only referenced weakly.
        log: Prints and keeps messages.
        report: The report to fill in.
        plan: A plan to use instead of profiling; None for none.
        steps_a_call: Number of steps in one call of the training function.
        epochs: The `epochs` of `fit`; None if unknown.
        certain: Whether the function trains, even if its graph has no gradients.
        splits: Whether the batch can be split into sections, if the options ask for it.
        examples: The most examples of a batch whose size is not known before the step; 0: unknown.
        compiled: Whether XLA compiles the steps.

    Attributes:
        report: The report.

    Raises:
        ValueError: The given plan is lossy and the options do not allow that.
    """

    def __init__(
        self,
        session: SwapSession,
        key: Any,
        log: TrainingLog,
        report: Report,
        *,
        plan: SwapPlan | None = None,
        steps_a_call: int = 1,
        epochs: int | None = None,
        certain: bool = True,
        splits: bool = True,
        examples: int = 0,
        compiled: bool = False,
    ) -> None:
        options, devices, library = session.options, session.devices, session.library
        check_plan(plan or SwapPlan(), options.lossy)
        ratios = RatioSamples(library, devices.codecs.sampled)
        self.report = report
        self._session = session
        self._steps_a_call = steps_a_call
        self._given = plan
        self._context = TrainingContext(
            library,
            options,
            devices,
            ratios,
            LossyRun(library, ratios, epochs),
            log,
            RunReport(report),
        )
        self._plan = InstalledPlan(self._context, key)
        self._plan.examples = examples
        self._remembered = RememberedPlans(self._context, self._plan)
        self._addresses = StepAddresses(self._context, self._plan)
        self._recordings = StepRecordings(library, devices)
        self._sections = (options.sections or 1) if splits else 1
        chooses = self._sections == AUTO_SECTIONS
        first_step = FirstStep(
            self._context, self._plan, self._remembered, plan is not None, certain
        )
        self._executor = Executor(
            self._context,
            self._plan,
            self._remembered,
            first_step,
            self._addresses,
            self._recordings,
            chooses,
        )
        is_given = plan is not None and bool(plan.functions)
        sections = SectionSearch(searches=chooses and not is_given)
        first = GraphState(Phase.COMPILED if compiled else Phase.BOOTSTRAP, sections=sections)
        plan_sections = 1 if plan is None else plan.sections
        self._state = TrainingState(
            plans_addresses=devices.plans_addresses,
            plans_further=(
                self._sections == plan_sections == 1
                and not options.lossy
                and not devices.weights_may_leave
                and devices.shared is None
            ),
            reassigns=options.codec in (AUTO, CSWAP) or options.spill_dir is not None,
            searches=chooses,
            graphs=(first,),
        )
        self._is_on = False  # between `begin` and `end`
        self._cleanup = ExitStack()  # restores everything that `begin` changed
        self._changed = ""  # why the plan must be made again; "" if it need not be
        self._stock_peak_bytes = 0  # measured on the unchanged graph
        self._step_start_s = 0.0
        self._before: dict[str, int] = {}

    def begin(self) -> None:
        """Install on-demand swaps, or the given plan, for the first steps."""
        _runs.append(self)
        self._cleanup.callback(_runs.remove, self)
        context = self._context
        self.report.budget_bytes = context.devices.budget_bytes
        self._cleanup.callback(self._plan.withdraw)
        self._cleanup.callback(context.lossy.end)
        self._cleanup.callback(self._addresses.end)
        self._remembered.begin()
        chooses = self._sections == AUTO_SECTIONS
        sections = 1 if isinstance(self._sections, str) else self._sections
        self._plan.begin(self._given or SwapPlan(), sections, chooses)
        if context.options.log_dir is not None:
            log = TensorBoardLog(context.options.log_dir, context.log.name)
            self._cleanup.callback(log.close)
            context.report.log = log
        if context.devices.shared is not None:
            context.devices.shared.watch(self)
        self._is_on = True

    def expect_batch(self, examples: int) -> None:
        """Note before the first step how many examples a whole batch has."""
        plan = self._plan.plan
        if self._phase is Phase.BOOTSTRAP and plan.sections > 1 and not plan.batch:
            self._plan.push(dataclasses.replace(plan, batch=examples))

    def leave_whole(self) -> None:
        """Note before the first step that batches cannot be split."""
        self._executor.leave_whole()
        self._handle(BatchStaysWhole())

    def replan(self, reason: str) -> None:
        """Plan again before the next step, for the devices' budget and link as they are now.

        The new plan is made of the profile, installed, measured and checked like the first one, and
        its addresses are planned again. If no plan fits, on-demand swaps keep the budget. Before
        the first plan nothing needs to be done. Thread-safe.

        Args:
            reason: What has changed, for the log.
        """
        self._changed = reason

    def step_failed(self, error: BaseException, find: FindFloor | None = None) -> BaseException:
        """Return a step's error with the step's floor, and keep its facts for the report."""
        return self._executor.failed(error, find)

    def finish(self) -> None:
        """End a training that has not failed."""
        if not self._is_on or not self._session.is_same_process:
            return
        context, state = self._context, self._state
        is_settled = state.phase.is_settled or state.turn > 0
        if self.trains and not is_settled and self.report.outcome != "fits":
            context.log.note("training ended before the plan was settled")
        self._executor.update_report(state.graphs[0].steps)
        for index, graph in enumerate(state.graphs):
            if is_settled and graph.is_proven:
                self._executor.execute(Remember(index))
        context.devices.codecs.check(wait=True)
        problem = context.devices.file_problem()
        if problem:
            context.log.warn(
                f"the file tier failed, so more than planned stayed in memory: {problem}"
            )
        self.end()

    def end(self) -> None:
        """Restore everything. Has no effect when called again, or in a forked process."""
        if not self._session.is_same_process:
            return
        if self._is_on:
            self._recordings.stop()
            self._context.ratios.stop()
        self._is_on = False
        self._cleanup.close()

    @property
    def _phase(self) -> Phase:
        return self._state.phase if self._is_on else Phase.IDLE

    @property
    def trains(self) -> bool:
        """Whether the function trains, as far as is known."""
        return self._state.phase is not Phase.IDLE

    @property
    def settled_plan(self) -> SwapPlan | None:
        """The plan, if it will stay."""
        is_settled = self._is_on and (self._phase.is_settled or self._state.turn > 0)
        return self._plan.plan if is_settled else None

    @property
    def is_measuring(self) -> bool:
        """Whether step times must include all work of the devices."""
        return self._phase not in (Phase.IDLE, Phase.BOOTSTRAP)

    def refresh(self) -> None:
        """Bring the report up to date."""
        if self._phase is not Phase.IDLE and self._state.turn == 0:
            self._executor.update_report(self._state.graph.steps)

    def state(self) -> dict[str, Any]:
        """Return the state, for `tfswap.status()`."""
        return {
            "phase": self._phase.value,
            "outcome": self.report.outcome,
            "in_force": self._plan.is_installed(),
            "budget_bytes": self._context.devices.budget_bytes,
            **self._session.state(),
        }

    def _handle(self, event: Event) -> None:
        """Execute all actions that follow from an event."""
        events = deque([event])
        while events:
            self._state, actions = next_state(self._state, events.popleft())
            for action in actions:
                answer = self._executor.execute(action)
                if answer is not None:
                    events.append(answer)

    def epoch_begins(self, epoch: int) -> None:
        """Set the rate of lossy codecs, and check codecs' ratios and the disk's speed."""
        if not self._is_on:
            return
        has_new_rate = self._context.lossy.epoch_begins(epoch)
        self.report.lossy = self._context.lossy.use()
        self._handle(EpochBegan(has_new_rate))

    def leave_xla(self) -> None:
        """Note in a step that XLA got no memory, and prepare the same step without it."""
        self.step_abandoned()
        self._handle(XlaRefused())
        self.step_begins()

    def traced_again(self) -> None:
        """Note that the function has a new graph, which may train."""
        self._handle(Retraced())

    # Steps

    def step_begins(self) -> None:
        """Prepare the next call of the training function."""
        if not self._is_on:
            return
        self._session.step_begins()
        if self._plan.enter():
            self._context.log.note(
                "the session's options had changed meanwhile; the plan is installed again"
            )
        if self._phase is Phase.IDLE:
            return
        if self._changed:
            reason, self._changed = self._changed, ""
            self._stock_peak_bytes = 0
            self._handle(BudgetChanged(reason))
        state, devices = self._state, self._context.devices
        if state.samples:
            self._context.ratios.start()
        observes = state.observes and not self._addresses.wants(TRAIN)
        if state.records or observes:
            self._recordings.start()
        else:
            self._addresses.call_begins(TRAIN)
        if state.phase is Phase.BOOTSTRAP:
            devices.begin_first_step()
        devices.restart_window()
        self._before = devices.step_counts()
        self._step_start_s = time.perf_counter()

    def step_ended(self) -> None:
        """Measure the call that has ended, and decide what follows."""
        try:
            if self._phase is not Phase.IDLE and self._before:
                self._step_ended(time.perf_counter() - self._step_start_s)
        finally:
            self._session.step_ended()

    def _step_ended(self, seconds: float) -> None:
        context, devices = self._context, self._context.devices
        devices.codecs.check()
        context.ratios.stop()
        traces = self._recordings.stop()
        if self._phase is Phase.BOOTSTRAP:
            self._use_busiest_device()
        after = devices.step_counts()
        step = MeasuredStep.between(self._before, after, seconds, self._steps_a_call)
        context.report.step(step, after)
        self._addresses.call_ended(TRAIN, self._steps_a_call)
        if self._phase is Phase.COMPILED:
            context.report.fits(compiled=True)
        event = self._event(step, traces.get(devices.device))
        if self._phase is Phase.PROFILE and counts(self._state, event):
            self._recordings.add(step, traces)
        elif self._phase is Phase.WARM:
            self._recordings.clear()
        self._handle(event)
        state = self._state
        if self._phase is Phase.STEADY and state.graph.fits and not after["slab_limit_bytes"]:
            # What the profile predicted can be measured.
            self._stock_peak_bytes = max(self._stock_peak_bytes, step.peak_bytes)
            self.report.unswapped_peak_bytes = self._stock_peak_bytes
        if self._phase is Phase.ADDRESSES and self._addresses.are_settled():
            self._handle(AddressesSettled())

    def _event(self, step: MeasuredStep, trace: StepTrace | None) -> StepEnded:
        fits = step.bytes_out == 0 and step.peak_bytes <= self._context.devices.fitting_bytes
        fingerprint = self._addresses.recorded if trace is None else trace.main_graph()
        index = self._state.index(fingerprint)
        if trace is None or index is None:
            return StepEnded(step, fingerprint, fits=fits)
        planner = self._executor.planner(index)
        is_like_profiled, is_larger = planner.is_like_profiled(trace), planner.is_larger(trace)
        return StepEnded(step, fingerprint, is_like_profiled, is_larger, fits)

    def _use_busiest_device(self) -> None:
        """Plan for the GPU that needed most memory in the first step."""
        before = self._context.devices.switch_to_busiest()
        if before is None:
            return
        self._before = before
        self._plan.install_layouts()
        self._executor.note_budget(0)

    def step_abandoned(self) -> None:
        """Drop the records of a call that failed, so that the next call takes its place."""
        self._recordings.stop()
        self._context.ratios.stop()
        self._addresses.stop()
        self._session.step_ended()

    def between_steps(self) -> None:
        """Deactivate the plan until `step_begins`, for other calls."""
        self._plan.leave()
        self._session.step_ended()

    def test_begins(self) -> None:
        """Prepare a validation call."""
        if self._is_on:
            self._session.step_begins()
            self._addresses.call_begins(TEST)

    def test_ended(self) -> None:
        """Plan addresses of a validation graph that has run often enough."""
        if self._is_on:
            self._addresses.call_ended(TEST, self._steps_a_call)
            self._session.step_ended()
