"""SwapRun: the life of a plan during one `fit`.

::

    first ─▶ warm ─▶ profiled steps ─▶ plan, push ─▶ settle ─▶ measure ─▶ check ─▶ steady
     (lazy swaps keep the budget)          ▲                                │    └▶ addresses
                                           └──────── correct (≤ 3 times) ◀──┘
"""

from __future__ import annotations

import dataclasses
import enum
import operator
import statistics
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tfswap.address_run import AddressRun
from tfswap.attempt import Attempt, MeasuredStep, best
from tfswap.far_ratios import RatioSamples
from tfswap.lossy_run import LossyRun, check_plan
from tfswap.managed_devices import ManagedDevices
from tfswap.ops import library
from tfswap.pass_session import PassSession
from tfswap.plan import FunctionPlan, SwapPlan
from tfswap.planners.assignment import AUTO, CSWAP, FarMemoryTooSmall
from tfswap.planners.decision import BudgetTooSmall
from tfswap.report.summary import Report, summary_lines
from tfswap.slots import slots_to_text
from tfswap.state import run_ended, run_started
from tfswap.step_planner import Forgotten, StepPlanner
from tfswap.trace import StepTrace
from tfswap.training_function import TrainingFunction

if TYPE_CHECKING:
    from tfswap.auto_swap import AutoSwap

_MAX_CORRECTIONS = 3
_MEASURED_STEPS = 2
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


# Kinds of calls, for recordings.
_TRAIN, _TEST = "train", "test"
_SETTLED = (_Phase.LAYOUT, _Phase.STEADY)


def _own_words(text: str) -> str:
    """What tfswap says in TensorFlow's error; all of it if it says nothing."""
    begin = text.find("tfswap: the memory budget")
    return text if begin < 0 else text[begin:].splitlines()[0]


def _count_layers(model: Any) -> int:
    """Those of models inside of it too, and of layers inside of layers those with variables."""

    def paths(outer: Any) -> Iterator[str]:
        for layer in outer.layers:
            yield layer.path or layer.name
            if hasattr(layer, "layers"):
                yield from paths(layer)

    owners = (variable.path.rpartition("/")[0] for variable in model.variables)
    return len({*paths(model), *owners})


class SwapRun:
    """All state of one `fit` under `AutoSwap`; `end` takes everything back."""

    # From `begin` on.
    _library: library.Library
    _devices: ManagedDevices
    _session: PassSession
    _ratios: RatioSamples
    _lossy: LossyRun
    _planner: StepPlanner

    def __init__(self, options: AutoSwap, model: Any) -> None:
        self._options = options
        self._model = model
        self._says = options.verbose != 0
        self.report = Report()
        self._phase = _Phase.IDLE
        self._taken = ExitStack()  # what is to be given back
        self._training_function = TrainingFunction(model)
        self._plan = SwapPlan()
        self._steps_a_call = 1
        self._looks_at_places = False
        self._steps_since_look = 0
        self._profiled: list[tuple[float, StepTrace]] = []  # and seconds
        self._attempts: list[Attempt] = []
        self._measured: list[MeasuredStep] = []
        self._is_stock = False  # the graph is as TensorFlow made it: the model fits
        self._stock_peak_bytes = 0  # measured then
        self._addresses: AddressRun | None = None
        self._step_start_s = 0.0
        self._before: dict[str, int] = {}

    # The beginning and the end.

    def begin(self) -> None:
        """Takes hold of device and session; the first steps run under lazy swaps."""
        import keras

        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"tfswap.AutoSwap needs Keras on TensorFlow, and this process runs it on "
                f"{keras.backend.backend()!r}: set KERAS_BACKEND=tensorflow"
            )
        if self._model.run_eagerly:
            self._warn(
                "the model runs eagerly (run_eagerly=True), so there is no graph to insert swaps "
                "into: AutoSwap has no effect and the budget is not enforced. Compile without "
                "run_eagerly."
            )
            return
        check_plan(self._options.plan or SwapPlan(), self._options.lossy)
        self._library = library.load()
        if not library.device_is_ours():
            raise library.LibraryError(
                "TensorFlow's CPU device is not tfswap's although its library is loaded: another "
                "library has replaced the device factory. Run `tfswap doctor`."
            )
        self._devices = ManagedDevices(
            self._library, self._options, _count_layers(self._model), self._note, self._warn
        )
        self._session = PassSession(self._library, self._model)
        run_started(self)
        self._taken.callback(run_ended, self)
        self._taken.callback(self._training_function.restore)
        self._steps_a_call = max(int(self._model.steps_per_execution), 1)
        self.report.budget_bytes = self._devices.budget_bytes
        if self._training_function.turn_xla_off():
            self._note(
                "XLA is off for this training: a step compiled by XLA is one opaque op, and "
                "nothing can be moved inside it"
            )
        self._taken.callback(self._devices.give_back)
        self._devices.take()
        self._ratios = RatioSamples(self._library, self._devices.sampled_codecs)
        epochs = (self._options.params or {}).get("epochs")
        self._lossy = LossyRun(self._library, self._ratios, epochs)
        self._planner = StepPlanner(
            self._library, self._options, self._devices, self._ratios, self._lossy, self._say
        )
        plan = self._options.plan or SwapPlan()
        self._plan = SwapPlan(
            functions=plan.functions,
            budget_bytes=self._devices.budget_bytes,
            policy=self._options.policy,
            unmatched="bootstrap",
            tensorflow=library.tensorflow_version() or "",
        )
        self._taken.callback(self._session.withdraw)
        self._taken.callback(self._lossy.end)
        self._lossy.adopt(self._plan)
        self._session.push(self._plan)
        self._install_layouts()
        self._training_function.guard(self._step_failed, self.end)
        self._phase = _Phase.FIRST

    def _step_failed(self, error: BaseException) -> None:
        import tensorflow as tf

        if isinstance(error, tf.errors.ResourceExhaustedError):
            self.report.out_of_memory = _own_words(str(error))
        self.end()

    def finish(self) -> None:
        """The normal end of training."""
        if self._phase is _Phase.IDLE:
            return
        if self._phase not in _SETTLED and self.report.outcome != "fits":
            self._note("training ended before the plan was settled")
        self._update_measured()
        self._devices.check_codecs(wait=True)
        problem = self._devices.file_problem()
        if problem:
            self._warn(f"the file tier failed, so more than planned stayed in memory: {problem}")
        self.end()

    def end(self) -> None:
        """Takes everything back; harmless when called again."""
        if self._phase is _Phase.PROFILE:
            self._library.stop_recording(self._devices.device)
        self._phase = _Phase.IDLE
        if self._addresses is not None:
            self._addresses.stop()
            self._addresses = None
        self._taken.close()

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
        if self._session.ensure():
            self._note("the session's options had changed meanwhile; the plan is back in force")
        if self._phase is _Phase.PROFILE:
            self._library.start_recording(self._devices.device)
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
        if self._phase is _Phase.IDLE or not self._before:
            return
        seconds = time.perf_counter() - self._step_start_s
        self._devices.check_codecs()
        recording = b""
        if self._phase is _Phase.PROFILE:
            recording = self._library.stop_recording(self._devices.device)
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
        if self._phase is _Phase.FIRST:
            self._first_ended()
        elif self._phase is _Phase.WARM:
            self._ratios.stop()
            self._phase = _Phase.PROFILE
        elif self._phase is _Phase.PROFILE:
            self._profiled.append((step.seconds, StepTrace.from_bytes(recording)))
            if len(self._profiled) >= _PROFILED_STEPS:
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
                self._warn(f"the plan was not applied to a graph: {record['reason']}")
        if not any(r["outcome"] in ("bootstrapped", "planned", "left") for r in records):
            self._warn(
                "TensorFlow's graph optimizer did not run tfswap's pass, so nothing is swapped "
                "(is it disabled with tf.config.optimizer or 'disable_meta_optimizer'?). The "
                "budget is still enforced."
            )
            self._phase = _Phase.STEADY
            return
        planned = [r for r in records if r["outcome"] == "planned"]
        if self._options.plan is not None and planned:
            function = self._plan.function(planned[-1]["fingerprint"])
            assert function is not None
            self._planner.fingerprint = function.fingerprint
            self._adopt(function)
            self._measured = []
            self._phase = _Phase.MEASURE
            return
        known = any(self._plan.function(r["fingerprint"]) is not None for r in records)
        if self._options.plan is not None and not known:
            self._warn(
                "the plan that was given fits none of this training's graphs (another model, "
                "optimizer, shapes or TensorFlow): a new one is made."
            )
        self._phase = _Phase.WARM

    @staticmethod
    def _profile_of(profiled: list[tuple[float, StepTrace]]) -> StepTrace:
        """The fastest of those that were not for a smaller batch."""
        made = [int(trace.buffers["bytes"].sum()) for _, trace in profiled]
        full = [p for p, size in zip(profiled, made, strict=True) if size >= _FULL * max(made)]
        return min(full, key=operator.itemgetter(0))[1]

    def _plan_from(self, trace: StepTrace) -> None:
        self._say(f"profiled {_PROFILED_STEPS} steps, planning ...")
        try:
            profile = self._planner.read(trace, self._plan.min_bytes)
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
        if profile.worst_peak_bytes <= _CLEARLY_FITS * self._devices.budget_bytes:
            self.report.outcome = "fits"
            self.report.predicted_peak_bytes = profile.unswapped_peak_bytes
            # The graph stays as it is. Others, for longer sequences say, keep their lazy swaps.
            self._plan = self._plan.with_function(FunctionPlan(self._planner.fingerprint))
            self._session.push(self._plan)
            self._is_stock = True
            self._measured = []
            self._settled()
            self._print_summary()
            return
        self._plan_and_push()

    def _plan_and_push(self) -> bool:
        try:
            planned = self._planner.plan()
        except (BudgetTooSmall, FarMemoryTooSmall) as error:
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
            self._note(said)

    def _stay_with_bootstrap(self, why: str) -> None:
        self.report.outcome = "bootstrap"
        self._measured = []
        self._phase = _Phase.STEADY
        if self._attempts:
            self._adopt(best(self._attempts).function)
            return
        self._warn(f"{why} Training goes on under lazy swaps, which keep the budget but wait.")

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

    def _check_in_force(self) -> None:
        for record in self._session.records():
            if record["fingerprint"] != self._planner.fingerprint:
                continue
            if record["outcome"] == "refused":
                self._warn(f"the plan was not applied: {record['reason']}")

    def _check(self) -> None:
        function = self._plan.function(self._planner.fingerprint)
        assert function is not None
        attempt = Attempt.of(function, self._measured)
        self._attempts.append(attempt)
        given = self._options.plan is not None and self._planner.profile is None
        if not attempt.is_as_foretold and not given and len(self._attempts) <= _MAX_CORRECTIONS:
            self._planner.correct(attempt)
            self.report.corrections += 1
            if self._plan_and_push():
                return
        chosen = best(self._attempts)
        if chosen.function is not function:
            self._adopt(chosen.function)
        self._measured = [] if chosen.function is not function else self._measured
        self._settled()
        self._update_measured(chosen)
        if self._options.save_plan is not None:
            self._plan.save(self._options.save_plan)
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
        if self._has_layout():
            self._phase = _Phase.STEADY
        elif self._addresses.problem:
            self._note(self._addresses.problem)
            self._phase = _Phase.STEADY

    def _adopt_addresses(self, plan: SwapPlan) -> None:
        assert self._addresses is not None
        if self._addresses.said:
            self._note(self._addresses.said)
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
                self._warn(f"addresses are not planned: {error}")

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
                self._note(f"nothing is kept lossily so far: {hindrance}")
        for line in summary_lines(self.report):
            self.report.notes.append(line)
            if self._says:
                print(f"\n{line}" if line.startswith("tfswap: peak") else line, flush=True)

    def _say(self, text: str) -> None:
        if self._says:
            print(f"\ntfswap: {text}", flush=True)

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        self._say(text)

    def _warn(self, text: str) -> None:
        self.report.notes.append(text)
        warnings.warn(f"tfswap: {text}", stacklevel=2)
