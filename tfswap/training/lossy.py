"""Lossy encoding in the course of one `fit`: which rate is in force, and what it costs."""

from __future__ import annotations

from tfswap.machine import codecs
from tfswap.ops.loaded_library import Library
from tfswap.plan.schema import SwapPlan, TensorSwap, swap_out_name
from tfswap.planning.planners.lossy_choice import LossyChoice, RateRange
from tfswap.planning.planners.lossy_rate import MOST_RATE
from tfswap.report.summary import LossyUse, TensorLoss
from tfswap.step.profile import Profile
from tfswap.training.sampling import RatioSamples


def lossy_swaps(plan: SwapPlan) -> list[TensorSwap]:
    """What a plan has a lossy codec keep."""
    return [s for f in plan.functions for s in f.swaps if s.codec in codecs.LOSSY]


def check_plan(plan: SwapPlan, lossy: bool) -> None:
    """Refuse a plan that changes numbers without leave.

    Raises:
        ValueError: It keeps a tensor by a lossy codec, and `lossy` is False.
    """
    found = lossy_swaps(plan)
    if found and not lossy:
        raise ValueError(
            f"the plan that was given keeps {len(found)} tensors by a lossy codec "
            f"({found[0].tensor!r} by {found[0].codec!r}), so losses would differ from exact "
            "training: pass lossy=True if that is wanted, or make the plan again"
        )


class LossyRun:
    """The rate of lossy codecs, from the top in the first epoch to the bottom in the last.

    Rates are worked out when a plan is made. A plan that was given keeps its own.

    Args:
        lib: The library.
        ratios: Samples that say which tensors are dense.
        epochs: Where `fit` counts to, from its first epoch; None: not known, so that the rate stays
            at the top.
    """

    def __init__(self, lib: Library, ratios: RatioSamples, epochs: int | None) -> None:
        self._library = lib
        self._ratios = ratios
        self._last_epoch = epochs
        self._first: int | None = None
        self._epoch = 0
        self._swaps: tuple[TensorSwap, ...] = ()
        self._percent: int | None = None  # in force
        self._losses: dict[str, TensorLoss] = {}
        self._has_candidates = False
        self.rates: RateRange | None = None

    def epoch_begins(self, epoch: int) -> bool:
        """Slides the rate; epochs are counted as `fit` does, maybe not from 0.

        Returns:
            Whether it is another one now.
        """
        before = self._rate()
        if self._first is None:
            self._first = epoch
        self._epoch = epoch - self._first
        self._put_in_force()
        return self._rate() != before

    def choice(self, profile: Profile) -> LossyChoice:
        """What may be kept lossily in this epoch."""
        absences = profile.timeline.absences
        dense = (a for a in profile.activations if self._ratios.is_dense(absences[a].tensor))
        found = LossyChoice(frozenset(dense), *self._progress())
        self._has_candidates = bool(found.absences)
        return found

    def adopt(self, plan: SwapPlan) -> None:
        """A plan comes into force: gives leave for what it keeps lossily, if it does."""
        self._read_losses()
        self._swaps = tuple(lossy_swaps(plan))
        self._put_in_force()

    def end(self) -> None:
        """Takes the leave back; harmless when called again."""
        self._read_losses()
        self._library.set_lossy_rate(None)
        self._percent = None
        self._swaps = ()

    def use(self) -> LossyUse | None:
        """What is kept lossily, and how far it was off; None: nothing is, or was."""
        self._read_losses()
        if not self._swaps and not self._losses:
            return None
        rate = max((min(s.rate_percent, self._rate()) for s in self._swaps), default=self._rate())
        rates = self.rates or RateRange(rate, rate)
        losses = tuple(self._losses[tensor] for tensor in sorted(self._losses))
        return LossyUse(len(self._swaps), rate, rates.top, rates.bottom, losses)

    def hindrance(self) -> str:
        """Why nothing is kept lossily; "" if something is."""
        if self._swaps:
            return ""
        if not self._has_candidates:
            return "there is no dense float32 activation that only gradients read again"
        if self.rates is None:
            return "at no rate, and for no such activation that leaves, a codec saves time"
        return "it would make no step shorter"

    def _progress(self) -> tuple[int, int]:
        """Which epoch it is, from 0 on, and how many there are."""
        if self._last_epoch is None:
            return 0, 1
        return self._epoch, max(self._last_epoch - (self._first or 0), self._epoch + 1)

    def _rate(self) -> int:
        return MOST_RATE if self.rates is None else self.rates.of_epoch(*self._progress())

    def _put_in_force(self) -> None:
        percent = self._rate() if self._swaps else None
        if percent != self._percent:
            self._read_losses()
            self._library.set_lossy_rate(percent)
            self._percent = percent

    def _read_losses(self) -> None:
        if self._percent is None:
            return
        tensors = {swap_out_name(swap.tensor): swap.tensor for swap in self._swaps}
        for loss in self._library.losses():
            tensor = tensors.get(loss.label)
            if tensor is None:
                continue
            before = self._losses.get(tensor, TensorLoss(tensor, 0.0, 0.0))
            self._losses[tensor] = TensorLoss(
                tensor,
                max(before.relative_error, loss.relative_error),
                max(before.largest_error, loss.largest_error),
            )
