"""Stage: the largest batch that trains within a budget, with the results of papers.

Few batches can be tried: for each of them, swapped memory is pinned once, which takes long. So the
published batch is tried first, and the next one depends on the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_check.comparison import broken, figures_of, shown
from benchmarks.gpu_check.context import Context, Skip
from benchmarks.gpu_check.machine import gpu_bytes, touch_gpu
from benchmarks.gpu_check.models import BERT as BERT_BASE
from benchmarks.gpu_check.models import batch_of, build
from benchmarks.gpu_check.subject import Subject, Trained

BUDGET_BYTES = 16 * 10**9
STEPS = 6
"""A batch counts when that many of its steps have trained within the budget."""

# The factor from a batch that trained to the next one, and when two are close enough.
_GROWTH, _NEAR_ENOUGH = 1.25, 1.06
# The margin below the batch that should just fit.
_MARGIN = 0.97
_UNSWAPPED_MARGINS = (0.97, 0.9)
# A larger batch takes more than proportionally longer if it swaps more.
_LONGER = 1.3


@dataclass(frozen=True)
class Case:
    """A model and the results of papers.

    Attributes:
        model: Its name.
        image: Pixels of a side, or tokens.
        published: Largest batches by method; tfswap is to be compared with the first.
        probe: A batch that fits unswapped for sure.
    """

    model: str
    image: int
    published: Mapping[str, int]
    probe: int


RESNET50 = Case("ResNet50", 224, {"Capuchin": 1014, "vDNN": 520, "TensorFlow": 190}, 96)
BERT = Case(BERT_BASE, 128, {"Capuchin": 450}, 32)


@dataclass(frozen=True)
class Tried:
    """A batch, whether it trained, and the smallest budget that it needed, if known."""

    batch: int
    trained: bool
    needed_bytes: int | None = None


def next_batch(first: int, tried: list[Tried], budget_bytes: int) -> int | None:
    """Return the next batch to try; None if the largest one is known well enough."""
    if not tried:
        return first
    most = max((t.batch for t in tried if t.trained), default=0)
    failed = [t for t in tried if not t.trained]
    if not failed:
        return int(_GROWTH * most)
    least = min(failed, key=lambda t: t.batch)
    if most and least.batch <= _NEAR_ENOUGH * most:
        return None
    guess = (most + least.batch) // 2
    if least.needed_bytes is not None:
        guess = int(_MARGIN * least.batch * budget_bytes / least.needed_bytes)
    within = most < guess < least.batch
    guess = guess if within else (most + least.batch) // 2
    return guess if most < guess < least.batch else None


def run(model: str, context: Context) -> None:
    """Find the largest batch of a model without and with swapping.

    Raises:
        Skip: The GPU has less memory than the budget.
    """
    (case,) = (case for case in (RESNET50, BERT) if case.model == model)
    touch_gpu()
    if not context.quick and gpu_bytes() < BUDGET_BYTES:
        raise Skip("the GPU has less than 16 GB")
    probe = 64 if context.quick else case.probe
    subject = Subject(build(case.model, probe, case.image, context.fake))
    context.figures |= {
        "model": "dense" if context.fake else case.model,
        "image": case.image,
        "published": dict(case.published),
        "swapped": [],
    }
    probed = subject.train(blocks=1)
    budget_bytes = int(1.2 * probed.peak_bytes) if context.quick else BUDGET_BYTES
    context.figures["budget_bytes"] = budget_bytes
    context.figures["probe"] = {"batch": probe, "peak_bytes": probed.peak_bytes}
    search = _Search(case, subject, budget_bytes, context)
    search.largest_unswapped(probe, probed)
    context.save()
    search.largest_swapped(2 * probe if context.quick else next(iter(case.published.values())))
    search.show()


class _Search:
    def __init__(self, case: Case, subject: Subject, budget_bytes: int, context: Context) -> None:
        self._case, self._subject, self._context = case, subject, context
        self._budget_bytes = budget_bytes
        self._resident_bytes = 0
        self._bytes_an_example = 1.0
        self._unswapped: tuple[int, Trained] | None = None
        self._best: dict[str, Any] | None = None

    def largest_unswapped(self, probe: int, probed: Trained) -> None:
        """Predict it from one training: an example takes the same memory in every batch."""
        self._resident_bytes = probed.resident_bytes
        self._bytes_an_example = max(probed.peak_bytes - probed.resident_bytes, 1) / probe
        fitting = (self._budget_bytes - self._resident_bytes) / self._bytes_an_example
        for margin in _UNSWAPPED_MARGINS:
            batch = max(int(margin * fitting), 1)
            self._take(batch)
            trained = self._subject.train(budget_bytes=self._budget_bytes, blocks=2)
            if trained.error is None:
                self._unswapped = (batch, trained)
                self._context.figures["unswapped"] = _rates(batch, trained)
                self._context.line(
                    f"{self._name}: largest batch unswapped",
                    f"{batch}, {_rounded(_examples_per_s(batch, trained))} examples/s",
                    _published(self._case, "TensorFlow"),
                )
                return

    def largest_swapped(self, first: int) -> None:
        """Try batches while there is time for one more."""
        import tfswap

        tried: list[Tried] = []
        context, last_s = self._context, 0.0
        while (batch := next_batch(first, tried, self._budget_bytes)) is not None:
            longer = _LONGER * batch / tried[-1].batch if tried else 1.0
            if context.seconds_left() < max(longer * last_s, 5.0):
                context.note(f"no time for batch {batch}")
                break
            self._take(batch)
            swapped = self._subject.train(
                tfswap.AutoSwap(budget=self._budget_bytes, verbose=0),
                budget_bytes=self._budget_bytes,
                blocks=2,
                steps_a_block=1,
                least_steps=STEPS,
                seconds=context.seconds_left(),
            )
            last_s = swapped.seconds
            trained = swapped.error is None and swapped.steps >= STEPS
            values = {"batch": batch, "trained": trained, **figures_of([], swapped)}
            context.figures["swapped"].append(values)
            context.broken += broken(f"batch {batch}", values)
            context.save()
            if swapped.error is None and not trained:
                context.note(f"batch {batch}: {swapped.steps} steps, then its time was over")
                break
            tried.append(Tried(batch, trained, swapped.needed_bytes))
            if trained:
                self._best = values
                self._beside_unswapped(batch, swapped, values)
                context.save()

    def _beside_unswapped(self, batch: int, swapped: Trained, values: dict[str, Any]) -> None:
        """Time the same batch without a budget, if the GPU has the memory for it."""
        values["examples_per_s"] = _examples_per_s(batch, swapped)
        if self._unswapped is not None:
            values["batch_ratio"] = batch / self._unswapped[0]
        needed = self._resident_bytes + batch * self._bytes_an_example
        # Its graph is built again; nothing is pinned.
        if needed > 0.95 * gpu_bytes() or self._context.seconds_left() < swapped.seconds / 2:
            return
        alone = self._subject.train(blocks=2, seconds=self._context.seconds_left())
        if alone.error is None:
            values |= figures_of([alone], swapped)
            values["unswapped_peak_bytes"] = alone.peak_bytes

    def show(self) -> None:
        """Add the row of the table."""
        others = ", ".join(f"{who} {batch}" for who, batch in self._case.published.items())
        value = "none trained"
        if self._best is not None:
            value = f"{self._best['batch']}, {_rounded(self._best['examples_per_s'])} examples/s; "
            value += shown(self._best)
        self._context.line(f"{self._name}: largest batch swapped", value, others)

    @property
    def _name(self) -> str:
        gigabytes = self._budget_bytes / 1e9
        return f"{self._context.figures['model']} under {gigabytes:.3g} GB"

    def _take(self, batch: int) -> None:
        case, context = self._case, self._context
        self._subject.take(*batch_of(case.model, batch, case.image, context.fake))


def _rates(batch: int, trained: Trained) -> dict[str, Any]:
    return {
        "batch": batch,
        "step_s": trained.step_s,
        "examples_per_s": _examples_per_s(batch, trained),
        "peak_bytes": trained.peak_bytes,
    }


def _examples_per_s(batch: int, trained: Trained) -> float | None:
    return None if trained.step_s is None else batch / trained.step_s


def _rounded(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:.0f}"


def _published(case: Case, who: str) -> str:
    return f"{who} {case.published[who]}" if who in case.published else ""
