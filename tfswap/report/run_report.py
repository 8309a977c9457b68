"""RunReport: fill in the report of one training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tfswap.machine.far_tier import FILE
from tfswap.plan.measured_plan import MeasuredPlan, MeasuredStep
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.planning.least_budget import LeastBudgets
from tfswap.planning.plan_function import Planned
from tfswap.report.out_of_memory import own_words
from tfswap.report.step_story import StepStory
from tfswap.report.summary import Report
from tfswap.report.tensorboard import TensorBoardLog
from tfswap.step.profile import Profile


def _scalars(step: MeasuredStep, counts: dict[str, int]) -> dict[str, float]:
    """Return a step's figures for TensorBoard."""
    return {
        "step_s": step.seconds,
        "peak_bytes": counts["window_peak_bytes"],
        "budget_bytes": counts["budget_bytes"],
        "bytes_out": step.bytes_out,
        "bytes_in": step.bytes_in,
        "waits": step.waits,
    }


class RunReport:
    """Fill in a report while the training runs.

    Args:
        report: The report.

    Attributes:
        log: TensorBoard log that gets the same figures; None for none.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.log: TensorBoardLog | None = None
        self._function: FunctionPlan | None = None

    def budget_changed(self, budget_bytes: int) -> None:
        """Note a new budget; with a smaller one, measured peaks start again."""
        if budget_bytes < (self.report.budget_bytes or 0):
            self.report.measured_peak_bytes = None
        self.report.budget_bytes = budget_bytes

    def profiled(self, profile: Profile, least_budgets: LeastBudgets) -> None:
        """Note the profiled step and the least budgets that it can run in."""
        self.report.least_budgets = least_budgets
        self.report.unswapped_peak_bytes = profile.unswapped_peak_bytes
        self.report.unswapped_step_s = profile.timeline.step_ns / 1e9
        dataflow = profile.timeline.dataflow
        self.report.elements_leave = dataflow is not None and dataflow.graph.has_movable_lists

    def fits(self, compiled: bool = False) -> None:
        """Note that the model fits without swaps, or that XLA's memory does."""
        self.report.compiled = compiled
        self.report.outcome = "fits"
        self.report.elements_leave = False
        self.report.unswapped_peak_bytes = self.report.measured_peak_bytes

    def fits_as_profiled(self, profile: Profile, story: StepStory | None) -> None:
        """Note the profiled step of a model that fits."""
        self.report.unswapped_peak_bytes = profile.unswapped_peak_bytes
        self.report.predicted_peak_bytes = profile.unswapped_peak_bytes
        self.report.story = story

    def planned(self, planned: Planned) -> None:
        """Note a plan that was made from the profile."""
        self.report.predicted_wait_s = planned.assignment.result.stall_ns / 1e9
        self.report.least_wait_s = planned.least_wait_ns / 1e9
        longer_ns = planned.profile.timeline.step_ns - planned.function.unswapped_step_ns
        self.report.recompute_s = longer_ns / 1e9
        self.report.notes += planned.decision.notes

    def adopted(self, plan: SwapPlan, function: FunctionPlan, story: StepStory | None) -> None:
        """Note the installed plan, with its entry for the training's graph."""
        self._function = function
        self.report.outcome = "swapped" if function.swaps or function.recomputes else "fits"
        self.report.plan = plan
        self.report.predicted_peak_bytes = function.predicted_peak_bytes
        self.report.predicted_step_s = function.predicted_step_ns / 1e9
        self.report.unswapped_peak_bytes = function.unswapped_peak_bytes
        self.report.unswapped_step_s = function.unswapped_step_ns / 1e9
        self.report.swapped_buffers = len(function.swaps)
        self.report.recomputed_buffers = len(function.recomputes)
        read_bytes = [s.size_bytes * len(s.returns) for s in function.swaps if s.tier == FILE]
        self.report.file_bytes_in_per_step = sum(read_bytes)
        if read_bytes and story is not None and len(story.links) > 1:  # the last one is the file's
            self.report.file_in_s = sum(read_bytes) / story.links[-1].in_bytes_per_s
        self.report.story = story
        if self.log is not None and story is not None:
            self.log.plan(story)

    def given_up(self, step_s: float) -> None:
        """Note that on-demand swaps were faster than the plan, with their step time."""
        self.report.step_s = step_s
        self.withdrawn()

    def withdrawn(self) -> None:
        """Note that no plan is installed any more."""
        self.report.plan = None
        self.report.compiled = False
        self.report.swapped_buffers = self.report.recomputed_buffers = 0
        self.report.outcome = "bootstrap"

    def step(self, step: MeasuredStep, counts: dict[str, int]) -> None:
        """Note a step that ended.

        Args:
            step: Its measurements.
            counts: The library's counts after it.
        """
        report = self.report
        report.measured_peak_bytes = max(
            report.measured_peak_bytes or 0, counts["window_peak_bytes"]
        )
        report.host_peak_bytes = max(report.host_peak_bytes or 0, counts["host_peak_bytes"])
        if self.log is not None:
            self.log.step(_scalars(step, counts))

    def failed(self, error: BaseException) -> None:
        """Note a step that failed, and what its error says about memory."""
        import tensorflow as tf

        if isinstance(error, tf.errors.ResourceExhaustedError):
            self.report.out_of_memory = own_words(str(error))

    def measured(self, steps: Sequence[MeasuredStep], attempt: MeasuredPlan | None) -> None:
        """Note steps under the plan; of a measured plan, its own figures."""
        if attempt is not None:
            self.report.step_s = attempt.step_s
            self.report.bytes_out_per_step = attempt.bytes_out
            self.report.bytes_in_per_step = attempt.bytes_in
        elif steps:
            self.report.step_s = statistics.median(step.seconds for step in steps)
            self.report.bytes_out_per_step = max(step.bytes_out for step in steps)
            self.report.bytes_in_per_step = max(step.bytes_in for step in steps)
            if self.report.outcome == "fits" and self.report.plan is None:
                self.report.unswapped_step_s = self.report.step_s
            if self.report.outcome == "fits" and self.report.bytes_out_per_step:
                self.report.outcome = "swapped"  # on demand: this order of ops needs more
        self._estimate_unswapped_step()

    def _estimate_unswapped_step(self) -> None:
        """Estimate the step without swaps anew, from the measured one.

        The recorded step, under on-demand swaps, took longer than one without; so may measured
        steps, if copies are slower than predicted. The lower estimate is the better one.
        """
        report, function = self.report, self._function
        if function is None or report.outcome != "swapped" or not report.step_s:
            return
        recorded_s, predicted_s = function.unswapped_step_ns / 1e9, function.predicted_step_ns / 1e9
        if predicted_s > 0:
            report.unswapped_step_s = min(recorded_s, report.step_s * recorded_s / predicted_s)
