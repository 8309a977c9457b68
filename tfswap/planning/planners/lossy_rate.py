"""The rates of lossy far copies: CSWAP+'s range, and how it slides down over the epochs.

A fixed-rate codec (CSWAP+'s is ZFP) keeps P percent of a dense tensor, so smaller rates cross the
link sooner and cost accuracy. CSWAP+ (Chen et al., TPDS 2022, algorithm 1) looks for the rates
worth having::

    rate   100 ──────────── top ───────────────── bottom ──────────── 1
            encoding pays    │  each step down      │  every transfer
            for no tensor    │  shortens some swap  │  is hidden already

and begins training at the top, where little is lost, to end at the bottom.

Three things are not as printed there. Where its bisection ends is taken for an answer although that
rate may not hold: here a rate counts if it holds. Its bottom is the minimum over all tensors, so
that one for which no rate pays (small, or hidden as it is) pulls it down, though it is never
encoded: here it has no say. And it assumes that a codec takes longer the more it keeps, which a
regression need not say: here one that is said to be faster is charged what it takes at rate 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tfswap.machine.far_tier import CodecSpeed
from tfswap.machine.link import Link

LEAST_RATE, MOST_RATE = 1, 100
"""In percent of a tensor's bytes."""


@dataclass(frozen=True)
class DenseSwap:
    """A tensor that leaves and returns once a step.

    Attributes:
        size_bytes: of the tensor.
        hidden_out_ns: how long its copy-out may take before an op waits (CSWAP's Hidden_f).
        hidden_in_ns: the same of its copy-in (Hidden_b).
    """

    size_bytes: int
    hidden_out_ns: int
    hidden_in_ns: int

    def exposed_ns(self, link: Link, rate: int) -> float:
        """What of both transfers no op hides, with `rate` percent of the bytes kept."""
        kept_bytes = self.size_bytes * rate / MOST_RATE
        out_ns = kept_bytes * 1e9 / link.out_bytes_per_s - self.hidden_out_ns
        in_ns = kept_bytes * 1e9 / link.in_bytes_per_s - self.hidden_in_ns
        return max(out_ns, 0.0) + max(in_ns, 0.0)


def pays(swap: DenseSwap, link: Link, codec: CodecSpeed, rate: int) -> bool:
    """Whether the transfer gets shorter by no less than the codec takes, in full as in CSWAP."""
    benefit_ns = swap.exposed_ns(link, MOST_RATE) - swap.exposed_ns(link, rate)
    return benefit_ns >= max(
        codec.encode.ns(swap.size_bytes, kept / MOST_RATE)
        + codec.decode.ns(swap.size_bytes, kept / MOST_RATE)
        for kept in (LEAST_RATE, rate)
    )


def hides(swap: DenseSwap, link: Link, rate: int) -> bool:
    """Whether no op waits for the transfers."""
    return swap.exposed_ns(link, rate) == 0


def rate_range(swaps: Iterable[DenseSwap], link: Link, codec: CodecSpeed) -> tuple[int, int]:
    """The rates between which lossy encoding is worth it.

    Args:
        swaps: all that could be encoded.
        link: speeds, of what the encoded bytes cross; its latencies stay whatever the rate.
        codec: the time of a fixed-rate codec.

    Returns:
        Top, the largest rate in percent that pays for any of the swaps, and bottom, at which all of
        those that some rate pays for are hidden (1, if the least rate does not hide one). Where the
        top is not above the bottom, lossy encoding has nothing to give; (1, 100) where no rate pays
        for any.
    """
    top, bottom = LEAST_RATE, MOST_RATE
    for swap in swaps:
        paying = _largest_rate(partial(pays, swap, link, codec))
        if paying is None:
            continue
        hiding = _largest_rate(partial(hides, swap, link))
        top = max(top, paying)
        bottom = min(bottom, LEAST_RATE if hiding is None else hiding)
    return top, bottom


def rate_of_epoch(top: int, bottom: int, epoch: int, epochs: int) -> int:
    """The rate of an epoch: from the top, by equal whole steps, to the bottom and not below.

    CSWAP+'s step is rounded, so the bottom may be reached before the last epoch (from 100 to 20 in
    90 epochs: by 1, there in the 81st), or not at all where the range is narrow.

    Args:
        top: rate of the first epoch, in percent.
        bottom: least rate, in percent.
        epoch: which, counted from 0.
        epochs: how many there are.

    Raises:
        ValueError: There is no such range or epoch.
    """
    if not LEAST_RATE <= bottom <= top <= MOST_RATE:
        raise ValueError(
            f"rates must fall from the top, at most {MOST_RATE}, to the bottom, at least "
            f"{LEAST_RATE}, not from {top} to {bottom}"
        )
    if not 0 <= epoch < epochs:
        raise ValueError(f"epoch is {epoch}; {epochs} epochs are numbered from 0 on")
    step = math.floor((top - bottom) / epochs + 0.5)
    return max(top - epoch * step, bottom)


def _largest_rate(holds: Callable[[int], bool]) -> int | None:
    """The largest rate of those that hold, found by halving: all below one that holds do too."""
    if not holds(LEAST_RATE):
        return None
    held, failed = LEAST_RATE, MOST_RATE + 1
    while failed - held > 1:
        rate = (held + failed) // 2
        if holds(rate):
            held = rate
        else:
            failed = rate
    return held
