"""SwapRun: the life of a plan during the training of one function, step by step.

::

    first ─▶ warm ─▶ profiled steps ─▶ plan, push ─▶ settle ─▶ measure ─▶ check ─▶ steady
      ▲  (lazy swaps keep the budget)   │  ▲  ▲                             │    └▶ addresses
      └─── other sections (≤ 3 times) ◀─┘  │  └────── correct (≤ 3 times) ◀─┘      │
                                           └─────────────── replan ◀───────────────┘

`PlanChoice` plans and decides, `Progress` has the phases; what is here is what each asks of a step.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from typing import Any

from tfswap.devices.swap_session import SwapSession
from tfswap.plan.measured_plan import MeasuredStep
from tfswap.plan.schema import SwapPlan
from tfswap.planning.planners.assignment import AUTO, CSWAP
from tfswap.report.run_report import RunReport
from tfswap.report.summary import Report
from tfswap.report.tensorboard import TensorBoardLog
from tfswap.report.training_log import TrainingLog
from tfswap.step.trace import StepTrace
from tfswap.training import active_runs
from tfswap.training.installed_plan import InstalledPlan
from tfswap.training.lossy import LossyRun, check_plan
from tfswap.training.pass_session import PassSession
from tfswap.training.phase import Phase
from tfswap.training.plan_choice import PlanChoice
from tfswap.training.progress import Progress
from tfswap.training.remembered_plans import RememberedPlans
from tfswap.training.sampling import RatioSamples
from tfswap.training.step_addresses import StepAddresses

# How often tensors' places are looked at again, at most; and where lossy codecs have another rate.
_STEPS_BETWEEN_LOOKS = 32
_STEPS_AT_A_RATE = 8

# Kinds of calls, for recordings.
_TRAIN, _TEST = "train", "test"


class SwapRun:
    """All state of one training; `end` takes everything back.

    Args:
        session: Has the devices.
        key: What is trained, for weak references: plans of different ones have different texts.
        voice: Says things of this training.
        report: Filled in.
        plan: To begin with; None: to be made.
        steps_a_call: Of the training function.
        epochs: Where the training counts to; None: not known.
        surely_trains: Otherwise there is only a plan if its graph has gradients.
        cuts: Whether its batch can be cut into sections, should the options say so.

    Raises:
        ValueError: The plan that was given is lossy without leave.
    """

    # From `begin` on.
    _ratios: RatioSamples
    _lossy: LossyRun
    _plan: InstalledPlan
    _remembered: RememberedPlans
    _first_choice: PlanChoice
    _addresses: StepAddresses
    _progress: Progress

    def __init__(
        self,
        session: SwapSession,
        key: Any,
        voice: TrainingLog,
        report: Report,
        *,
        plan: SwapPlan | None = None,
        steps_a_call: int = 1,
        epochs: int | None = None,
        surely_trains: bool = True,
        cuts: bool = True,
    ) -> None:
        check_plan(plan or SwapPlan(), session.options.lossy)
        self._options = session.options
        self._library = session.library
        self._shared = session
        self._devices = session.devices
        self._session = PassSession(session.library, key)
        self._voice = voice
        self._given_plan = plan
        self.report = report
        self._filled = RunReport(report)
        self._steps_a_call = steps_a_call
        self._epochs = epochs
        self._surely_trains = surely_trains
        self._cuts = cuts
        self._is_on = False  # between `begin` and `end`
        self._taken = ExitStack()  # what is to be given back
        self._looks_at_places = False
        self._steps_since_look = 0
        self._waits_for_sampler = False
        self._why_anew = ""  # there is to be a new plan; "": there is not
        self._watches_step = False  # the step is recorded for what drifts
        self._stock_peak_bytes = 0  # measured while the graph was as TensorFlow made it
        self._step_start_s = 0.0
        self._before: dict[str, int] = {}

    # The beginning and the end.

    def begin(self) -> None:
        """Puts lazy swaps, or the given plan, in force; the first steps run under them."""
        active_runs.add(self)
        self._taken.callback(active_runs.remove, self)
        self.report.budget_bytes = self._devices.budget_bytes
        self._ratios = RatioSamples(self._library, self._devices.codecs.sampled)
        self._lossy = LossyRun(self._library, self._ratios, self._epochs)
        self._plan = InstalledPlan(
            self._library, self._options, self._devices, self._session, self._lossy, self._voice
        )
        self._remembered = RememberedPlans(self._options, self._devices, self._session, self._voice)
        self._first_choice = PlanChoice(
            self._library,
            self._options,
            self._devices,
            self._session,
            self._plan,
            self._remembered,
            self._ratios,
            self._lossy,
            self._voice,
            self._filled,
            given=self._given_plan,
            cuts=self._cuts,
        )
        self._addresses = StepAddresses(
            self._library,
            self._options,
            self._devices,
            self._plan,
            self._voice,
            self.report,
            _TRAIN,
        )
        self._progress = Progress(
            self._library,
            self._options,
            self._devices,
            self._plan,
            self._ratios,
            self._addresses,
            self._voice,
            self.report,
            self._first_choice,
            self._further_choice,
            _TRAIN,
        )
        self._taken.callback(self._session.withdraw)
        self._taken.callback(self._lossy.end)
        self._taken.callback(self._addresses.end)
        self._choice.begin()
        if self._options.log_dir is not None:
            log = TensorBoardLog(self._options.log_dir, self._voice.name)
            self._taken.callback(log.close)
            self._filled.log = log
        if self._devices.shared is not None:
            self._devices.shared.watch(self)
        self._is_on = True

    def _further_choice(self) -> PlanChoice:
        """That of a further graph, which the report says nothing of."""
        return PlanChoice(
            self._library,
            dataclasses.replace(self._options, save_profile=None, sections=1),
            self._devices,
            self._session,
            self._plan,
            self._remembered,
            self._ratios,
            self._lossy,
            self._voice,
            RunReport(Report()),
            cuts=False,
            further=True,
        )

    def expect_batch(self, examples: int) -> None:
        """Says before the first step how many examples a whole batch has."""
        if self._phase is Phase.FIRST:
            self._choice.expect_batch(examples)

    def leave_whole(self) -> None:
        """Says before the first step that batches cannot be cut."""
        self._choice.leave_whole()

    def replan(self, reason: str) -> None:
        """Request a new plan before the next step, for the devices' present budget and link.

        It is made of the existing profile, then settles, is measured and checked like the first
        one; addresses are planned again. Where no plan fits, on-demand swaps keep the budget.
        Before the first plan, only budget and link are updated. Any thread may call this.

        Args:
            reason: What has changed, for the notes.
        """
        self._why_anew = reason

    def step_failed(self, error: BaseException) -> None:
        """Keeps what an error says of memory."""
        self._filled.failed(error)

    def finish(self) -> None:
        """The normal end of training."""
        if self._phase is Phase.IDLE or not self._shared.is_here:
            return
        self._progress.leave_further()
        if self.trains and not self._phase.is_settled and self.report.outcome != "fits":
            self._voice.note("training ended before the plan was settled")
        self._choice.update_measured(self._progress.measured)
        if self._phase.is_settled:
            for choice in self._progress.turn.choices:
                choice.remember()
        self._devices.codecs.check(wait=True)
        problem = self._devices.file_problem()
        if problem:
            self._voice.warn(
                f"the file tier failed, so more than planned stayed in memory: {problem}"
            )
        self.end()

    def end(self) -> None:
        """Takes everything back; harmless when called again, and in a process forked meanwhile."""
        if not self._shared.is_here:
            return
        if self._is_on:
            self._progress.recordings.stop()
            self._ratios.stop()
        self._is_on = False
        self._taken.close()

    @property
    def _phase(self) -> Phase:
        """Before, and behind all of them: idle."""
        return self._progress.phase if self._is_on else Phase.IDLE

    @property
    def _choice(self) -> PlanChoice:
        """Of the graph whose turn it is."""
        return self._progress.choice

    @property
    def _is_further(self) -> bool:
        """Whether it is a further graph's turn to be profiled, planned or measured."""
        return self._is_on and self._progress.turn.is_further

    @property
    def trains(self) -> bool:
        """Whether it is a training, as far as is known."""
        return self._phase is not Phase.LAZY

    @property
    def settled_plan(self) -> SwapPlan | None:
        """The plan, if it is one that will stay."""
        return self._plan.plan if self._phase.is_settled or self._is_further else None

    def refresh(self) -> None:
        """Brings the report up to date."""
        if self._phase is not Phase.IDLE and not self._is_further:
            self._choice.update_measured(self._progress.measured)

    # Steps.

    def epoch_begins(self, epoch: int) -> None:
        """What codecs make of tensors drifts, and disks slow down: its first step is looked at."""
        due_after = _STEPS_BETWEEN_LOOKS
        if self._phase is not Phase.IDLE:
            if self._lossy.epoch_begins(epoch):
                due_after = _STEPS_AT_A_RATE
            self.report.lossy = self._lossy.use()
        self._looks_at_places = (
            self._phase is Phase.STEADY
            and self._steps_since_look >= due_after
            and self._choice.can_move
            and (self._options.codec in (AUTO, CSWAP) or self._options.spill_dir is not None)
        )

    def step_begins(self) -> None:
        if self._phase is Phase.IDLE:
            return
        self._shared.step_begins()
        if self._session.enter():
            self._voice.note(
                "the session's options had changed meanwhile; the plan is back in force"
            )
        if self._phase is Phase.LAZY:
            return
        if self._why_anew:
            self._plan_anew()
        if self._phase is Phase.WARM or self._looks_at_places:
            self._waits_for_sampler = not self._ratios.start()
        self._watches_step = self._progress.wants_to_watch
        if self._phase is Phase.PROFILE or self._progress.turn.only or self._watches_step:
            self._progress.recordings.start()
        else:
            self._addresses.call_begins(_TRAIN)
        if self._phase is Phase.FIRST:
            self._devices.first_step_begins()
        self._devices.restart_window()
        self._before = self._devices.step_counts()
        self._step_start_s = time.perf_counter()

    def step_ended(self) -> None:
        try:
            self._step_ended()
        finally:
            self._shared.step_ended()

    def _step_ended(self) -> None:
        if self._phase in (Phase.IDLE, Phase.LAZY) or not self._before:
            return
        seconds = time.perf_counter() - self._step_start_s
        self._devices.codecs.check()
        traces: dict[int, StepTrace] = {}
        if self._phase is Phase.FIRST:
            self._turn_to_busiest_device()
        else:
            traces = self._progress.recordings.stop()
        after = self._devices.step_counts()
        step = MeasuredStep.between(self._before, after, seconds, self._steps_a_call)
        self._filled.step(step, after)
        if not self._progress.counts(traces):
            self._replan_if(self._progress.wait_no_longer())
            return
        if self._phase is Phase.FIRST:
            self._library.trim_malloc()  # of tracing and optimising
            self._progress.go_to(self._choice.first_ended(self._surely_trains))
        elif self._phase is Phase.WARM:
            self._ratios.stop()
            self._progress.phase = Phase.WARM if self._waits_for_sampler else Phase.PROFILE
        elif self._phase is Phase.PROFILE:
            self._progress.profiled(step.seconds, traces)
        elif self._phase is Phase.SETTLE:
            self._progress.go_to(Phase.MEASURE)
            self._library.trim_malloc()
            self._choice.check_in_force()
        elif self._phase is Phase.MEASURE:
            self._progress.measured.append(step)
            following = self._choice.check(self._progress.measured)
            if following is not Phase.MEASURE:
                self._progress.go_to(following)
        elif self._phase is Phase.STEADY:
            if self._looks_at_places:
                self._place_anew()
            if self._choice.is_stock and after["slab_limit_bytes"] == 0:
                # What the profile foretold can now be measured.
                self._stock_peak_bytes = max(self._stock_peak_bytes, step.peak_bytes)
                self.report.unswapped_peak_bytes = self._stock_peak_bytes
            self._progress.settled_step(step, self._watches_step)
        was_settled = self._phase.is_settled
        self._steps_since_look += 1
        self._addresses_after(_TRAIN)
        if was_settled:
            why = self._progress.watch(step, traces.get(self._devices.device))
            if not self._why_anew:
                self._replan_if(why)

    def step_abandoned(self) -> None:
        """Instead of `step_ended`, when the step failed: the next one is as this was to be."""
        self._progress.recordings.stop()
        if self._phase is Phase.WARM or self._looks_at_places:
            self._ratios.stop()
        self._addresses.stop()
        self._shared.step_ended()

    def between_steps(self) -> None:
        """Has other calls run as without tfswap until `step_begins`."""
        self._session.leave()
        self._shared.step_ended()

    def traced_again(self) -> None:
        """There is a graph that has not been seen: it may train."""
        if self._phase is Phase.LAZY:
            self._progress.phase = Phase.FIRST

    @property
    def is_measuring(self) -> bool:
        """Whether the time matters that this step takes until all that it does is done."""
        return self._phase not in (Phase.IDLE, Phase.FIRST, Phase.LAZY)

    def test_begins(self) -> None:
        if self._phase is not Phase.IDLE:
            self._shared.step_begins()
            self._addresses.call_begins(_TEST)

    def test_ended(self) -> None:
        if self._phase is not Phase.IDLE:
            self._addresses_after(_TEST)
            self._shared.step_ended()

    def _turn_to_busiest_device(self) -> None:
        """Of several GPUs, the one that needed most memory is planned for."""
        before = self._devices.find_busiest()
        if before is None:
            return
        self._before = before
        self._plan.install_layouts()
        self._choice.devices_changed()

    def _replan_if(self, why: str) -> None:
        if why:
            self.replan(why)

    def _plan_anew(self) -> None:
        why, self._why_anew = self._why_anew, ""
        self._progress.leave_further()
        if not self._phase.has_planned:
            self._choice.devices_changed()
            return
        self._progress.turn.only = ""
        self._voice.note(f"{why}: a new plan is made")
        self._addresses.end()
        self._stock_peak_bytes = 0
        for each in self._progress.turn.further.values():
            each.plan_anew()
        self._progress.go_to(self._choice.plan_anew())
        self._progress.tell_graphs_apart()

    def _place_anew(self) -> None:
        self._ratios.stop()
        self._looks_at_places = False
        self._steps_since_look = 0
        if self._choice.place_anew():
            self._progress.measured = []

    def _addresses_after(self, kind: str) -> None:
        """Has addresses planned for a graph that has run often enough without any."""
        if self._addresses.call_ended(kind, self._steps_a_call):
            self._progress.measured = []
        if self._phase is Phase.LAYOUT and self._addresses.are_settled():
            self._progress.phase = Phase.STEADY
            self._choice.remember()

    # What people see.

    def state(self) -> dict[str, Any]:
        """For `tfswap.status()`."""
        return {
            "phase": self._phase.value,
            "outcome": self.report.outcome,
            "in_force": self._session.in_force(),
            "budget_bytes": self._devices.budget_bytes,
            **self._shared.state(),
        }
