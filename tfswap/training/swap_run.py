"""SwapRun: the life of a plan during the training of one function.

::

    first ─▶ warm ─▶ profiled steps ─▶ plan, push ─▶ settle ─▶ measure ─▶ check ─▶ steady
     (lazy swaps keep the budget)          ▲                                │    └▶ addresses
                                           └──────── correct (≤ 3 times) ◀──┘
"""

from __future__ import annotations

import dataclasses
import enum
import operator
import re
import statistics
import time
from contextlib import ExitStack
from typing import Any

from tfswap.grappler.graph import StepGraph
from tfswap.ops import library
from tfswap.plan import FunctionPlan, SwapPlan
from tfswap.planners.assignment import AUTO, CSWAP, FarMemoryTooSmall
from tfswap.planners.decision import BudgetTooSmall
from tfswap.portable_plan import renamed
from tfswap.report.summary import Report, summary_lines
from tfswap.report.tensorboard import TensorBoardLog
from tfswap.slots import slots_to_text
from tfswap.state import run_ended, run_started
from tfswap.trace import StepTrace
from tfswap.training.address_run import AddressRun
from tfswap.training.attempt import Attempt, MeasuredStep, best
from tfswap.training.far_ratios import RatioSamples
from tfswap.training.lossy_run import LossyRun, check_plan
from tfswap.training.pass_session import PassSession
from tfswap.training.step_planner import Forgotten, StepPlanner
from tfswap.training.swap_session import SwapSession
from tfswap.training.voice import Voice

_MAX_CORRECTIONS = 3
_MEASURED_STEPS = 2
# Of a plan that seems to be slower than lazy swaps: others' work on the machine may be why.
_DOUBTED_STEPS = 8
# The fastest of them is planned with: what disturbs a step only ever makes it slower.
_PROFILED_STEPS = 2
# Steps that allocate less than this share of what another one does are for a smaller batch.
_FULL = 0.95
# How often tensors' places are looked at again, at most; and where lossy codecs have another rate.
_STEPS_BETWEEN_LOOKS = 32
_STEPS_AT_A_RATE = 8
# A model that needs no more than this share of the budget is left alone. Others have a plan, be it
# for the order alone: stock TensorFlow's varies, and in one order VGG16 needs 1.18 of another's.
_CLEARLY_FITS = 0.8


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


_OWN_WORDS = re.compile(r"tfswap: the .*(?:\n  - .*)*")
# Kinds of calls, for recordings.
_TRAIN, _TEST = "train", "test"
_SETTLED = (_Phase.LAYOUT, _Phase.STEADY)


def _own_words(text: str) -> str:
    """What tfswap says in TensorFlow's error; all of it if it says nothing."""
    found = _OWN_WORDS.search(text)
    return text if found is None else found[0]


def _scalars(step: MeasuredStep, counts: dict[str, int]) -> dict[str, float]:
    """For TensorBoard."""
    return {
        "step_s": step.seconds,
        "peak_bytes": counts["window_peak_bytes"],
        "budget_bytes": counts["budget_bytes"],
        "bytes_out": step.bytes_out,
        "bytes_in": step.bytes_in,
        "waits": step.waits,
    }


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

    Raises:
        ValueError: The plan that was given is lossy without leave.
    """

    # From `begin` on.
    _ratios: RatioSamples
    _lossy: LossyRun
    _planner: StepPlanner

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
    ) -> None:
        check_plan(plan or SwapPlan(), session.options.lossy)
        self._options = session.options
        self._library = session.library
        self._devices = session.devices
        self._session = PassSession(session.library, key)
        self._voice = voice
        self._given_plan = plan
        self.report = report
        self._steps_a_call = steps_a_call
        self._epochs = epochs
        self._surely_trains = surely_trains
        self._phase = _Phase.IDLE
        self._taken = ExitStack()  # what is to be given back
        self._plan = SwapPlan()
        self._looks_at_places = False
        self._steps_since_look = 0
        self._profiled: list[tuple[float, dict[int, StepTrace]]] = []  # seconds; by device
        self._lazy_s: list[float] = []  # of steps under lazy swaps
        self._attempts: list[Attempt] = []
        self._measured: list[MeasuredStep] = []
        self._is_stock = False  # the graph is as TensorFlow made it: the model fits
        self._stock_peak_bytes = 0  # measured then
        self._addresses: AddressRun | None = None
        self._log: TensorBoardLog | None = None
        self._step_start_s = 0.0
        self._before: dict[str, int] = {}

    # The beginning and the end.

    def begin(self) -> None:
        """Puts lazy swaps, or the given plan, in force; the first steps run under them."""
        run_started(self)
        self._taken.callback(run_ended, self)
        self.report.budget_bytes = self._devices.budget_bytes
        self._ratios = RatioSamples(self._library, self._devices.sampled_codecs)
        self._lossy = LossyRun(self._library, self._ratios, self._epochs)
        self._planner = StepPlanner(
            self._library, self._options, self._devices, self._ratios, self._lossy, self._voice.say
        )
        plan = self._given_plan or SwapPlan()
        self._plan = SwapPlan(
            functions=plan.functions,
            budget_bytes=self._devices.budget_bytes,
            policy=self._options.policy,
            unmatched="bootstrap",
            tensorflow=library.tensorflow_version() or "",
        ).in_sections(plan.sections if plan.functions else self._options.sections or 1)
        self._taken.callback(self._session.withdraw)
        self._taken.callback(self._lossy.end)
        self._lossy.adopt(self._plan)
        self._session.push(self._plan)
        self._install_layouts()
        if self._options.log_dir is not None:
            self._log = TensorBoardLog(self._options.log_dir, self._voice.name)
            self._taken.callback(self._log.close)
        self._phase = _Phase.FIRST

    def step_failed(self, error: BaseException) -> None:
        """Keeps what an error says of memory."""
        import tensorflow as tf

        if isinstance(error, tf.errors.ResourceExhaustedError):
            self.report.out_of_memory = _own_words(str(error))

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
            self._stop_recordings()
        self._phase = _Phase.IDLE
        if self._addresses is not None:
            self._addresses.stop()
            self._addresses = None
        self._taken.close()

    @property
    def trains(self) -> bool:
        """Whether it is a training, as far as is known."""
        return self._phase is not _Phase.LAZY

    @property
    def settled_plan(self) -> SwapPlan | None:
        """The plan, if it is one that will stay."""
        return self._plan if self._phase in _SETTLED else None

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
        if self._session.enter():
            self._voice.note(
                "the session's options had changed meanwhile; the plan is back in force"
            )
        if self._phase is _Phase.LAZY:
            return
        if self._phase is _Phase.PROFILE:
            for device in self._devices.numbers:
                self._library.start_recording(device)
        elif self._phase is _Phase.WARM or self._looks_at_places:
            self._ratios.start()
        if self._addresses is not None:
            self._addresses.call_begins(_TRAIN)
        if self._phase is _Phase.FIRST:
            self._devices.first_step_begins()
        self._library.restart_window(self._devices.device)
        self._before = self._library.step_counts(self._devices.device)
        self._step_start_s = time.perf_counter()

    def step_ended(self) -> None:
        if self._phase in (_Phase.IDLE, _Phase.LAZY) or not self._before:
            return
        seconds = time.perf_counter() - self._step_start_s
        self._devices.check_codecs()
        traces: dict[int, StepTrace] = {}
        if self._phase is _Phase.PROFILE:
            traces = self._stop_recordings()
        elif self._phase is _Phase.FIRST:
            self._turn_to_busiest_device()
        after = self._library.step_counts(self._devices.device)
        step = MeasuredStep.between(self._before, after, seconds, self._steps_a_call)
        self.report.measured_peak_bytes = max(
            self.report.measured_peak_bytes or 0, after["window_peak_bytes"]
        )
        self.report.host_peak_bytes = max(
            self.report.host_peak_bytes or 0, after["host_peak_bytes"]
        )
        if self._log is not None:
            self._log.step(_scalars(step, after))
        if self._phase is _Phase.FIRST:
            self._first_ended()
        elif self._phase is _Phase.WARM:
            self._ratios.stop()
            self._phase = _Phase.PROFILE
        elif self._phase is _Phase.PROFILE:
            self._profiled.append((step.seconds, traces))
            if len(self._profiled) >= _PROFILED_STEPS:
                self._lazy_s = [seconds for seconds, _ in self._profiled]
                self._plan_from(self._profile_of(self._profiled))
                self._profiled = []
        elif self._phase is _Phase.SETTLE:
            self._measured = []
            self._phase = _Phase.MEASURE
            self._library.trim_malloc()
            self._check_in_force()
        elif self._phase is _Phase.MEASURE:
            self._measured.append(step)
            if len(self._measured) >= _MEASURED_STEPS:
                self._check()
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
            self._stop_recordings()
        elif self._phase is _Phase.WARM or self._looks_at_places:
            self._ratios.stop()
        if self._addresses is not None:
            self._addresses.stop()

    def between_steps(self) -> None:
        """Has other calls run as without tfswap until `step_begins`."""
        self._session.leave()

    def traced_again(self) -> None:
        """There is a graph that has not been seen: it may train."""
        if self._phase is _Phase.LAZY:
            self._phase = _Phase.FIRST

    @property
    def is_measuring(self) -> bool:
        """Whether the time matters that this step takes until all that it does is done."""
        return self._phase not in (_Phase.IDLE, _Phase.FIRST, _Phase.LAZY)

    def test_begins(self) -> None:
        if self._addresses is not None:
            self._addresses.call_begins(_TEST)

    def test_ended(self) -> None:
        self._addresses_after(_TEST)

    def _turn_to_busiest_device(self) -> None:
        """Of several GPUs, the one that needed most memory is planned for."""
        before = self._devices.find_busiest()
        if before is None:
            return
        self._before = before
        self._install_layouts()
        self.report.budget_bytes = self._devices.budget_bytes
        self._plan = dataclasses.replace(self._plan, budget_bytes=self._devices.budget_bytes)
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
        if self._plan.sections > 1 and not any(r["sectioned_ops"] for r in records):
            self._voice.warn(
                f"sections={self._plan.sections} has no effect: no op was found that can work on a "
                "part of the batch. Shapes must be known before the step, and the batch a multiple "
                "of it: dataset.batch(size, drop_remainder=True)."
            )
        if not self._surely_trains and not any(map(self._has_gradients, records)):
            self._phase = _Phase.LAZY
            return
        planned = [r for r in records if r["outcome"] == "planned"]
        if self._given_plan is not None and planned:
            function = self._plan.function(planned[-1]["fingerprint"])
            assert function is not None
            self._planner.fingerprint = function.fingerprint
            self._adopt(function)
            self._measured = []
            self._phase = _Phase.MEASURE
            return
        if self._given_plan is not None and self._rename_plan(records):
            return
        known = any(self._plan.function(r["fingerprint"]) is not None for r in records)
        if self._given_plan is not None and not known:
            self._voice.warn(
                "the plan that was given fits none of this training's graphs (another model, "
                "optimizer, shapes or TensorFlow): a new one is made."
            )
        self._phase = _Phase.WARM

    def _rename_plan(self, records: list[dict[str, Any]]) -> bool:
        """Whether the given plan is for one of these graphs, under other names; then it is pushed.

        So it is for a function that comes back from a SavedModel.
        """
        for record in records:
            for function in self._plan.functions:
                if not function.portable or function.portable != record["portable"]:
                    continue
                graph = StepGraph.parse(self._library.describe(record["fingerprint"]))
                found = renamed(function, record["fingerprint"], graph.nodes)
                if found is None:
                    continue
                self._plan = self._plan.with_function(found)
                self._lossy.adopt(self._plan)
                self._session.push(self._plan)
                self._install_layouts()
                return True
        return False

    def _has_gradients(self, record: dict[str, Any]) -> bool:
        graph = StepGraph.parse(self._library.describe(record["fingerprint"]))
        return any(node.backward for node in graph.nodes.values())

    def _stop_recordings(self) -> dict[int, StepTrace]:
        return {
            device: StepTrace.from_bytes(self._library.stop_recording(device))
            for device in self._devices.numbers
        }

    def _profile_of(
        self, profiled: list[tuple[float, dict[int, StepTrace]]]
    ) -> dict[int, StepTrace]:
        """The fastest of those that were not for a smaller batch."""
        made = [int(each[self._devices.device].buffers["bytes"].sum()) for _, each in profiled]
        full = [p for p, size in zip(profiled, made, strict=True) if size >= _FULL * max(made)]
        return min(full, key=operator.itemgetter(0))[1]

    def _plan_from(self, traces: dict[int, StepTrace]) -> None:
        self._voice.say(f"profiled {_PROFILED_STEPS} steps, planning ...")
        try:
            profile = self._planner.read(traces, self._plan.min_bytes)
        except Forgotten:
            # Another text has the pass see it again.
            self._session.push_anew(self._plan)
            self._phase = _Phase.FIRST
            return
        except ValueError as error:
            self._stay_with_bootstrap(str(error))
            return
        if self._devices.look_again():
            self.report.budget_bytes = self._devices.budget_bytes
            self._plan = dataclasses.replace(self._plan, budget_bytes=self._devices.budget_bytes)
        self.report.unswapped_peak_bytes = profile.unswapped_peak_bytes
        self.report.unswapped_step_s = profile.timeline.step_ns / 1e9
        self.report.least_budgets = self._planner.least_budgets()
        if profile.worst_peak_bytes <= _CLEARLY_FITS * self._devices.budget_bytes:
            self.report.outcome = "fits"
            self.report.predicted_peak_bytes = profile.unswapped_peak_bytes
            # The graph stays as it is. Others, for longer sequences say, keep their lazy swaps.
            function = FunctionPlan(self._planner.fingerprint)
            self._plan = self._plan.with_function(function)
            self._session.push(self._plan)
            self.report.story = self._planner.story(function)
            self._is_stock = True
            self._measured = []
            self._settled()
            self._print_summary()
            return
        self._plan_and_push()

    def _plan_and_push(self) -> bool:
        try:
            planned = self._planner.plan()
        except BudgetTooSmall as error:
            least = None if self._plan.sections > 1 else self.report.least_budgets
            self._stay_with_bootstrap(str(error) if least is None else least.with_advice(error))
            return False
        except FarMemoryTooSmall as error:
            self._stay_with_bootstrap(str(error))
            return False
        self._adopt(planned.function)
        self.report.predicted_wait_s = planned.assignment.result.stall_ns / 1e9
        self.report.least_wait_s = planned.least_wait_ns / 1e9
        self.report.notes += planned.decision.notes
        self._phase = _Phase.SETTLE
        return True

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
        self._plan = self._plan.with_function(function)
        self._lossy.adopt(self._plan)
        self._session.push(self._plan)
        self.report.outcome = "swapped" if function.swaps else "fits"
        self.report.plan = self._plan
        self.report.predicted_peak_bytes = function.predicted_peak_bytes
        self.report.predicted_step_s = function.predicted_step_ns / 1e9
        self.report.unswapped_peak_bytes = function.unswapped_peak_bytes
        self.report.unswapped_step_s = function.unswapped_step_ns / 1e9
        self.report.swapped_buffers = len(function.swaps)
        self.report.story = self._planner.story(function)
        if self._log is not None and self.report.story is not None:
            self._log.plan(self.report.story)

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
            if self._plan_and_push():
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
        if self._options.save_plan is not None:
            self._plan.save(self._options.save_plan)
        self._print_summary()

    def _give_up_plan(self, attempt: Attempt) -> None:
        """Lazy swaps did better, be it that a step is not as regular as the profiled ones."""
        lazy_s = statistics.median(self._lazy_s)
        self._voice.note(
            f"the plan was given up: with it, a step took {attempt.step_s:.3g} s, under lazy "
            f"swaps {lazy_s:.3g} s. Training goes on under those."
        )
        self._plan = self._plan.without_function(self._planner.fingerprint)
        self._lossy.adopt(self._plan)
        self._session.push(self._plan)
        self._update_measured(attempt)
        self.report.step_s = lazy_s
        self.report.plan = None
        self.report.swapped_buffers = 0
        self.report.outcome = "bootstrap"
        self._measured = []
        self._phase = _Phase.STEADY
        self._print_summary()

    def _settled(self) -> None:
        """The plan stays as it is; addresses are planned for it."""
        self._phase = _Phase.STEADY
        if self._options.slab:
            limit_bytes = None if self._devices.on_cpu else self._devices.budget_bytes
            self._addresses = AddressRun(self._library, self._devices.device, limit_bytes)
            if not self._has_layout():
                self._phase = _Phase.LAYOUT

    def _has_layout(self) -> bool:
        function = self._plan.function(self._planner.fingerprint)
        return function is not None and bool(function.layouts)

    def _addresses_after(self, kind: str) -> None:
        """Has addresses planned for a graph that has run often enough without any."""
        if self._addresses is None:
            return
        plan = self._addresses.call_ended(kind, self._plan, self._steps_a_call)
        if plan is not None:
            self._adopt_addresses(plan)
        if self._phase is not _Phase.LAYOUT or self._addresses.is_trying(_TRAIN):
            return
        if self._has_layout() or self._addresses.is_quiet(_TRAIN):
            self._phase = _Phase.STEADY
        elif self._addresses.problem:
            self._voice.note(self._addresses.problem)
            self._phase = _Phase.STEADY

    def _adopt_addresses(self, plan: SwapPlan) -> None:
        assert self._addresses is not None
        if self._addresses.said:
            self._voice.note(self._addresses.said)
        self._plan = self.report.plan = plan
        self.report.addresses = tuple(self._addresses.maps)
        self._measured = []
        self._session.push(self._plan)
        self._install_layouts()
        if self._options.save_plan is not None:
            self._plan.save(self._options.save_plan)

    def _install_layouts(self) -> None:
        for function in self._plan.functions:
            if not any(function.layouts) or not self._options.slab:
                continue
            try:
                self._library.install_layout(
                    self._devices.device, function.fingerprint, slots_to_text(function.layouts)
                )
            except ValueError as error:
                self._voice.warn(f"addresses are not planned: {error}")

    def _update_measured(self, attempt: Attempt | None = None) -> None:
        self.report.tiers = self._devices.tiers()
        self.report.lossy = self._lossy.use()
        if attempt is not None:
            self.report.step_s = attempt.step_s
            self.report.bytes_out_per_step = attempt.bytes_out
            self.report.bytes_in_per_step = attempt.bytes_in
        elif self._measured:
            self.report.step_s = statistics.median(step.seconds for step in self._measured)
            self.report.bytes_out_per_step = max(step.bytes_out for step in self._measured)
            self.report.bytes_in_per_step = max(step.bytes_in for step in self._measured)
            if self.report.outcome == "fits" and self.report.bytes_out_per_step:
                self.report.outcome = "swapped"  # lazily, in an order of ops that needs more

    # What people see.

    def state(self) -> dict[str, Any]:
        """For `tfswap.status()`."""
        return {
            "phase": self._phase.value,
            "outcome": self.report.outcome,
            "in_force": self._session.in_force(),
            "budget_bytes": self._devices.budget_bytes,
        }

    def _print_summary(self) -> None:
        if self._devices.lossy_codecs and self.report.outcome == "swapped":
            hindrance = self._lossy.hindrance()
            if hindrance:
                self._voice.note(f"nothing is kept lossily so far: {hindrance}")
        self._voice.lines(summary_lines(self.report))
