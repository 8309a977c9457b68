"""The report of a training under a budget, as data and as a printed summary."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfswap.io import private_files
from tfswap.io.amounts import readable_bytes, readable_seconds
from tfswap.machine.far_tier import COMPRESSED
from tfswap.plan.schema import SwapPlan
from tfswap.planning.least_budget import LeastBudgets
from tfswap.report.address_map import AddressMap
from tfswap.report.page import cell, page
from tfswap.report.perfetto import to_trace
from tfswap.report.picture import to_png
from tfswap.report.step_story import StepStory


@dataclass(frozen=True)
class TierUse:
    """Use of one tier of far memory.

    Attributes:
        name: "host", "compressed" or "file".
        peak_bytes: Largest amount stored at once, after encoding.
        bytes_out: Bytes swapped out to the tier, before encoding.
        kept_bytes_out: The same bytes after encoding.
    """

    name: str
    peak_bytes: int
    bytes_out: int
    kept_bytes_out: int

    @classmethod
    def between(cls, name: str, before: Mapping[str, int], after: Mapping[str, int]) -> TierUse:
        """Compute the use between two statistics of a device, or since a reset between them."""

        def since(count: str) -> int:
            counted = after[f"far_{name}_{count}"]
            known = before[f"far_{name}_{count}"]
            return counted - known if counted >= known else counted

        peak_bytes = after[f"far_{name}_peak_bytes"]
        return cls(name, peak_bytes, since("bytes_out"), since("kept_bytes_out"))


@dataclass(frozen=True)
class TensorLoss:
    """The error of a tensor that a lossy codec stores, at the worst of its rates.

    Attributes:
        tensor: "node:port".
        relative_error: L2 norm of the error divided by that of the tensor, in sampled sections.
        largest_error: Largest absolute error of an element in them.
    """

    tensor: str
    relative_error: float
    largest_error: float


@dataclass(frozen=True)
class LossyUse:
    """Use of lossy codecs. Rates are in percent of a tensor's bytes.

    Attributes:
        tensors: Number of tensors that are stored lossily now.
        rate: The current rate.
        top: The rate of the first epoch.
        bottom: The lowest rate.
        losses: Error of each tensor that was compared.
    """

    tensors: int
    rate: int
    top: int
    bottom: int
    losses: tuple[TensorLoss, ...] = ()

    @property
    def worst_relative_error(self) -> float | None:
        """Largest relative error of all tensors; None if none was compared."""
        return max((loss.relative_error for loss in self.losses), default=None)

    @property
    def mean_relative_error(self) -> float | None:
        """Mean relative error of all tensors; None if none was compared."""
        if not self.losses:
            return None
        return sum(loss.relative_error for loss in self.losses) / len(self.losses)


@dataclass(frozen=True)
class ShareUse:
    """A share of a device that a broker divides among jobs.

    Attributes:
        broker: The broker's socket.
        device: The broker's name of the device.
        budget_bytes: Maximum memory of this job.
        device_bytes: Maximum memory of all jobs together.
        link_share: Fraction of the link's bandwidth that this job may use.
        jobs: Number of jobs when the share was granted, including this one.
        in_touch: Whether the job is connected to the broker. Otherwise it keeps its last share.
    """

    broker: str
    device: str
    budget_bytes: int
    device_bytes: int
    link_share: float
    jobs: int
    in_touch: bool


REMEMBERED = "remembered"
"""The value of `Report.first_plan` if the training began with a remembered plan or profile."""


@dataclass(eq=False)
class Report(Mapping[str, Any]):
    """A training's measurements and predictions, in bytes and seconds; see `AutoSwap.report`."""

    outcome: str = "no effect"
    budget_bytes: int | None = None
    unswapped_peak_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    unswapped_step_s: float | None = None
    predicted_step_s: float | None = None
    predicted_wait_s: float | None = None
    least_wait_s: float | None = None
    least_budgets: LeastBudgets | None = None
    step_s: float | None = None
    bytes_out_per_step: int | None = None
    bytes_in_per_step: int | None = None
    file_bytes_in_per_step: int | None = None
    file_in_s: float | None = None
    swapped_buffers: int = 0
    recomputed_buffers: int = 0
    recompute_s: float | None = None
    sections: int = 1
    compiled: bool = False
    elements_leave: bool = False
    first_plan: str = ""
    host_peak_bytes: int | None = None
    tiers: tuple[TierUse, ...] = ()
    lossy: LossyUse | None = None
    share: ShareUse | None = None
    corrections: int = 0
    plan: SwapPlan | None = field(default=None, repr=False)
    addresses: tuple[AddressMap, ...] = field(default=(), repr=False)
    story: StepStory | None = field(default=None, repr=False)
    out_of_memory: str | None = None
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, key: str) -> Any:
        if key not in self.__dataclass_fields__:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Return the summary and the chart of the step, which notebooks show."""
        return cell(summary_lines(self), self.story, self.out_of_memory)

    def summary(self) -> str:
        """Return the printed summary, at most six lines."""
        return "\n".join(summary_lines(self))

    def to_html(self, path: str | os.PathLike[str], what_if: bool = True) -> None:
        """Write the report as one self-contained HTML page.

        The page shows the summary; the load over time without and with swaps, the buffers in it,
        swaps, copies and waits; the least budgets; a table of the buffers; the planned addresses;
        and the out-of-memory error, if there was one.

        Args:
            path: The file.
            what_if: Whether to plan for other budgets and faster links too; takes seconds.

        Raises:
            OSError: The file cannot be written.
        """
        answers = self.story.what_if() if what_if and self.story is not None else ()
        text = page(
            summary_lines(self),
            self.addresses,
            self.out_of_memory,
            self.story,
            answers,
            self.least_budgets,
        )
        private_files.write_bytes(path, text.encode())

    def to_png(self, path: str | os.PathLike[str]) -> None:
        """Draw the load over time, swaps, copies and waits; needs matplotlib.

        Raises:
            ValueError: No step was planned.
            ImportError: matplotlib is not installed.
            OSError: The file cannot be written.
        """
        private_files.write_bytes(path, to_png(self._planned_step()))

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a trace of the simulated step, for ui.perfetto.dev or chrome://tracing.

        Raises:
            ValueError: No step was planned.
            OSError: The file cannot be written.
        """
        private_files.write_bytes(path, to_trace(self._planned_step()).encode())

    def _planned_step(self) -> StepStory:
        if self.story is None:
            raise ValueError(
                f"there is no planned step to show: the outcome is {self.outcome!r}"
                + (", nothing is swapped" if self.outcome == "fits" else "")
            )
        return self.story


def _far_memory(report: Report) -> str:
    """Describe the peak use of each tier, and its compression."""
    used = [tier for tier in report.tiers if tier.bytes_out]
    if not used:
        return f"{readable_bytes(report.host_peak_bytes)} in use (host)"
    parts = []
    for tier in used:
        ratio = tier.kept_bytes_out / tier.bytes_out
        encoded = f" to {ratio:.0%}" if tier.name == COMPRESSED else ""
        parts.append(f"{readable_bytes(tier.peak_bytes)} in use ({tier.name}{encoded})")
    return ", ".join(parts)


def _disk(report: Report) -> str:
    if not report.file_bytes_in_per_step or report.file_in_s is None:
        return ""
    return (
        f"; {readable_bytes(report.file_bytes_in_per_step)} read per step, in "
        f"{readable_seconds(report.file_in_s)} at least"
    )


def _sections(report: Report) -> str:
    return f", {report.sections} sections of the batch" if report.sections > 1 else ""


def _recomputes(report: Report) -> str:
    if not report.recomputed_buffers:
        return ""
    return f"; {report.recomputed_buffers} recomputed in {readable_seconds(report.recompute_s)}"


def _waits(report: Report) -> list[str]:
    if not report.predicted_wait_s or report.least_wait_s is None:
        return []
    return [
        f"tfswap: waits  {readable_seconds(report.predicted_wait_s)} a step for copies, predicted; "
        f"no plan waits less than {readable_seconds(report.least_wait_s)}"
    ]


def _lossy(report: Report) -> list[str]:
    if report.lossy is None or not report.lossy.tensors:
        return []
    worst = report.lossy.worst_relative_error
    error = "" if worst is None else f" (relative error {worst:.0e})"
    return [
        f"tfswap: lossy  {report.lossy.tensors} tensors keep {report.lossy.rate}% of their bits"
        f"{error}: losses differ from exact training"
    ]


def _fits(report: Report) -> str:
    # The unswapped peak is that of any execution order, the predicted one that of a fixed order.
    peak, in_order = report.unswapped_peak_bytes, report.predicted_peak_bytes
    if report.elements_leave:
        return f"no swaps are planned: peak {readable_bytes(in_order or peak)}"
    if peak is None or in_order is None or peak <= (report.budget_bytes or peak):
        return f"the model fits: peak {readable_bytes(peak)}"
    return (
        f"the model fits with its ops kept in order: peak {readable_bytes(peak)} -> "
        f"{readable_bytes(in_order)} predicted"
    )


def summary_lines(report: Report) -> list[str]:
    """Return the printed summary, at most six lines."""
    budget = readable_bytes(report.budget_bytes)
    if report.outcome == "fits":
        loops = report.elements_leave
        swaps = "What loops keep leaves on demand" if loops else "Nothing is swapped"
        return [
            f"tfswap: {_fits(report)} of a budget of {budget}. {swaps}"
            f"{_sections(report)}{', XLA stays on' if report.compiled else ''}."
        ]
    if report.outcome == "no effect":
        return ["tfswap: had no effect on this training."]
    if report.outcome == "bootstrap":
        return [
            f"tfswap: no plan; on-demand swaps keep the budget of {budget} "
            f"(measured peak {readable_bytes(report.measured_peak_bytes)})",
            f"tfswap: step {readable_seconds(report.step_s)}; "
            f"{readable_bytes(report.bytes_out_per_step)} out and "
            f"{readable_bytes(report.bytes_in_per_step)} in per step{_sections(report)}, "
            f"far memory {_far_memory(report)}",
        ]
    return [
        f"tfswap: peak   {readable_bytes(report.unswapped_peak_bytes)} -> "
        f"{readable_bytes(report.measured_peak_bytes)} measured "
        f"({readable_bytes(report.predicted_peak_bytes)} predicted), budget {budget}",
        f"tfswap: step   {readable_seconds(report.step_s)} measured "
        f"({readable_seconds(report.predicted_step_s)} predicted); without swaps about "
        f"{readable_seconds(report.unswapped_step_s)} (estimated, within 15 %)",
        *_waits(report),
        f"tfswap: moved  {readable_bytes(report.bytes_out_per_step)} out and "
        f"{readable_bytes(report.bytes_in_per_step)} in per step, "
        f"{report.swapped_buffers} buffers{_recomputes(report)}{_sections(report)}",
        f"tfswap: far    {_far_memory(report)}{_disk(report)}",
        *_lossy(report),
    ]
