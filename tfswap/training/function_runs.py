"""FunctionRuns: calls of `tf.function`s under one budget, with a plan for each function."""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tfswap.cost_model.model_floor import function_floor
from tfswap.devices.swap_options import SwapOptions
from tfswap.devices.swap_session import DeviceBusy, SwapSession
from tfswap.hooks import eager
from tfswap.hooks.function_calls import only_graph, traces_of
from tfswap.plan.schema import SwapPlan
from tfswap.report.summary import Report
from tfswap.report.training_log import TrainingLog
from tfswap.step.op_floor import StepFloor
from tfswap.training.run import TrainingRun

NO_GRAPH = (
    "there is no graph to insert swaps into, so nothing is swapped; the budget is kept all the "
    "same. Compute the gradients inside of the tf.function: the whole step belongs in it"
)


class _Trained:
    """State of one function across its trainings.

    Attributes:
        report: Report of the function.
        run: The current training; None while the session does not have the devices.
        plan: Last plan of the previous training, if it had settled.
        traces: Number of graphs that the function had at its last call.
    """

    def __init__(self, name: str, prints: bool) -> None:
        self.report = Report()
        self.log = TrainingLog(self.report.notes, prints, name)
        self.run: TrainingRun | None = None
        self.plan: SwapPlan | None = None
        self.traces = 0
        self._trained = False

    @property
    def trains(self) -> bool:
        """Whether the function trains, or its last training did."""
        return self._trained if self.run is None else self.run.trains

    def refresh(self) -> Report:
        """Return the report, up to date."""
        if self.run is not None:
            self.run.refresh()
        return self.report

    def end(self, finish: bool = False) -> None:
        """End the current training, if there is one."""
        run, self.run = self.run, None
        if run is None:
            return
        self.plan = run.settled_plan
        self._trained = run.trains
        if finish:
            run.finish()
        run.end()


def _floor(function: Any, min_bytes: int) -> StepFloor:
    """Return the floor of a function's step.

    Raises:
        ValueError: It cannot be known without a recording.
    """
    graph = only_graph(function)
    if graph is None:
        raise ValueError("the function has several graphs")
    return function_floor(graph, min_bytes)


class FunctionRuns:
    """Run functions under a budget, which is active from the first call until `end`.

    Between calls, another training (a `fit` under `AutoSwap`) can acquire the devices; the plans
    are kept and used again afterwards. A call during another call, such as one from another thread,
    is not managed.

    Args:
        options: Options of all functions.
        certain: Whether every function trains; otherwise only those whose graphs have gradients get
            plans.

    Raises:
        LibraryError: The library is not loaded.
    """

    def __init__(self, options: SwapOptions, certain: bool = False) -> None:
        self._options = options
        self._certain = certain
        self.notes: list[str] = []
        self._log = TrainingLog(self.notes, options.prints_progress)
        self._warned: set[str] = set()
        self._session = SwapSession(options, self._log, self._end_trainings)
        self._functions: weakref.WeakKeyDictionary[Any, _Trained] = weakref.WeakKeyDictionary()
        self._by_name: dict[str, _Trained] = {}  # includes destroyed functions
        self._in_call = threading.Lock()
        self._live_functions = 0  # whose destruction ends this

    def begin(self) -> None:
        """Install the budget before the first call; has no effect if it is installed.

        Raises:
            DeviceBusy: Another training has the devices.
            LibraryError: tfswap does not manage the devices, or the spill file cannot be made.
            ValueError: The budget cannot be kept.
        """
        if not self._session.has_devices:
            self._session.begin()
            self._session.is_idle = True

    def stand_by(self) -> None:
        """Install the budget now and whenever no other training has the devices, until `end`.

        Raises:
            DeviceBusy, LibraryError, ValueError: As in `begin`.
        """
        self._session.stand_by()

    def begin_if_free(self) -> None:
        """Install the budget now, or if another training has the devices, at the first call."""
        try:
            self.begin()
        except DeviceBusy:
            pass

    def call(self, function: Any, name: str, call: Callable[[], Any]) -> Any:
        """Call a function.

        Args:
            function: The `tf.function`.
            name: Its name in messages.
            call: Calls the function and returns its result.

        Raises:
            ResourceExhaustedError: The budget has no room for the step.
            Exception: Any other error of the call, and those that `AutoSwap` raises.
        """
        if not self._in_call.acquire(blocking=False):
            return call()
        try:
            run = self._training_of(function, name)
            return call() if run is None else self._step(function, run, call)
        finally:
            self._session.is_idle = True
            self._in_call.release()

    def _step(self, function: Any, run: TrainingRun, call: Callable[[], Any]) -> Any:
        try:
            run.step_begins()
            try:
                result = call()
                if run.is_measuring:
                    self._session.devices.wait()
            except BaseException as error:
                explained = run.step_failed(error, functools.partial(_floor, function))
                run.step_abandoned()
                if explained is error:
                    raise
                raise explained.with_traceback(error.__traceback__) from None
            run.step_ended()
            self._functions[function].traces = traces_of(function)
        finally:
            run.between_steps()
        return result

    def _training_of(self, function: Any, name: str) -> TrainingRun | None:
        """Return the function's training, in a session that has the devices; None if impossible."""
        if eager.tape_is_recording():
            self.warn_once(
                f"{name} is called under a tf.GradientTape that is outside of any tf.function: "
                f"{NO_GRAPH}"
            )
            return None
        trained = self._functions.get(function)
        if trained is None:
            trained = self._functions[function] = _Trained(name, self._options.prints_progress)
            self._by_name[name] = trained
            weakref.finalize(function, trained.end).atexit = False
        elif trained.run is not None and traces_of(function) > trained.traces:
            trained.run.traced_again()
        if not self._session.acquire():
            return None  # the other training's budget applies
        if trained.run is None:
            self._session.consider_weights()
            trained.run = TrainingRun(
                self._session,
                function,
                trained.log,
                trained.report,
                plan=trained.plan or self._options.plan,
                certain=self._certain,
            )
            trained.run.begin()
        return trained.run

    def end_with(self, function: Any) -> None:
        """Release the budget when the last of these functions is destroyed."""
        self._live_functions += 1
        weakref.finalize(function, self._function_destroyed).atexit = False

    def _function_destroyed(self) -> None:
        self._live_functions -= 1
        if not self._live_functions:
            self.end()

    def note(self, text: str) -> None:
        """Report what is done."""
        self._log.note(text)

    def warn_once(self, text: str) -> None:
        """Warn unless this text has been a warning already."""
        if text not in self._warned:
            self._warned.add(text)
            self._log.warn(text)

    @property
    def reports(self) -> dict[str, Report]:
        """The report of each function that trains, by name; of functions of one name, the last."""
        return {name: self._report(t) for name, t in self._by_name.items() if t.trains}

    def report_of(self, function: Any) -> Report:
        """Return the report of one function."""
        trained = self._functions.get(function)
        return Report() if trained is None else self._report(trained)

    def _report(self, trained: _Trained) -> Report:
        report = trained.refresh()
        return dataclasses.replace(report, notes=[*self.notes, *report.notes])

    def _end_trainings(self) -> None:
        """End the trainings before the session releases the devices, and keep their plans."""
        for trained in self._functions.values():
            trained.end(finish=True)

    def end(self) -> None:
        """Release the budget. Further calls have no effect."""
        self._session.end()
