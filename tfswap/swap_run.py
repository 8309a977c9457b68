"""SwapRun: the life of a plan during one `fit`.

::

    first ─▶ warm ─▶ profiled steps ─▶ plan, push ─▶ settle ─▶ measure ─▶ check ─▶ steady
     (lazy swaps keep the budget)          ▲                                │    └▶ addresses
                                           └──────── correct (≤ 3 times) ◀──┘
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import itertools
import operator
import statistics
import sys
import time
import warnings
import weakref
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from tfswap import budget as budgets
from tfswap.address_run import AddressRun
from tfswap.card_link import measured_link
from tfswap.gpus import FIRST_GPU, NOT_OURS, visible_gpus
from tfswap.grappler.graph import StepGraph
from tfswap.machine import Machine
from tfswap.ops import library
from tfswap.plan import FunctionPlan, SwapPlan
from tfswap.planners.decision import BudgetTooSmall
from tfswap.planning import plan_function
from tfswap.profile import Profile, profile_step
from tfswap.report.summary import Report, summary_lines
from tfswap.session import PlanSession
from tfswap.slots import slots_to_text
from tfswap.state import run_ended, run_started
from tfswap.trace import StepTrace
from tfswap.traces.timeline_file import save_profile

if TYPE_CHECKING:
    from tfswap.auto_swap import AutoSwap

_MAX_CORRECTIONS = 3
_MEASURED_STEPS = 2
# The fastest of them is planned with: what disturbs a step only ever makes it slower.
_PROFILED_STEPS = 2
# Of a GPU whose link could not be measured, in bytes per second: PCI Express 3.
_ASSUMED_LINK = 12e9
# Steps that allocate less than this share of what another one does are for a smaller batch.
_FULL = 0.95
# A prediction further off than this is corrected.
_TOLERANCE = 0.03
# Where even the worst order of ops stays below this share of the budget, a model is left alone;
# otherwise the lazy swaps stay, which cost nothing as long as nothing has to move.
_CLEARLY_FITS = 0.97


class _Forgotten(Exception):
    """The pass saw the graph too long ago to remember it."""


class _Phase(enum.Enum):
    IDLE = "idle"
    FIRST = "first"
    WARM = "warm"  # the second call of a function is still slow, and would be a bad profile
    PROFILE = "profile"
    SETTLE = "settle"
    MEASURE = "measure"
    LAYOUT = "addresses"  # what the plan's steps allocate is recorded, and packed
    STEADY = "steady"


# Texts of different models differ, so that what the pass said of one is not taken for another's.
_labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_label_count = itertools.count()
# The pass's last record when each text was pushed for the first time in this process.
_first_pushed: dict[str, int] = {}

# Kinds of calls, for recordings.
_TRAIN, _TEST = "train", "test"
_SETTLED = (_Phase.LAYOUT, _Phase.STEADY)


@dataclass(frozen=True)
class _Step:
    """One measured call of the training function."""

    seconds: float
    peak_bytes: int
    bytes_out: int
    bytes_in: int
    waits: int


@dataclass(frozen=True)
class _Attempt:
    """A plan and how it did."""

    function: FunctionPlan
    step_s: float
    peak_bytes: int
    bytes_out: int
    bytes_in: int

    @property
    def demand_bytes(self) -> int:
        """The peak that there would be, had nothing been moved beyond the plan."""
        return self.peak_bytes + max(self.bytes_out - self.function.bytes_per_step, 0)

    @property
    def off(self) -> float:
        """Relative error of the predicted peak."""
        return abs(self.demand_bytes / max(self.function.predicted_peak_bytes, 1) - 1)


def _own_words(text: str) -> str:
    """What tfswap says in TensorFlow's error; all of it if it says nothing."""
    begin = text.find("tfswap: the memory budget")
    return text if begin < 0 else text[begin:].splitlines()[0]


class SwapRun:
    """All state of one `fit` under `AutoSwap`; `end` takes everything back."""

    def __init__(self, options: AutoSwap, model: Any) -> None:
        self._options = options
        self._model = model
        self._says = options.verbose != 0
        self.report = Report()
        self._phase = _Phase.IDLE
        self._session: PlanSession | None = None
        self._library: library.Library | None = None
        self._plan = SwapPlan()
        self._label = ""
        self._serial = 0  # of the pass's records, those behind it hold
        self._begun_serial = 0
        self._budget_bytes = 0
        self._steps_a_call = 1
        self._profile: Profile | None = None
        self._fingerprint = ""
        self._profiled: list[tuple[float, StepTrace]] = []  # and seconds
        self._measured_to_simulated = 1.0
        self._attempts: list[_Attempt] = []
        self._measured: list[_Step] = []
        self._devices = [0]
        self._device = 0  # of those, the one that is recorded, and planned for
        self._first: dict[int, dict[str, int]] = {}  # statistics when the first step began
        self._is_stock = False  # the graph is as TensorFlow made it: the model fits
        self._stock_peak_bytes = 0  # measured then
        self._addresses: AddressRun | None = None
        self._step_start_s = 0.0
        self._before: dict[str, int] = {}
        self._jit_was_on = False
        self._train_function: Any = None
        self._guarded: Any = None

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
        self._library = library.load()
        if not library.device_is_ours():
            raise library.LibraryError(
                "TensorFlow's CPU device is not tfswap's although its library is loaded: another "
                "library has replaced the device factory. Run `tfswap doctor`."
            )
        self._devices = self._managed_devices()
        run_started(self)
        options = self._options
        self._device = self._devices[0]
        self._budget_bytes = self._resolved_budget(self._device)
        on_cpu = self._devices[0] < FIRST_GPU
        # Far memory is the device's own memory then.
        host_limit_bytes = budgets.resolve_host_limit(
            options.host_limit, self._budget_bytes if on_cpu else None
        )
        self._steps_a_call = max(int(self._model.steps_per_execution), 1)
        self.report.budget_bytes = self._budget_bytes
        self._turn_xla_off()
        self._library.set_host_limit(host_limit_bytes)
        self._serial = self._begun_serial = self._last_serial()
        self._label = _labels.setdefault(self._model, f"model {next(_label_count)}")
        for device in self._devices:
            budget_bytes = self._budget_bytes if on_cpu else self._resolved_budget(device)
            self._library.set_budget(device, budget_bytes)
            self._library.set_workspace_limit(device, options.workspace_limit)
            self._library.emulate_link(device, options.link_bandwidth)
            self._library.set_verify(device, options.verify)
        self._machine = self._measured_machine()  # within the budget
        if on_cpu and options.workspace_limit is not None:
            self._warn("workspace_limit has no effect on a CPU: its ops ask for no workspaces")
        self._session = PlanSession()
        plan = options.plan or SwapPlan()
        self._plan = SwapPlan(
            functions=plan.functions,
            budget_bytes=self._budget_bytes,
            policy=options.policy,
            unmatched="bootstrap",
            tensorflow=library.tensorflow_version() or "",
        )
        self._push()
        self._install_layouts()
        self._guard_train_function()
        self._phase = _Phase.FIRST

    def _managed_devices(self) -> list[int]:
        """The GPUs, if TensorFlow has any, else the CPUs."""
        assert self._library is not None
        gpus = visible_gpus(self._library)
        if gpus and all(gpu.is_ours for gpu in gpus):
            return [gpu.number for gpu in gpus]
        if gpus:
            self._warn(NOT_OURS)
        return list(range(self._library.device_count()))

    def _measured_machine(self) -> Machine:
        assert self._library is not None
        link_bandwidth = self._options.link_bandwidth
        if self._device < FIRST_GPU:
            return Machine.measure() if link_bandwidth is None else Machine.emulated(link_bandwidth)
        if link_bandwidth is not None:
            self._warn("link_bandwidth has no effect on a GPU: its copies are its own")
        try:
            return measured_link(self._library, self._device)
        except library.LibraryError:
            self._note(
                f"the budget has no room to measure the link in: plans take it for "
                f"{_ASSUMED_LINK / 1e9:g} GB/s"
            )
            return Machine("pinned host memory", _ASSUMED_LINK, _ASSUMED_LINK)

    def _resolved_budget(self, device: int) -> int:
        """In bytes; a part of a GPU's memory is of its own: cards and logical devices differ."""
        assert self._library is not None
        if device < FIRST_GPU:
            return budgets.resolve(self._options.budget)
        gpu = self._library.memory_stats(device)
        return budgets.resolve(
            self._options.budget,
            device_limit_bytes=gpu["memory_bytes"],
            in_use_bytes=gpu["bytes_in_use"],
        )

    def finish(self) -> None:
        """The normal end of training."""
        if self._phase in (_Phase.IDLE,):
            return
        if self._phase not in _SETTLED and self.report.outcome != "fits":
            self._note("training ended before the plan was settled")
        self._update_measured()
        self.end()

    def end(self) -> None:
        """Takes everything back; harmless when called again."""
        if self._phase is _Phase.IDLE and self._session is None:
            return
        if self._phase is _Phase.PROFILE and self._library is not None:
            self._library.stop_recording(self._device)
        self._phase = _Phase.IDLE
        if self._addresses is not None:
            self._addresses.stop()
            self._addresses = None
        if self._session is not None:
            self._session.withdraw()
            self._session = None
        if self._library is not None:
            for device in self._devices:
                self._library.set_budget(device, None)
                self._library.set_workspace_limit(device, None)
                self._library.emulate_link(device, None)
                self._library.set_verify(device, False)
                self._library.clear_layouts(device)
            self._library.set_host_limit(None)
            self._library.trim_host()
        if self._guarded is not None and self._model.train_function is self._guarded:
            self._model.train_function = None if self._jit_was_on else self._train_function
        self._guarded = None
        if self._jit_was_on:
            self._model.jit_compile = True
            self._jit_was_on = False
        run_ended(self)

    def _turn_xla_off(self) -> None:
        if not self._model.jit_compile:
            return
        self._jit_was_on = True
        self._model.jit_compile = False
        self._model.make_train_function(force=True)
        self._note(
            "XLA is off for this training: a step compiled by XLA is one opaque op, and nothing "
            "can be moved inside it"
        )

    def _guard_train_function(self) -> None:
        """Has an exception in a step take everything back at once.

        Keras calls no callback when `fit` fails. An exception that comes from elsewhere (data,
        another callback) ends the life of `fit`'s list of callbacks, which is watched too.
        """
        import tensorflow as tf

        inner = self._model.train_function
        self._train_function = inner

        def train_function(iterator: Any) -> Any:
            try:
                return inner(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                raise
            except BaseException as error:
                if isinstance(error, tf.errors.ResourceExhaustedError):
                    self.report.out_of_memory = _own_words(str(error))
                self.end()
                raise

        self._guarded = train_function
        self._model.train_function = train_function
        frame: FrameType | None = sys._getframe()
        for _ in range(6):
            frame = None if frame is None else frame.f_back
            if frame is None:
                return
            owner = frame.f_locals.get("self")
            if type(owner).__name__ == "CallbackList":
                weakref.finalize(owner, self.end)
                return

    # Steps.

    def step_begins(self) -> None:
        if self._phase is _Phase.IDLE or self._session is None or self._library is None:
            return
        if self._session.ensure():
            self._note("the session's options had changed meanwhile; the plan is back in force")
        if self._phase is _Phase.PROFILE:
            self._library.start_recording(self._device)
        if self._addresses is not None:
            self._addresses.call_begins(_TRAIN)
        if self._phase is _Phase.FIRST:
            for device in self._devices:
                self._library.restart_window(device)
            self._first = {device: self._library.step_counts(device) for device in self._devices}
        self._library.restart_window(self._device)
        self._before = self._library.step_counts(self._device)
        self._step_start_s = time.perf_counter()

    def step_ended(self) -> None:
        if self._phase is _Phase.IDLE or self._library is None or not self._before:
            return
        seconds = time.perf_counter() - self._step_start_s
        recording = b""
        if self._phase is _Phase.PROFILE:
            recording = self._library.stop_recording(self._device)
        elif self._phase is _Phase.FIRST:
            self._find_busiest_device()
        after = self._library.step_counts(self._device)
        step = _Step(
            seconds / self._steps_a_call,
            after["window_peak_bytes"],
            (after["bytes_out"] - self._before["bytes_out"]) // self._steps_a_call,
            (after["bytes_in"] - self._before["bytes_in"]) // self._steps_a_call,
            after["waits"] - self._before["waits"],
        )
        self.report.measured_peak_bytes = max(self.report.measured_peak_bytes or 0, step.peak_bytes)
        self.report.host_peak_bytes = max(
            self.report.host_peak_bytes or 0, after["host_peak_bytes"]
        )
        if self._phase is _Phase.FIRST:
            self._first_ended()
        elif self._phase is _Phase.WARM:
            self._phase = _Phase.PROFILE
        elif self._phase is _Phase.PROFILE:
            self._profiled.append((step.seconds, StepTrace.from_bytes(recording)))
            if len(self._profiled) >= _PROFILED_STEPS:
                self._plan_from(self._profile_of(self._profiled))
                self._profiled = []
        elif self._phase is _Phase.SETTLE:
            self._measured = []
            self._phase = _Phase.MEASURE
            self._check_in_force()
        elif self._phase is _Phase.MEASURE:
            self._measured.append(step)
            if len(self._measured) >= _MEASURED_STEPS:
                self._check()
        elif self._phase is _Phase.STEADY:
            if self._is_stock and after["slab_limit_bytes"] == 0:
                # What the profile foretold can now be measured.
                self._stock_peak_bytes = max(self._stock_peak_bytes, step.peak_bytes)
                self.report.unswapped_peak_bytes = self._stock_peak_bytes
            self._measured.append(step)
            if len(self._measured) > 64:
                del self._measured[:32]
        self._addresses_after(_TRAIN)

    def test_begins(self) -> None:
        if self._addresses is not None:
            self._addresses.call_begins(_TEST)

    def test_ended(self) -> None:
        self._addresses_after(_TEST)

    def _push(self) -> None:
        """Puts the plan in force.

        TensorFlow keeps what it has optimised: under a text that it knows, from an earlier `fit` of
        this model, the pass does not run again, and what it said then holds.
        """
        assert self._session is not None
        text = self._session.push(self._plan, describe=True, label=self._label)
        key = hashlib.sha256(text.encode()).hexdigest()
        self._serial = min(self._serial, _first_pushed.setdefault(key, self._last_serial()))

    def _last_serial(self) -> int:
        assert self._library is not None
        return max((r["serial"] for r in self._library.pass_records()), default=0)

    def _records(self) -> list[dict[str, Any]]:
        assert self._library is not None
        return [r for r in self._library.pass_records() if r["serial"] > self._serial]

    def _find_busiest_device(self) -> None:
        """Of several GPUs, the one that needed most memory is planned for."""
        assert self._library is not None
        if len(self._devices) == 1:
            return
        after = {device: self._library.step_counts(device) for device in self._devices}
        needed = {
            device: after[device]["window_peak_bytes"] - self._first[device]["bytes_in_use"]
            for device in self._devices
        }
        busiest = max(self._devices, key=lambda device: needed[device])
        if busiest == self._device:
            return
        self._device = busiest
        self._before = self._first[busiest]
        for device in self._devices:
            self._library.clear_layouts(device)
        self._install_layouts()
        self._budget_bytes = self.report.budget_bytes = after[busiest]["budget_bytes"]
        self._plan = dataclasses.replace(self._plan, budget_bytes=self._budget_bytes)
        self._machine = self._measured_machine()

    def _first_ended(self) -> None:
        records = self._records()
        for record in records:
            if record["outcome"] == "refused" and record["serial"] > self._begun_serial:
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
            self._fingerprint = function.fingerprint
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
            self._read_profile(trace)
        except _Forgotten:
            # Another text has the pass see it again.
            _labels[self._model] = self._label = f"model {next(_label_count)}"
            self._push()
            self._phase = _Phase.FIRST
            return
        except ValueError as error:
            self._stay_with_bootstrap(str(error))
            return
        assert self._profile is not None and self._session is not None
        self.report.unswapped_peak_bytes = self._profile.unswapped_peak_bytes
        self.report.unswapped_step_s = self._profile.timeline.step_ns / 1e9
        if self._profile.unswapped_peak_bytes <= self._budget_bytes:
            self.report.outcome = "fits"
            self.report.predicted_peak_bytes = self._profile.unswapped_peak_bytes
            if self._profile.worst_peak_bytes <= _CLEARLY_FITS * self._budget_bytes:
                # The graph stays as it is. Others, for longer sequences say, keep their lazy swaps.
                self._plan = self._plan.with_function(FunctionPlan(self._fingerprint))
                self._push()
                self._is_stock = True
            self._measured = []
            self._settled()
            self._print_summary()
            return
        self._plan_and_push()

    def _read_profile(self, trace: StepTrace) -> None:
        assert self._library is not None
        fingerprint = trace.main_graph()
        if fingerprint is None:
            raise ValueError("no op of the training graph was recorded")
        description = self._library.describe(fingerprint)
        if not description:
            raise _Forgotten
        self._fingerprint = fingerprint
        graph = StepGraph.parse(description)
        self._profile = profile_step(trace, graph, fingerprint, self._plan.min_bytes)
        if self._options.save_profile is not None:
            save_profile(self._profile, self._options.save_profile)

    def _plan_and_push(self) -> bool:
        assert self._profile is not None
        try:
            planned = plan_function(
                self._profile,
                self._options.policy,
                self._machine,
                int(self._budget_bytes / self._measured_to_simulated),
                self._options.planning_time_s,
                self._say,
            )
        except BudgetTooSmall as error:
            self._stay_with_bootstrap(str(error))
            return False
        peak_bytes = planned.function.predicted_peak_bytes * self._measured_to_simulated
        self._adopt(dataclasses.replace(planned.function, predicted_peak_bytes=int(peak_bytes)))
        self.report.predicted_wait_s = planned.decision.result.stall_ns / 1e9
        self.report.least_wait_s = planned.least_wait_ns / 1e9
        self.report.notes += planned.decision.notes
        self._phase = _Phase.SETTLE
        return True

    def _stay_with_bootstrap(self, why: str) -> None:
        self.report.outcome = "bootstrap"
        self._measured = []
        self._phase = _Phase.STEADY
        if self._attempts:
            self._adopt(self._best().function)
            return
        self._warn(f"{why} Training goes on under lazy swaps, which keep the budget but wait.")

    def _adopt(self, function: FunctionPlan) -> None:
        assert self._session is not None
        self._plan = self._plan.with_function(function)
        self._push()
        self.report.outcome = "swapped"
        self.report.plan = self._plan
        self.report.predicted_peak_bytes = function.predicted_peak_bytes
        self.report.predicted_step_s = function.predicted_step_ns / 1e9
        self.report.unswapped_peak_bytes = function.unswapped_peak_bytes
        self.report.unswapped_step_s = function.unswapped_step_ns / 1e9
        self.report.swapped_buffers = len(function.swaps)

    def _check_in_force(self) -> None:
        for record in self._records():
            if record["fingerprint"] != self._fingerprint:
                continue
            if record["outcome"] == "refused":
                self._warn(f"the plan was not applied: {record['reason']}")

    def _check(self) -> None:
        function = self._plan.function(self._fingerprint)
        assert function is not None
        attempt = _Attempt(
            function,
            statistics.median(step.seconds for step in self._measured),
            max(step.peak_bytes for step in self._measured),
            max(step.bytes_out for step in self._measured),
            max(step.bytes_in for step in self._measured),
        )
        self._attempts.append(attempt)
        given = self._options.plan is not None and self._profile is None
        if attempt.off > _TOLERANCE and not given and len(self._attempts) <= _MAX_CORRECTIONS:
            # What runs beside what differs from the recording: foretell and plan by as much more or
            # less.
            self._measured_to_simulated *= attempt.demand_bytes / function.predicted_peak_bytes
            self.report.corrections += 1
            if self._plan_and_push():
                return
        best = self._best()
        if best.function is not function:
            self._adopt(best.function)
        self._measured = [] if best.function is not function else self._measured
        self._settled()
        self._update_measured(best)
        if self._options.save_plan is not None:
            self._plan.save(self._options.save_plan)
        self._print_summary()

    def _settled(self) -> None:
        """The plan stays as it is; addresses are planned for it."""
        assert self._library is not None
        self._phase = _Phase.STEADY
        if self._options.slab:
            limit_bytes = self._budget_bytes if self._device >= FIRST_GPU else None
            self._addresses = AddressRun(self._library, self._device, limit_bytes)
            if not self._has_layout():
                self._phase = _Phase.LAYOUT

    def _has_layout(self) -> bool:
        function = self._plan.function(self._fingerprint)
        return function is not None and bool(function.layouts)

    def _addresses_after(self, kind: str) -> None:
        """Has addresses planned for a graph that has run often enough without any."""
        if self._addresses is None:
            return
        plan = self._addresses.call_ended(kind, self._plan, self._steps_a_call)
        if plan is None:
            if self._addresses.problem and self._phase is _Phase.LAYOUT:
                self._note(self._addresses.problem)
                self._phase = _Phase.STEADY
            return
        self._plan = self.report.plan = plan
        self.report.addresses = tuple(self._addresses.maps)
        self._push()
        if self._phase is _Phase.LAYOUT and self._has_layout():
            self._phase = _Phase.STEADY
            self._measured = []
        self._install_layouts()
        if self._options.save_plan is not None:
            self._plan.save(self._options.save_plan)

    def _install_layouts(self) -> None:
        assert self._library is not None
        for function in self._plan.functions:
            if not any(function.layouts) or not self._options.slab:
                continue
            try:
                self._library.install_layout(
                    self._device, function.fingerprint, slots_to_text(function.layouts)
                )
            except ValueError as error:
                self._warn(f"addresses are not planned: {error}")

    def _best(self) -> _Attempt:
        return min(self._attempts, key=lambda a: (a.off > _TOLERANCE, a.step_s))

    def _update_measured(self, attempt: _Attempt | None = None) -> None:
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
            "in_force": self._session is not None and self._session.in_force(),
            "budget_bytes": self._budget_bytes,
        }

    def _print_summary(self) -> None:
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
