"""Choose which tensors a lossy codec may encode, and at which rate.

CSWAP+ (Chen et al., TPDS 2022, section IV) encodes dense tensors lossily where that pays, at one
rate for all of them that falls from epoch to epoch (``lossy_rate.py``). Here only activations that
nothing but the backward pass reads again are eligible, so the forward pass and the reported loss of
a step stay exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tfswap.machine import codecs
from tfswap.machine.far_tier import CodecSpeed
from tfswap.planning.planners.assignment import FarMemory, Ratios
from tfswap.planning.planners.hidden_times import hidden_times
from tfswap.planning.planners.lossy_rate import MAX_RATE, DenseSwap, rate_of_epoch, rate_range
from tfswap.planning.simulator import Swap
from tfswap.step.timeline import Absence, Timeline

# In percent: 3 bits per value including the sign, the minimum of block floating point.
_MIN_RATE = 11
# To sort codecs by speed.
_TYPICAL_BYTES, _TYPICAL_RATIO = 8 << 20, 0.5


@dataclass(frozen=True)
class LossyChoice:
    """What may be encoded lossily, and the progress of training.

    Attributes:
        absences: indices of absences in which a dense activation may be encoded lossily.
        epoch: counted from 0.
        epochs: total number.
    """

    absences: frozenset[int]
    epoch: int
    epochs: int


@dataclass(frozen=True)
class RateRange:
    """The worthwhile rates, in percent, top > bottom."""

    top: int
    bottom: int

    def of_epoch(self, epoch: int, epochs: int) -> int:
        """Return the rate of an epoch, in percent."""
        return rate_of_epoch(self.top, self.bottom, epoch, epochs)


def worthwhile_rates(
    timeline: Timeline, swaps: Iterable[Swap], far: FarMemory, choice: LossyChoice
) -> RateRange | None:
    """Return the worthwhile rates for the swapped tensors, over all lossy codecs.

    Args:
        timeline: one unswapped step.
        swaps: a planner's choice.
        far: the host's link, and codecs with their speeds.
        choice: what may be encoded lossily.

    Returns:
        The range; None if lossy encoding does not pay.
    """
    dense = []
    for absence in _eligible(timeline, swaps, choice):
        size_bytes = int(timeline.buffer_bytes[absence.buffer])
        dense.append(DenseSwap(size_bytes, *hidden_times(timeline, absence)))
    ranges = [rate_range(dense, far.host, codec) for codec in _lossy(far)]
    ranges = [(top, max(bottom, _MIN_RATE)) for top, bottom in ranges]
    ranges = [(top, bottom) for top, bottom in ranges if top > bottom]
    if not ranges:
        return None
    return RateRange(max(top for top, _ in ranges), min(bottom for _, bottom in ranges))


def with_lossy(
    ratios: Ratios,
    timeline: Timeline,
    swaps: Iterable[Swap],
    far: FarMemory,
    choice: LossyChoice,
    rates: RateRange,
) -> Ratios:
    """Return the ratios with those of lossy codecs at the epoch's rate, fast codecs first."""
    ratio = rates.of_epoch(choice.epoch, choice.epochs) / MAX_RATE
    lossy = {codec.name: ratio for codec in _lossy(far)}
    tensors = [absence.tensor for absence in _eligible(timeline, swaps, choice)]
    return {**ratios, **{tensor: {**ratios.get(tensor, {}), **lossy} for tensor in tensors}}


def _eligible(timeline: Timeline, swaps: Iterable[Swap], choice: LossyChoice) -> list[Absence]:
    """Return the first absence of each tensor whose swapped absences may all be encoded lossily."""
    first: dict[str, Absence] = {}
    others: set[str] = set()
    for swap in sorted(swaps):
        absence = timeline.absences[swap.absence]
        first.setdefault(absence.tensor, absence)
        if swap.absence not in choice.absences:
            others.add(absence.tensor)
    return [absence for tensor, absence in first.items() if tensor not in others]


def _lossy(far: FarMemory) -> list[CodecSpeed]:
    def typical_ns(codec: CodecSpeed) -> int:
        times = (codec.encode, codec.decode)
        return sum(time.ns(_TYPICAL_BYTES, _TYPICAL_RATIO) for time in times)

    return sorted((codec for codec in far.codecs if codec.name in codecs.LOSSY), key=typical_ns)
