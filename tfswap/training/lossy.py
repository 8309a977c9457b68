"""LossyRun: the rate of lossy codecs during one `fit`, and the errors that they cause."""

from __future__ import annotations

from tfswap.devices.sampling import RatioSamples
from tfswap.machine import codecs
from tfswap.ops.loaded_library import Library
from tfswap.plan.node_names import swap_out_name
from tfswap.plan.schema import SwapPlan, TensorSwap
from tfswap.planning.planners.lossy_choice import LossyChoice, RateRange
from tfswap.planning.planners.lossy_rate import MAX_RATE
from tfswap.report.summary import LossyUse, TensorLoss
from tfswap.step.profile import Profile


def lossy_swaps(plan: SwapPlan) -> list[TensorSwap]:
    """Return the swaps of a plan that a lossy codec encodes."""
    return [s for f in plan.functions for s in f.swaps if s.codec in codecs.LOSSY]


def check_plan(plan: SwapPlan, lossy: bool) -> None:
    """Raise ValueError for a plan with lossy codecs where `lossy` is False."""
    found = lossy_swaps(plan)
    if found and not lossy:
        raise ValueError(
            f"the plan that was given keeps {len(found)} tensors by a lossy codec "
            f"({found[0].tensor!r} by {found[0].codec!r}), so losses would differ from exact "
            "training: pass lossy=True if that is wanted, or make the plan again"
        )


class LossyRun:
    """The rate of lossy codecs, which falls from the first epoch to the last (CSWAP+).

    Rates are computed when a plan is made. A given plan keeps its own.

    Args:
        lib: The library.
        ratios: Sampled ratios, which show which tensors are dense.
        epochs: The `epochs` of `fit`; None if unknown; the rate then stays at its maximum.
    """

    def __init__(self, lib: Library, ratios: RatioSamples, epochs: int | None) -> None:
        self._library = lib
        self._ratios = ratios
        self._last_epoch = epochs
        self._first: int | None = None
        self._epoch = 0
        self._swaps: tuple[TensorSwap, ...] = ()
        self._percent: int | None = None  # the rate that the library uses
        self._losses: dict[str, TensorLoss] = {}
        self._has_candidates = False
        self.rates: RateRange | None = None

    def epoch_begins(self, epoch: int) -> bool:
        """Set the rate of an epoch, counted as `fit` does; return whether the rate changed."""
        before = self._rate()
        if self._first is None:
            self._first = epoch
        self._epoch = epoch - self._first
        self._set_rate()
        return self._rate() != before

    def choice(self, profile: Profile) -> LossyChoice:
        """Return which tensors may be encoded lossily in this epoch."""
        absences = profile.timeline.absences
        dense = (a for a in profile.activations if self._ratios.is_dense(absences[a].tensor))
        found = LossyChoice(frozenset(dense), *self._progress())
        self._has_candidates = bool(found.absences)
        return found

    def adopt(self, plan: SwapPlan) -> None:
        """Allow the lossy swaps of a plan that is about to be installed."""
        self._read_losses()
        self._swaps = tuple(lossy_swaps(plan))
        self._set_rate()

    def end(self) -> None:
        """Disallow lossy codecs. Further calls have no effect."""
        self._read_losses()
        self._library.set_lossy_rate(None)
        self._percent = None
        self._swaps = ()

    def use(self) -> LossyUse | None:
        """Return what is encoded lossily, and the errors; None if nothing has been."""
        self._read_losses()
        if not self._swaps and not self._losses:
            return None
        rate = max((min(s.rate_percent, self._rate()) for s in self._swaps), default=self._rate())
        rates = self.rates or RateRange(rate, rate)
        losses = tuple(self._losses[tensor] for tensor in sorted(self._losses))
        return LossyUse(len(self._swaps), rate, rates.top, rates.bottom, losses)

    def why_unused(self) -> str:
        """Return why nothing is encoded lossily; "" if something is."""
        if self._swaps:
            return ""
        if not self._has_candidates:
            return "there is no dense float32 activation that only gradients read again"
        if self.rates is None:
            return "at no rate, and for no such activation that leaves, a codec saves time"
        return "it would make no step shorter"

    def _progress(self) -> tuple[int, int]:
        """Return the number of this epoch, from 0, and the number of epochs."""
        if self._last_epoch is None:
            return 0, 1
        return self._epoch, max(self._last_epoch - (self._first or 0), self._epoch + 1)

    def _rate(self) -> int:
        return MAX_RATE if self.rates is None else self.rates.of_epoch(*self._progress())

    def _set_rate(self) -> None:
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
