"""What AutoSwap did, as data and as the lines that people read."""

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
from tfswap.report.page import page
from tfswap.report.perfetto import to_trace
from tfswap.report.picture import to_png
from tfswap.report.step_story import StepStory


@dataclass(frozen=True)
class TierUse:
    """What went through a tier of far memory.

    Attributes:
        name: "host", "compressed" or "file".
        peak_bytes: The most that it held, as kept.
        bytes_out: What left the device for it.
        kept_bytes_out: What became of that: less where it is encoded.
    """

    name: str
    peak_bytes: int
    bytes_out: int
    kept_bytes_out: int

    @classmethod
    def between(cls, name: str, before: Mapping[str, int], after: Mapping[str, int]) -> TierUse:
        """From a device's statistics; from their last reset on, if there was one in between."""

        def since(count: str) -> int:
            counted = after[f"far_{name}_{count}"]
            known = before[f"far_{name}_{count}"]
            return counted - known if counted >= known else counted

        peak_bytes = after[f"far_{name}_peak_bytes"]
        return cls(name, peak_bytes, since("bytes_out"), since("kept_bytes_out"))


@dataclass(frozen=True)
class TensorLoss:
    """How far a tensor was off that a lossy codec kept, at the worst of its rates.

    Attributes:
        tensor: "node:port".
        relative_error: Root of the errors' squares over root of the tensor's, of sampled sections.
        largest_error: Of any number in them.
    """

    tensor: str
    relative_error: float
    largest_error: float


@dataclass(frozen=True)
class LossyUse:
    """What was kept by lossy codecs. Rates in percent of a tensor's bytes.

    Attributes:
        tensors: How many are now.
        rate: Now.
        top: Of the first epoch.
        bottom: Least that it may fall to.
        losses: Of each tensor that was compared.
    """

    tensors: int
    rate: int
    top: int
    bottom: int
    losses: tuple[TensorLoss, ...] = ()

    @property
    def worst_relative_error(self) -> float | None:
        """Of all tensors; None if none was compared."""
        return max((loss.relative_error for loss in self.losses), default=None)

    @property
    def mean_relative_error(self) -> float | None:
        """Of all tensors; None if none was compared."""
        if not self.losses:
            return None
        return sum(loss.relative_error for loss in self.losses) / len(self.losses)


@dataclass(frozen=True)
class ShareUse:
    """A share of a device that a broker divides among jobs.

    Attributes:
        broker: The socket on which it listens.
        device: What it calls the device.
        budget_bytes: What this job may hold.
        device_bytes: What all jobs may hold together.
        link_share: The part of the link's speed that this job's copies have.
        jobs: How many there were when the share was given, this one included.
        in_touch: Whether the broker hears this job; without it, it keeps what it has.
    """

    broker: str
    device: str
    budget_bytes: int
    device_bytes: int
    link_share: float
    jobs: int
    in_touch: bool


REMEMBERED = "remembered"
"""The value of `Report.first_plan` where an earlier training's plan or profile was used."""


@dataclass(eq=False)
class Report(Mapping[str, Any]):
    """See `AutoSwap.report`. Bytes and seconds; None is not known."""

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
    swapped_buffers: int = 0
    recomputed_buffers: int = 0
    recompute_s: float | None = None
    sections: int = 1
    first_plan: str = ""
    host_peak_bytes: int | None = None
    tiers: tuple[TierUse, ...] = ()
    lossy: LossyUse | None = None
    share: ShareUse | None = None
    corrections: int = 0
    plan: SwapPlan | None = field(default=None, repr=False)  # long
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

    def summary(self) -> str:
        """At most six lines for a person."""
        return "\n".join(summary_lines(self))

    def to_html(self, path: str | os.PathLike[str], what_if: bool = True) -> None:
        """Writes one self-contained page.

        It has the summary; the load over time without and with swaps, who holds it, swaps, copies
        and waits; the least budgets; a table of the buffers; maps of the addresses; what memory ran
        out of, if it did.

        Args:
            path: Of the file.
            what_if: Whether to plan for other budgets and faster links too, some seconds' work.

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
        """Draws the load over time, swaps, copies and waits; needs matplotlib.

        Raises:
            ValueError: No step was planned.
            ImportError: There is no matplotlib; the text says how to get it.
            OSError: The file cannot be written.
        """
        private_files.write_bytes(path, to_png(self._planned_step()))

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Writes the step as simulated, for ui.perfetto.dev (or chrome://tracing).

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


def _far(report: Report) -> str:
    """What was held where at most, and what became of it by encoding."""
    used = [tier for tier in report.tiers if tier.bytes_out]
    if not used:
        return f"{readable_bytes(report.host_peak_bytes)} in use (host)"
    parts = []
    for tier in used:
        kept = tier.kept_bytes_out / tier.bytes_out
        encoded = f", {kept:.0%} of what left" if tier.name == COMPRESSED else ""
        parts.append(f"{readable_bytes(tier.peak_bytes)} in use ({tier.name}{encoded})")
    return ", ".join(parts)


def _sections(report: Report) -> str:
    """Into how many the batch is cut, if it is."""
    return f", {report.sections} sections of the batch" if report.sections > 1 else ""


def _recomputes(report: Report) -> str:
    """What is made again instead, if anything is."""
    if not report.recomputed_buffers:
        return ""
    return f"; {report.recomputed_buffers} made again in {readable_seconds(report.recompute_s)}"


def _waits(report: Report) -> list[str]:
    """How long copies are foretold to hold ops up, and how much of it any plan would."""
    if not report.predicted_wait_s or report.least_wait_s is None:
        return []
    return [
        f"tfswap: waits  {readable_seconds(report.predicted_wait_s)} a step for copies, predicted; "
        f"no plan waits less than {readable_seconds(report.least_wait_s)}"
    ]


def _lossy(report: Report) -> list[str]:
    """That this training is not exact, if it is not."""
    if report.lossy is None or not report.lossy.tensors:
        return []
    worst = report.lossy.worst_relative_error
    off = "" if worst is None else f" (off by {worst:.0e})"
    return [
        f"tfswap: lossy  {report.lossy.tensors} tensors are kept with {report.lossy.rate} % of "
        f"their bits{off}: losses differ from exact training"
    ]


def _fitting(report: Report) -> str:
    """That there is room, and what for: ops at other times may need more than in their order."""
    peak, in_order = report.unswapped_peak_bytes, report.predicted_peak_bytes
    if peak is None or in_order is None or peak <= (report.budget_bytes or peak):
        return f"the model fits: peak {readable_bytes(peak)}"
    return (
        f"the model fits with its ops kept in order: peak {readable_bytes(peak)} -> "
        f"{readable_bytes(in_order)} predicted"
    )


def summary_lines(report: Report) -> list[str]:
    """At most six lines for a person."""
    budget = readable_bytes(report.budget_bytes)
    if report.outcome == "fits":
        return [
            f"tfswap: {_fitting(report)} of a budget of {budget}. Nothing is "
            f"swapped{_sections(report)}."
        ]
    if report.outcome == "no effect":
        return ["tfswap: had no effect on this training."]
    if report.outcome == "bootstrap":
        return [
            f"tfswap: no plan; lazy swaps keep the budget of {budget} "
            f"(measured peak {readable_bytes(report.measured_peak_bytes)})",
            f"tfswap: step {readable_seconds(report.step_s)}; "
            f"{readable_bytes(report.bytes_out_per_step)} out and "
            f"{readable_bytes(report.bytes_in_per_step)} in per step{_sections(report)}, "
            f"far memory {_far(report)}",
        ]
    return [
        f"tfswap: peak   {readable_bytes(report.unswapped_peak_bytes)} -> "
        f"{readable_bytes(report.measured_peak_bytes)} measured "
        f"({readable_bytes(report.predicted_peak_bytes)} predicted), budget {budget}",
        f"tfswap: step   {readable_seconds(report.unswapped_step_s)} -> "
        f"{readable_seconds(report.step_s)} measured "
        f"({readable_seconds(report.predicted_step_s)} predicted)",
        *_waits(report),
        f"tfswap: moved  {readable_bytes(report.bytes_out_per_step)} out and "
        f"{readable_bytes(report.bytes_in_per_step)} in per step, "
        f"{report.swapped_buffers} buffers{_recomputes(report)}{_sections(report)}",
        f"tfswap: far    {_far(report)}",
        *_lossy(report),
    ]
