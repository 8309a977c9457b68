"""SwapRun: the life of a plan during the training of one function, step by step.

::

    first ─▶ warm ─▶ profiled steps ─▶ plan, push ─▶ settle ─▶ measure ─▶ check ─▶ steady
      ▲  (lazy swaps keep the budget)   │  ▲  ▲                             │    └▶ addresses
      └─── other sections (≤ 3 times) ◀─┘  │  └────── correct (≤ 3 times) ◀─┘      │
                                           └─────────────── replan ◀───────────────┘

`PlanChoice` plans and decides; what is here is when. Steady steps are looked at now and then: what
drifts leads to another plan, and a further graph that runs often goes from *warm* on for itself.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from typing import Any

from tfswap.plan import SwapPlan
from tfswap.planners.assignment import AUTO, CSWAP
from tfswap.report.summary import Report
from tfswap.report.tensorboard import TensorBoardLog
from tfswap.state import run_ended, run_started
from tfswap.trace import StepTrace
from tfswap.training.attempt import MeasuredStep
from tfswap.training.far_ratios import RatioSamples
from tfswap.training.graph_turn import GraphTurn
from tfswap.training.lossy_run import LossyRun, check_plan
from tfswap.training.pass_session import PassSession
from tfswap.training.phase import Phase
from tfswap.training.plan_choice import PlanChoice
from tfswap.training.plan_in_force import PlanInForce
from tfswap.training.run_report import RunReport
from tfswap.training.settled_watch import SettledWatch
from tfswap.training.share_watch import News, ShareWatch
from tfswap.training.step_addresses import StepAddresses
from tfswap.training.step_recordings import PROFILED_STEPS, StepRecordings
from tfswap.training.swap_session import SwapSession
from tfswap.training.voice import Voice

# How often tensors' places are looked at again, at most; and where lossy codecs have another rate.
_STEPS_BETWEEN_LOOKS = 32
_STEPS_AT_A_RATE = 8
# Of a plan that another one is to be better than, after something has drifted.
_LATEST = 8

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
    _plan: PlanInForce
    _turn: GraphTurn
    _first_choice: PlanChoice
    _addresses: StepAddresses
    _recordings: StepRecordings
    _watch: ShareWatch
    _settled: SettledWatch

    def __init__(
        self,
        session: SwapSession,
        key: Any,
        voice: Voice,
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
        self._phase = Phase.IDLE
        self._taken = ExitStack()  # what is to be given back
        self._looks_at_places = False
        self._steps_since_look = 0
        self._waits_for_sampler = False
        self._why_anew = ""  # there is to be a new plan; "": there is not
        self._shapes_vary = False  # of tensors, in steps of one graph
        self._watches_step = False  # the step is recorded for what drifts
        self._measured: list[MeasuredStep] = []
        self._stock_peak_bytes = 0  # measured while the graph was as TensorFlow made it
        self._step_start_s = 0.0
        self._before: dict[str, int] = {}

    # The beginning and the end.

    def begin(self) -> None:
        """Puts lazy swaps, or the given plan, in force; the first steps run under them."""
        self._watch = ShareWatch(self._shared, self._devices, self._session, self._voice)
        run_started(self)
        self._taken.callback(run_ended, self)
        self.report.budget_bytes = self._devices.budget_bytes
        self._ratios = RatioSamples(self._library, self._devices.codecs.sampled)
        self._lossy = LossyRun(self._library, self._ratios, self._epochs)
        self._plan = PlanInForce(
            self._library, self._options, self._devices, self._session, self._lossy, self._voice
        )
        self._first_choice = PlanChoice(
            self._library,
            self._options,
            self._devices,
            self._session,
            self._plan,
            self._ratios,
            self._lossy,
            self._voice,
            self._filled,
            given=self._given_plan,
            cuts=self._cuts,
            foretold=self._shared.expect,
            profiled=self._shared.know,
        )
        self._turn = GraphTurn(self._first_choice)
        self._settled = SettledWatch(self._options, self._devices, self._plan, self._turn)
        self._addresses = StepAddresses(
            self._library,
            self._options,
            self._devices,
            self._plan,
            self._voice,
            self.report,
            _TRAIN,
        )
        self._recordings = StepRecordings(self._library, self._devices)
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
        self._phase = Phase.FIRST

    def expect_batch(self, examples: int) -> None:
        """Says before the first step how many examples a whole batch has."""
        if self._phase is Phase.FIRST:
            self._choice.expect_batch(examples)

    def foretell_batch(self, examples: int) -> None:
        """Says before the first step how many examples batches seem to have."""
        self._choice.foretell_batch(examples)

    def leave_whole(self) -> None:
        """Says before the first step that batches cannot be cut."""
        self._choice.leave_whole()

    def replan(self, reason: str) -> None:
        """Has a new plan made before the next step, for the devices' budget and link as they are.

        It is made of the profile that is there, and settles, is measured and checked as the first
        one was; addresses are planned anew. Where no plan fits, lazy swaps keep the budget. Before
        there is a first plan nothing is to be done: that goes by what it finds. Of another thread,
        too.

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
        self._leave_further()
        if self.trains and not self._phase.is_settled and self.report.outcome != "fits":
            self._voice.note("training ended before the plan was settled")
        self._choice.update_measured(self._measured)
        if self._phase.is_settled:
            for choice in self._turn.choices:
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
        if self._phase is not Phase.IDLE:
            self._recordings.stop()
            self._ratios.stop()
        self._phase = Phase.IDLE
        self._taken.close()

    @property
    def _choice(self) -> PlanChoice:
        """Of the graph whose turn it is."""
        return self._turn.choice

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
            self._choice.update_measured(self._measured)

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
        self._look_at_share()
        if self._phase is Phase.LAZY:
            return
        if self._why_anew:
            self._plan_anew()
        if self._phase is Phase.PROFILE and not self._is_further:
            self._devices.profiled_step_begins()
        if self._phase is Phase.WARM or self._looks_at_places:
            self._waits_for_sampler = not self._ratios.start()
        self._watches_step = self._wants_to_watch()
        if self._phase is Phase.PROFILE or self._turn.only or self._watches_step:
            self._recordings.start()
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
            traces = self._recordings.stop()
        after = self._devices.step_counts()
        step = MeasuredStep.between(self._before, after, seconds, self._steps_a_call)
        if self._devices.job:
            self._filled.share_grew(after["budget_bytes"])
        self._filled.step(step, after)
        if self._turn.only and not self._counts(traces.get(self._devices.device)):
            return
        if self._phase is Phase.FIRST:
            self._library.trim_malloc()  # of tracing and optimising
            self._go_to(self._choice.first_ended(self._surely_trains))
        elif self._phase is Phase.WARM:
            self._ratios.stop()
            self._phase = Phase.WARM if self._waits_for_sampler else Phase.PROFILE
        elif self._phase is Phase.PROFILE:
            if self._recordings.add(step.seconds, traces):
                recordings = self._recordings
                self._recordings = StepRecordings(self._library, self._devices)
                self._voice.say(f"profiled {PROFILED_STEPS} steps, planning ...")
                self._go_to(self._choice.plan_from(recordings.fastest(), recordings.seconds))
                self._watch.planned()
                self._shapes_vary |= recordings.vary
                self._tell_graphs_apart()
        elif self._phase is Phase.SETTLE:
            self._go_to(Phase.MEASURE)
            self._library.trim_malloc()
            self._choice.check_in_force()
        elif self._phase is Phase.MEASURE:
            self._measured.append(step)
            following = self._choice.check(self._measured)
            if following is not Phase.MEASURE:
                self._go_to(following)
        elif self._phase is Phase.STEADY:
            if self._looks_at_places:
                self._place_anew()
            self._choice.step_was_lazy(step.seconds)
            if self._choice.is_stock and after["slab_limit_bytes"] == 0:
                # What the profile foretold can now be measured.
                self._stock_peak_bytes = max(self._stock_peak_bytes, step.peak_bytes)
                self.report.unswapped_peak_bytes = self._stock_peak_bytes
            self._measured.append(step)
            if len(self._measured) > 64:
                del self._measured[:32]
            self._settled.drift.step_ended(
                step.seconds, self._watches_step and self._settled.drift.wants
            )
        was_settled = self._phase.is_settled
        self._steps_since_look += 1
        self._addresses_after(_TRAIN)
        if was_settled:
            self._watch_settled(step, traces.get(self._devices.device))

    def step_abandoned(self) -> None:
        """Instead of `step_ended`, when the step failed: the next one is as this was to be."""
        self._recordings.stop()
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
            self._phase = Phase.FIRST

    @property
    def is_measuring(self) -> bool:
        """Whether the time matters that this step takes until all that it does is done."""
        return self._phase not in (Phase.IDLE, Phase.FIRST, Phase.LAZY)

    def test_begins(self) -> None:
        if self._phase is not Phase.IDLE:
            self._shared.step_begins()
            self._watch.validation_begins()
            self._addresses.call_begins(_TEST)

    def test_ended(self) -> None:
        if self._phase is not Phase.IDLE:
            self._addresses_after(_TEST)
            self._shared.step_ended()

    def _go_to(self, phase: Phase) -> None:
        """Enters a phase; where the plan stays, addresses are planned for it."""
        self._measured = []
        self._settled.drift.begin_anew()
        if phase in (Phase.LAYOUT, Phase.STEADY, Phase.FIRST):
            self._turn.all_count()
        if self._is_further:
            self._go_on_with_further(phase)
            return
        if phase is Phase.LAYOUT and not self._addresses.begin(self._choice.fingerprint):
            phase = Phase.STEADY
        self._phase = phase

    def _turn_to_busiest_device(self) -> None:
        """Of several GPUs, the one that needed most memory is planned for."""
        before = self._devices.find_busiest()
        if before is None:
            return
        self._before = before
        self._plan.install_layouts()
        self._choice.devices_changed()

    def _look_at_share(self) -> None:
        """Before a step: there may be more or less memory for it."""
        choice = self._first_choice
        planned = choice.planned_bytes if self._phase.has_planned or self._is_further else 0
        news = self._watch.look(planned)
        if news is not News.NONE:
            self._leave_further()
        # In much less, a plan's order of ops does where lazy swaps would not.
        if news is News.PLAN or (news is News.LESS and choice.has_profile):
            self.replan(self._watch.said())
        elif news is not News.NONE:
            self._begin_profile_anew_if(self._choice.share_changed())
            self._addresses.end()
            if self._phase is Phase.LAYOUT:
                self._go_to(Phase.STEADY)
            if news is News.LESS:
                for each in self._turn.choices:
                    each.go_lazy()
                self._go_to(Phase.STEADY)

    def _plan_anew(self) -> None:
        why, self._why_anew = self._why_anew, ""
        self._leave_further()
        if not self._phase.has_planned:
            self._begin_profile_anew_if(self._choice.devices_changed())
            return
        self._turn.only = ""
        self._voice.note(f"{why}: a new plan is made")
        self._addresses.end()
        self._stock_peak_bytes = 0
        for each in self._turn.further.values():
            each.plan_anew()
        self._go_to(self._choice.plan_anew())
        self._watch.planned()
        self._tell_graphs_apart()

    def _begin_profile_anew_if(self, other_graph: bool) -> None:
        """Steps that were recorded before the first plan are none of the graph as it is now."""
        if other_graph and self._phase in (Phase.WARM, Phase.PROFILE):
            self._look_anew(Phase.WARM)

    def _place_anew(self) -> None:
        self._ratios.stop()
        self._looks_at_places = False
        self._steps_since_look = 0
        if self._choice.place_anew():
            self._measured = []

    def _addresses_after(self, kind: str) -> None:
        """Has addresses planned for a graph that has run often enough without any."""
        if self._addresses.call_ended(kind, self._steps_a_call):
            self._measured = []
        if self._phase is Phase.LAYOUT and self._addresses.are_settled():
            self._phase = Phase.STEADY
            self._choice.remember()

    # What drifts, and further graphs.

    def _wants_to_watch(self) -> bool:
        """Whether the next step is recorded in passing; addresses come first."""
        return (
            self._phase is Phase.STEADY
            and not self._addresses.wants(_TRAIN)
            and self._settled.wants
        )

    def _watch_settled(self, step: MeasuredStep, trace: StepTrace | None) -> None:
        """Behind a step under a settled plan: there may have to be another one, or one more.

        Args:
            step: As measured.
            trace: Its recording, if it was recorded in passing.
        """
        ran = self._addresses.recorded if trace is None else trace.main_graph()
        latest, may_plan = self._measured[-_LATEST:], self._phase is Phase.STEADY
        found = self._settled.look(step, trace, ran, latest, may_plan)
        if found.further:
            self._plan_further(found.further)
        elif found.larger is not None:
            self._plan_larger(found.larger)
        elif found.drifted is not None:
            self._turn.take(found.drifted, Phase.STEADY)
            if not self._is_further:
                self._addresses.end()
            self._go_to(Phase.SETTLE)
            self._tell_graphs_apart()
        elif found.link and not self._why_anew:
            self.replan(found.link)

    @property
    def _is_further(self) -> bool:
        """Whether it is a further graph's turn to be profiled, planned or measured."""
        return self._phase is not Phase.IDLE and self._turn.is_further

    def _plan_further(self, fingerprint: str) -> None:
        """Begins with a graph as with the first one; meanwhile that keeps its plan."""
        self._settled.graphs.begin_anew()
        self._plan.forget_layout(fingerprint)
        choice = PlanChoice(
            self._library,
            dataclasses.replace(self._options, save_profile=None, sections=1),
            self._devices,
            self._session,
            self._plan,
            self._ratios,
            self._lossy,
            self._voice,
            RunReport(Report()),
            cuts=False,
            further=True,
        )
        self._turn.take(choice, self._phase, fingerprint)
        self._look_anew(Phase.WARM)

    def _plan_larger(self, choice: PlanChoice) -> None:
        """Profiles a planned graph anew, in steps for larger tensors: smaller ones fit, too."""
        if choice.planned_function is None or not self._measured:
            return
        self._voice.note(
            "steps for larger tensors than were planned come often: they are profiled, for a plan "
            "that has room for them"
        )
        self._settled.graphs.began_larger(choice.fingerprint)
        choice.profile_anew(self._measured[-_LATEST:])
        self._turn.take(choice, Phase.STEADY, choice.fingerprint, only_larger=True)
        if not self._is_further:
            self._addresses.end()
        self._look_anew(Phase.WARM)

    def _look_anew(self, phase: Phase) -> None:
        """Enters a phase without what was recorded and measured."""
        self._recordings = StepRecordings(self._library, self._devices)
        self._measured = []
        self._phase = phase

    def _go_on_with_further(self, phase: Phase) -> None:
        """As `_go_to`, for a further graph."""
        if phase is Phase.FIRST:  # the pass has forgotten the graph
            phase = Phase.STEADY
        if phase not in (Phase.LAYOUT, Phase.STEADY):
            self._phase = phase
            return
        choice, function = self._choice, self._choice.planned_function
        known = choice.fingerprint in self._turn.further
        if function is None:
            self._settled.graphs.refuse(choice.fingerprint)
        self._leave_further()
        if function is not None and not known:
            self._voice.note(
                f"{len(self._turn.choices)} graphs of this training (for other shapes, say) have "
                f"plans of their own: in the last one {len(function.swaps)} tensors leave and "
                f"{len(function.recomputes)} are made again, for steps of "
                f"{function.predicted_step_ns / 1e9:.3g} s"
            )
        self.report.plan = self._plan.plan
        self._addresses.expect(_TRAIN)

    def _leave_further(self) -> None:
        """Goes back to the first graph; harmless when it is its turn."""
        if self._phase is Phase.IDLE or not self._turn.leave():
            return
        self._ratios.stop()
        self._settled.drift.begin_anew()
        self._look_anew(self._turn.back_to)

    def _counts(self, trace: StepTrace | None) -> bool:
        """Whether the step was one of the graph that is looked at; they may come no more."""
        has_planned = self._phase.has_planned
        if self._turn.counts(trace, has_planned):
            return True
        if self._phase is Phase.WARM:
            self._ratios.stop()
        if self._turn.come_no_more(has_planned):
            self._wait_no_longer()
        return False

    def _wait_no_longer(self) -> None:
        """Steps that are looked at come no more."""
        were_larger = self._turn.only_larger
        self._turn.only = ""
        self._leave_further()
        if were_larger:
            self._turn.only_larger = False
            self._look_anew(Phase.STEADY)
            self.replan("steps for larger tensors come no more")

    def _tell_graphs_apart(self) -> None:
        """Has only steps like the profiled one count where there are others."""
        if self._phase not in (Phase.SETTLE, Phase.MEASURE) or self._turn.only:
            return
        if self._shapes_vary or len(self._choice.training_graphs()) > 1:
            self._turn.tell_apart(self._choice.fingerprint)

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
