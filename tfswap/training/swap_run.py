"""SwapRun: the life of a plan during the training of one function.

::

    first ─▶ warm ─▶ profiled steps ─▶ plan, push ─▶ settle ─▶ measure ─▶ check ─▶ steady
      ▲  (lazy swaps keep the budget)   │  ▲                                │    └▶ addresses
      └─── other sections (≤ 3 times) ◀─┘  └──────── correct (≤ 3 times) ◀──┘
"""

from __future__ import annotations

import dataclasses
import enum
import statistics
import time
from contextlib import ExitStack
from typing import Any

from tfswap.grappler.graph import StepGraph
from tfswap.plan import FunctionPlan, SwapPlan
from tfswap.planners.assignment import AUTO, CSWAP, FarMemoryTooSmall
from tfswap.planners.decision import BudgetTooSmall
from tfswap.planning import Planned
from tfswap.profile import Profile
from tfswap.report.amounts import readable_bytes
from tfswap.report.summary import Report, summary_lines
from tfswap.report.tensorboard import TensorBoardLog
from tfswap.state import run_ended, run_started
from tfswap.swap_options import AUTO_SECTIONS
from tfswap.trace import StepTrace
from tfswap.training.attempt import Attempt, MeasuredStep, best
from tfswap.training.far_ratios import RatioSamples
from tfswap.training.lossy_run import LossyRun, check_plan
from tfswap.training.pass_session import PassSession
from tfswap.training.plan_in_force import PlanInForce
from tfswap.training.run_report import RunReport
from tfswap.training.section_search import SectionSearch, Trial, sections_of
from tfswap.training.step_addresses import StepAddresses
from tfswap.training.step_planner import Forgotten, StepPlanner
from tfswap.training.step_recordings import PROFILED_STEPS, StepRecordings
from tfswap.training.swap_session import SwapSession
from tfswap.training.voice import Voice

_MAX_CORRECTIONS = 3
_MEASURED_STEPS = 2
# Of a plan that seems to be slower than lazy swaps: others' work on the machine may be why.
_DOUBTED_STEPS = 8
# How often tensors' places are looked at again, at most; and where lossy codecs have another rate.
_STEPS_BETWEEN_LOOKS = 32
_STEPS_AT_A_RATE = 8
# A model that needs no more than this share of the budget is left alone. Others have a plan, be it
# for the order alone: stock TensorFlow's varies, and in one order VGG16 needs 1.18 of another's.
_CLEARLY_FITS = 0.8
# Between these parts of the budget that was planned for, another one needs no other plan. How many
# steps under a new share are waited for: variables that were no job's are replaced in the first.
_STILL_ENOUGH, _WORTH_A_PLAN = 0.99, 1.05
_STEPS_TO_REPLAN = 2


class _Phase(enum.Enum):
    IDLE = "idle"
    FIRST = "first"
    WARM = "warm"  # the second call of a function is still slow, and would be a bad profile
    PROFILE = "profile"
    SETTLE = "settle"
    MEASURE = "measure"
    LAYOUT = "addresses"  # what the plan's steps allocate is recorded, and packed; that is tried
    STEADY = "steady"
    LAZY = "lazy"  # what does not train has no plan: lazy swaps stay


# Kinds of calls, for recordings.
_TRAIN, _TEST = "train", "test"
_SETTLED = (_Phase.LAYOUT, _Phase.STEADY)
_PLANNED = (_Phase.SETTLE, _Phase.MEASURE, *_SETTLED)


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
    _planner: StepPlanner
    _plan: PlanInForce
    _addresses: StepAddresses
    _recordings: StepRecordings

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
        wanted = self._options.sections or 1 if cuts else 1
        self._chooses = wanted == AUTO_SECTIONS
        self._sections = 1 if isinstance(wanted, str) else wanted
        given = plan is not None and bool(plan.functions)
        self._search: SectionSearch[tuple[StepPlanner, Planned | None]] = SectionSearch(
            self._chooses and not given
        )
        self._phase = _Phase.IDLE
        self._taken = ExitStack()  # what is to be given back
        self._looks_at_places = False
        self._steps_since_look = 0
        self._lazy_s: list[float] = []  # of steps under lazy swaps
        self._attempts: list[Attempt] = []
        self._measured: list[MeasuredStep] = []
        self._is_stock = False  # the graph is as TensorFlow made it: the model fits
        self._stock_peak_bytes = 0  # measured then
        self._step_start_s = 0.0
        self._before: dict[str, int] = {}
        self._share_version = 0  # of what the session has of the devices
        self._planned_bytes = 0  # the budget that the plan was made for
        self._replan_in = 0  # steps; 0: not at all
        self._is_lazy = False  # until the replan, since the plan needs more
        self._waits_for_sampler = False

    # The beginning and the end.

    def begin(self) -> None:
        """Puts lazy swaps, or the given plan, in force; the first steps run under them."""
        self._share_version = self._shared.version  # first: shares may change meanwhile
        run_started(self)
        self._taken.callback(run_ended, self)
        self.report.budget_bytes = self._devices.budget_bytes
        self._ratios = RatioSamples(self._library, self._devices.sampled_codecs)
        self._lossy = LossyRun(self._library, self._ratios, self._epochs)
        self._planner = self._new_planner()
        self._plan = PlanInForce(
            self._library, self._options, self._devices, self._session, self._lossy, self._voice
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
        self._recordings = StepRecordings(self._library, self._devices)
        self._session.belongs_to(self._devices.job)
        self._taken.callback(self._session.withdraw)
        self._taken.callback(self._lossy.end)
        self._taken.callback(self._addresses.end)
        self._plan.begin(self._given_plan or SwapPlan(), self._sections, self._chooses)
        self._plan.install_layouts()
        if self._options.log_dir is not None:
            log = TensorBoardLog(self._options.log_dir, self._voice.name)
            self._taken.callback(log.close)
            self._filled.log = log
        self._phase = _Phase.FIRST

    def _new_planner(self) -> StepPlanner:
        return StepPlanner(
            self._library, self._options, self._devices, self._ratios, self._lossy, self._voice.say
        )

    def expect_batch(self, examples: int) -> None:
        """Says before the first step how many examples a whole batch has."""
        plan = self._plan.plan
        if self._phase is _Phase.FIRST and plan.sections > 1 and not plan.batch:
            self._plan.push(dataclasses.replace(plan, batch=examples))

    def leave_whole(self) -> None:
        """Says before the first step that batches cannot be cut."""
        self._chooses = False
        self._search.stop()
        self._plan.push(dataclasses.replace(self._plan.plan.in_sections(1), chooses=False))

    def step_failed(self, error: BaseException) -> None:
        """Keeps what an error says of memory."""
        self._filled.failed(error)

    def finish(self) -> None:
        """The normal end of training."""
        if self._phase is _Phase.IDLE:
            return
        if self.trains and self._phase not in _SETTLED and self.report.outcome != "fits":
            self._voice.note("training ended before the plan was settled")
        self._update_measured()
        self._devices.check_codecs(wait=True)
        problem = self._devices.file_problem()
        if problem:
            self._voice.warn(
                f"the file tier failed, so more than planned stayed in memory: {problem}"
            )
        self.end()

    def end(self) -> None:
        """Takes everything back; harmless when called again."""
        if self._phase is _Phase.PROFILE:
            self._recordings.stop()
        if self._phase is not _Phase.IDLE:
            self._ratios.stop()
        self._phase = _Phase.IDLE
        self._taken.close()

    @property
    def trains(self) -> bool:
        """Whether it is a training, as far as is known."""
        return self._phase is not _Phase.LAZY

    @property
    def settled_plan(self) -> SwapPlan | None:
        """The plan, if it is one that will stay."""
        return self._plan.plan if self._phase in _SETTLED else None

    def refresh(self) -> None:
        """Brings the report up to date."""
        if self._phase is not _Phase.IDLE:
            self._update_measured()

    # Steps.

    def epoch_begins(self, epoch: int) -> None:
        """What codecs make of tensors drifts, and disks slow down: its first step is looked at."""
        due_after = _STEPS_BETWEEN_LOOKS
        if self._phase is not _Phase.IDLE:
            if self._lossy.epoch_begins(epoch):
                due_after = _STEPS_AT_A_RATE
            self.report.lossy = self._lossy.use()
        self._looks_at_places = (
            self._phase is _Phase.STEADY
            and self._steps_since_look >= due_after
            and self._planner.has_planned
            and self.report.outcome == "swapped"
            and (self._options.codec in (AUTO, CSWAP) or self._options.spill_dir is not None)
        )

    def step_begins(self) -> None:
        if self._phase is _Phase.IDLE:
            return
        self._shared.step_begins()
        if self._session.enter():
            self._voice.note(
                "the session's options had changed meanwhile; the plan is back in force"
            )
        self._look_at_share()
        if self._phase is _Phase.LAZY:
            return
        if self._phase is _Phase.PROFILE:
            self._devices.profiled_step_begins()
            self._recordings.start()
        elif self._phase is _Phase.WARM or self._looks_at_places:
            self._waits_for_sampler = not self._ratios.start()
        self._addresses.call_begins(_TRAIN)
        if self._phase is _Phase.FIRST:
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
        if self._phase in (_Phase.IDLE, _Phase.LAZY) or not self._before:
            return
        seconds = time.perf_counter() - self._step_start_s
        self._devices.check_codecs()
        traces: dict[int, StepTrace] = {}
        if self._phase is _Phase.PROFILE:
            traces = self._recordings.stop()
        elif self._phase is _Phase.FIRST:
            self._turn_to_busiest_device()
        after = self._devices.step_counts()
        step = MeasuredStep.between(self._before, after, seconds, self._steps_a_call)
        self._filled.step(step, after)
        if self._phase is _Phase.FIRST:
            self._first_ended()
        elif self._phase is _Phase.WARM:
            self._ratios.stop()
            self._phase = _Phase.WARM if self._waits_for_sampler else _Phase.PROFILE
        elif self._phase is _Phase.PROFILE:
            if self._recordings.add(step.seconds, traces):
                recordings = self._recordings
                self._recordings = StepRecordings(self._library, self._devices)
                self._lazy_s = recordings.seconds
                self._plan_from(recordings.fastest())
        elif self._phase is _Phase.SETTLE:
            self._measured = []
            self._phase = _Phase.MEASURE
            self._library.trim_malloc()
            self._check_in_force()
        elif self._phase is _Phase.MEASURE:
            self._measured.append(step)
            if len(self._measured) >= _MEASURED_STEPS:
                self._check()
        elif self._is_lazy:
            self._lazy_s.append(step.seconds)
        elif self._phase is _Phase.STEADY:
            if self._looks_at_places:
                self._place_anew()
            if self._is_stock and after["slab_limit_bytes"] == 0:
                # What the profile foretold can now be measured.
                self._stock_peak_bytes = max(self._stock_peak_bytes, step.peak_bytes)
                self.report.unswapped_peak_bytes = self._stock_peak_bytes
            self._measured.append(step)
            if len(self._measured) > 64:
                del self._measured[:32]
        self._steps_since_look += 1
        self._addresses_after(_TRAIN)

    def step_abandoned(self) -> None:
        """Instead of `step_ended`, when the step failed: the next one is as this was to be."""
        if self._phase is _Phase.PROFILE:
            self._recordings.stop()
        elif self._phase is _Phase.WARM or self._looks_at_places:
            self._ratios.stop()
        self._addresses.stop()
        self._shared.step_ended()

    def between_steps(self) -> None:
        """Has other calls run as without tfswap until `step_begins`."""
        self._session.leave()
        self._shared.step_ended()

    # Beside other trainings.

    def _look_at_share(self) -> None:
        """Takes notice, before a step, that there is more or less memory for it."""
        version = self._shared.version
        if version == self._share_version:
            if self._replan_in > 0:
                self._replan_in -= 1
                if self._replan_in == 0:
                    self.replan(self._of_sharing())
            return
        was_alone = not self._session.job
        self._share_version = version
        self._session.belongs_to(self._devices.job)
        self._note_budget()
        is_alone = not self._devices.job
        if was_alone != is_alone:
            self._lazy_s = []  # the others' work takes time
            self._voice.note(self._of_sharing())
            self._addresses.end()
        if self._planner.profile is None or self._phase not in _PLANNED:
            return
        less = self._devices.budget_bytes < _STILL_ENOUGH * self._planned_bytes
        more = self._devices.budget_bytes > _WORTH_A_PLAN * self._planned_bytes
        if less:
            # Any share will do for lazy swaps.
            self._plan.push(self._plan.plan.without_function(self._planner.fingerprint))
            self._is_stock = False
            self._measured = []
            self._lazy_s = []
            self._phase = _Phase.STEADY
            self._is_lazy = True
        if less or more or was_alone != is_alone:
            self._replan_in = _STEPS_TO_REPLAN

    def _of_sharing(self) -> str:
        sharing = self._shared.state()["sharing"]
        if sharing == 1:
            return "this training has the device for itself again"
        budget_bytes = self._devices.budget_bytes
        return (
            f"{sharing} trainings share the device: up to {readable_bytes(budget_bytes)} of "
            f"{readable_bytes(self._devices.total_bytes)} are for this one"
        )

    def _note_budget(self) -> None:
        self._filled.budget_changed(self._devices.budget_bytes)
        self._plan.note(budget_bytes=self._devices.budget_bytes)

    def replan(self, reason: str) -> None:
        """Plans anew for the budget that there is now, if the step is known."""
        profile = self._planner.profile
        if profile is None or self._phase not in _PLANNED:
            return
        self._voice.note(f"{reason}: planning anew")
        self._addresses.end()
        self._attempts = []
        self._measured = []
        self._is_stock = self._is_lazy = False
        self._go_on_with(self._tried(profile))

    def traced_again(self) -> None:
        """There is a graph that has not been seen: it may train."""
        if self._phase is _Phase.LAZY:
            self._phase = _Phase.FIRST

    @property
    def is_measuring(self) -> bool:
        """Whether the time matters that this step takes until all that it does is done."""
        return self._phase not in (_Phase.IDLE, _Phase.FIRST, _Phase.LAZY)

    def test_begins(self) -> None:
        if self._phase is not _Phase.IDLE:
            self._shared.step_begins()
            self._addresses.call_begins(_TEST)

    def test_ended(self) -> None:
        if self._phase is not _Phase.IDLE:
            self._addresses_after(_TEST)
            self._shared.step_ended()

    def _turn_to_busiest_device(self) -> None:
        """Of several GPUs, the one that needed most memory is planned for."""
        before = self._devices.find_busiest()
        if before is None:
            return
        self._before = before
        self._plan.install_layouts()
        self.report.budget_bytes = self._devices.budget_bytes
        self._plan.note(budget_bytes=self._devices.budget_bytes)
        self._planner.machine = self._devices.machine()

    def _first_ended(self) -> None:
        self._library.trim_malloc()  # of tracing and optimising
        records = self._session.records()
        for record in records:
            if record["outcome"] == "refused" and self._session.is_new(record):
                self._voice.warn(f"the plan was not applied to a graph: {record['reason']}")
        if not any(r["outcome"] in ("bootstrapped", "planned", "left") for r in records):
            self._voice.warn(
                "TensorFlow's graph optimizer did not run tfswap's pass, so nothing is swapped "
                "(is it disabled with tf.config.optimizer or 'disable_meta_optimizer'?). The "
                "budget is still enforced."
            )
            self._phase = _Phase.STEADY
            return
        if not self._surely_trains and not any(map(self._has_gradients, records)):
            self._phase = _Phase.LAZY
            return
        self._say_of_sections(records)
        planned = [r for r in records if r["outcome"] == "planned"]
        if self._given_plan is not None and planned:
            function = self._plan.function(planned[-1]["fingerprint"])
            assert function is not None
            self._planner.fingerprint = function.fingerprint
            self._adopt(function)
            self._measured = []
            self._phase = _Phase.MEASURE
            return
        if self._given_plan is not None and self._plan.rename(records):
            return
        known = any(self._plan.function(r["fingerprint"]) is not None for r in records)
        if self._given_plan is not None and not known:
            self._voice.warn(
                "the plan that was given fits none of this training's graphs (another model, "
                "optimizer, shapes or TensorFlow): a new one is made."
            )
        self._phase = _Phase.WARM

    def _say_of_sections(self, records: list[dict[str, Any]]) -> None:
        cut = [record for record in records if record["sectioned_ops"]]
        self.report.sections = max((record["sections"] for record in cut), default=1)
        wanted = 1 if self._chooses else self._plan.plan.sections
        if wanted > 1 and not cut:
            self._voice.warn(
                f"sections={wanted} has no effect: no op was found that can work on a part of the "
                "batch. Its size must be known before the step, and be a multiple of it."
            )

    def _has_gradients(self, record: dict[str, Any]) -> bool:
        graph = StepGraph.parse(self._library.describe(record["fingerprint"]))
        return any(node.backward for node in graph.nodes.values())

    def _plan_from(self, traces: dict[int, StepTrace]) -> None:
        self._voice.say(f"profiled {PROFILED_STEPS} steps, planning ...")
        if not self._take_sections(traces[self._devices.device].main_graph()):
            self._go_on_with(self._search.best)
            return
        try:
            profile = self._planner.read(traces, self._plan.plan.min_bytes)
        except Forgotten:
            # Another text has the pass see it again.
            self._session.push_anew(self._plan.plan)
            self._phase = _Phase.FIRST
            return
        except ValueError as error:
            self._stay_with_bootstrap(str(error))
            return
        if self._devices.look_again():
            self.report.budget_bytes = self._devices.budget_bytes
            self._plan.note(budget_bytes=self._devices.budget_bytes)
        self._filled.profiled(profile, self._planner.least_budgets())
        self._shared.know(profile.timeline, self._planner.machine)
        self._look_at_share()
        self._search.add(self._tried(profile))
        more = self._search.next()
        if more is None:
            self._go_on_with(self._search.best)
        else:
            self._try_sections(more)

    def _take_sections(self, fingerprint: str | None) -> bool:
        """Keeps the plan to the number that the profiled step was cut into.

        Args:
            fingerprint: Of its graph; None if it has none.

        Returns:
            Whether it is the one that was tried.
        """
        records = {r["fingerprint"]: r for r in self._library.pass_records()}
        record = records.get(fingerprint or "")
        if record is None:
            return True
        made = record["sections"]
        if made == 1 and self._search.is_under_way:
            self._search.stop()
            return False
        self.report.sections = made
        self._search.examples = self._search.examples or record["examples"]
        if self._chooses and not self._search.is_under_way:
            self._plan.plan = self._plan.plan.in_sections(made)
            self._plan.note(batch=record["examples"])
        elif made > 1 and not self._plan.plan.batch:
            self._plan.note(batch=record["examples"])
        return True

    def _tried(self, profile: Profile) -> Trial[tuple[StepPlanner, Planned | None]]:
        """What can be foretold of the profiled step with as many sections as there are."""
        self._planned_bytes = self._devices.budget_bytes
        self._replan_in = 0
        sections = self._plan.plan.sections
        if profile.worst_peak_bytes <= _CLEARLY_FITS * self._devices.budget_bytes:
            return Trial(sections, (self._planner, None), step_ns=profile.timeline.step_ns)
        try:
            planned = self._planner.plan()
        except (BudgetTooSmall, FarMemoryTooSmall) as error:
            return Trial(sections, (self._planner, None), self._advised(error))
        step_ns = planned.function.predicted_step_ns
        wait_ns = int(planned.assignment.result.stall_ns)
        return Trial(sections, (self._planner, planned), step_ns=step_ns, wait_ns=wait_ns)

    def _advised(self, error: Exception) -> str:
        """What is wrong, and which sections would do."""
        least = self.report.least_budgets
        if not isinstance(error, BudgetTooSmall) or self._plan.plan.sections > 1 or least is None:
            return str(error)
        return least.with_advice(error)

    def _try_sections(self, sections: int) -> None:
        """Begins again with so many: their graph is another one."""
        self._voice.note(f"{self._search.reason()}: {sections_of(sections)} are tried")
        self._planner = self._new_planner()
        self._in_sections(sections)
        self._phase = _Phase.FIRST

    def _in_sections(self, sections: int) -> None:
        plan = dataclasses.replace(self._plan.plan, functions=(), chooses=False)
        plan = dataclasses.replace(plan, batch=self._search.examples)
        self._plan.push(plan.in_sections(sections))
        self.report.sections = sections

    def _go_on_with(self, trial: Trial[tuple[StepPlanner, Planned | None]]) -> None:
        """Puts the plan of a number of sections in force; of another one than now, again."""
        if trial.sections != self._plan.plan.sections:
            self._in_sections(trial.sections)
            self._lazy_s = []  # of another graph
            trial.kept[0].save_profile()
            self._voice.note(f"training goes on with {sections_of(trial.sections)}")
        self._planner, planned = trial.kept
        profile = self._planner.profile
        assert profile is not None
        self._filled.profiled(profile, self._planner.least_budgets())
        if trial.problem:
            self._stay_with_bootstrap(trial.problem)
            return
        self._plan.note(chooses=self._chooses)  # for other graphs
        if planned is not None:
            self._adopt_planned(planned)
        else:
            # The graph stays as it is. Others, for longer sequences say, keep their lazy swaps.
            function = FunctionPlan(self._planner.fingerprint)
            self._plan.push_function(function)
            self._filled.fits(profile, self._planner.story(function))
            self._is_stock = True
            self._measured = []
            self._settled()
            self._print_summary()

    def _plan_again(self) -> bool:
        """Plans what was corrected, if it can be."""
        try:
            planned = self._planner.plan()
        except (BudgetTooSmall, FarMemoryTooSmall) as error:
            self._stay_with_bootstrap(self._advised(error))
            return False
        self._adopt_planned(planned)
        return True

    def _adopt_planned(self, planned: Planned) -> None:
        self._lossy.rates = planned.rates
        self._adopt(planned.function)
        self._filled.planned(planned)
        self._phase = _Phase.SETTLE

    def _place_anew(self) -> None:
        """Puts tensors elsewhere if that is worth having the graph optimised again."""
        self._ratios.stop()
        self._looks_at_places = False
        self._steps_since_look = 0
        function = self._plan.function(self._planner.fingerprint)
        if function is None:
            return
        elsewhere, said = self._planner.placed_anew(function)
        if elsewhere is not None:
            self._adopt(elsewhere)
            self._measured = []
        if said:
            self._voice.note(said)

    def _stay_with_bootstrap(self, why: str) -> None:
        self.report.outcome = "bootstrap"
        self._measured = []
        self._phase = _Phase.STEADY
        if self._attempts:
            self._adopt(best(self._attempts).function)
            return
        self._voice.warn(
            f"{why} Training goes on under lazy swaps, which keep the budget but wait."
        )

    def _adopt(self, function: FunctionPlan) -> None:
        self._plan.push_function(function)
        self._filled.adopted(self._plan.plan, function, self._planner.story(function))

    def _check_in_force(self) -> None:
        for record in self._session.records():
            if record["fingerprint"] != self._planner.fingerprint:
                continue
            if record["outcome"] == "refused":
                self._voice.warn(f"the plan was not applied: {record['reason']}")

    def _check(self) -> None:
        function = self._plan.function(self._planner.fingerprint)
        assert function is not None
        attempt = Attempt.of(function, self._measured)
        if attempt.is_slower_than(self._lazy_s) and len(self._measured) < _DOUBTED_STEPS:
            return  # it is measured on
        self._attempts.append(attempt)
        given = self._given_plan is not None and self._planner.profile is None
        if not attempt.is_as_foretold and not given and len(self._attempts) <= _MAX_CORRECTIONS:
            self._planner.correct(attempt)
            self.report.corrections += 1
            if self._plan_again():
                return
        chosen = best(self._attempts)
        if chosen.is_slower_than(self._lazy_s):
            self._give_up_plan(chosen)
            return
        if chosen.function is not function:
            self._adopt(chosen.function)
        self._measured = [] if chosen.function is not function else self._measured
        self._settled()
        self._update_measured(chosen)
        self._plan.save()
        self._print_summary()

    def _give_up_plan(self, attempt: Attempt) -> None:
        """Lazy swaps did better, be it that a step is not as regular as the profiled ones."""
        lazy_s = statistics.median(self._lazy_s)
        self._voice.note(
            f"the plan was given up: with it, a step took {attempt.step_s:.3g} s, under lazy "
            f"swaps {lazy_s:.3g} s. Training goes on under those."
        )
        plan = self._plan.plan.without_function(self._planner.fingerprint)
        self._plan.push(dataclasses.replace(plan, chooses=False))
        self._update_measured(attempt)
        self._filled.given_up(lazy_s)
        self._measured = []
        self._phase = _Phase.STEADY
        self._print_summary()

    def _settled(self) -> None:
        """The plan stays as it is; addresses are planned for it."""
        pending = self._addresses.begin(self._planner.fingerprint)
        self._phase = _Phase.LAYOUT if pending else _Phase.STEADY

    def _addresses_after(self, kind: str) -> None:
        """Has addresses planned for a graph that has run often enough without any."""
        if self._addresses.call_ended(kind, self._steps_a_call):
            self._measured = []
        if self._phase is _Phase.LAYOUT and self._addresses.are_settled():
            self._phase = _Phase.STEADY

    def _update_measured(self, attempt: Attempt | None = None) -> None:
        self.report.tiers = self._devices.tiers()
        self.report.lossy = self._lossy.use()
        self._filled.measured(self._measured, attempt)

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

    def _print_summary(self) -> None:
        if self._devices.lossy_codecs and self.report.outcome == "swapped":
            hindrance = self._lossy.hindrance()
            if hindrance:
                self._voice.note(f"nothing is kept lossily so far: {hindrance}")
        self._voice.lines(summary_lines(self.report))
