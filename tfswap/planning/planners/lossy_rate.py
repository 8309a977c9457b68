"""Rates of lossy far copies: the range of CSWAP+, and how the rate falls over the epochs.

A fixed-rate codec (ZFP in CSWAP+) keeps P percent of a dense tensor. Smaller rates need less link
time and cost accuracy. CSWAP+ (Chen et al., TPDS 2022, algorithm 1) finds the worthwhile rates::

    rate   100 ──────────── top ───────────────── bottom ──────────── 1
            encoding pays    │  each step down      │  every transfer
            for no tensor    │  shortens some swap  │  is already hidden

Training begins at the top, where little accuracy is lost, and ends at the bottom.

Departures from the printed algorithm:

* The paper takes the end of its bisection as the result, although the condition may not hold there.
  Here a rate counts only if it holds.
* The paper's bottom is the minimum over all tensors, so tensors for which no rate pays (small or
  already hidden) lower it although they are never encoded. Here they are ignored.
* The paper assumes that a codec takes longer the more bytes it keeps, which a fitted regression
  need not satisfy. Here a codec whose regression says otherwise is charged its time at rate 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tfswap.machine.far_tier import CodecSpeed
from tfswap.machine.link import Link

MIN_RATE, MAX_RATE = 1, 100
"""In percent of a tensor's bytes."""


@dataclass(frozen=True)
class DenseSwap:
    """A tensor that is swapped out and in once per step.

    Attributes:
        size_bytes: of the tensor.
        hidden_out_ns: how long its copy-out may take before an op waits (CSWAP's Hidden_f).
        hidden_in_ns: the same for its copy-in (Hidden_b).
    """

    size_bytes: int
    hidden_out_ns: int
    hidden_in_ns: int

    def exposed_ns(self, link: Link, rate: int) -> float:
        """Return the time of both transfers that no op hides, at `rate` percent of the bytes."""
        kept_bytes = self.size_bytes * rate / MAX_RATE
        out_ns = kept_bytes * 1e9 / link.out_bytes_per_s - self.hidden_out_ns
        in_ns = kept_bytes * 1e9 / link.in_bytes_per_s - self.hidden_in_ns
        return max(out_ns, 0.0) + max(in_ns, 0.0)


def pays(swap: DenseSwap, link: Link, codec: CodecSpeed, rate: int) -> bool:
    """Return whether encoding saves at least the codec's full time, counted as in CSWAP."""
    benefit_ns = swap.exposed_ns(link, MAX_RATE) - swap.exposed_ns(link, rate)
    return benefit_ns >= max(
        codec.encode.ns(swap.size_bytes, kept / MAX_RATE)
        + codec.decode.ns(swap.size_bytes, kept / MAX_RATE)
        for kept in (MIN_RATE, rate)
    )


def hides(swap: DenseSwap, link: Link, rate: int) -> bool:
    """Return whether no op waits for the transfers."""
    return swap.exposed_ns(link, rate) == 0


def rate_range(swaps: Iterable[DenseSwap], link: Link, codec: CodecSpeed) -> tuple[int, int]:
    """Return the rates between which lossy encoding pays.

    Args:
        swaps: all swaps that could be encoded.
        link: speeds for the encoded bytes; latencies do not depend on the rate.
        codec: the time of a fixed-rate codec.

    Returns:
        Top: the largest rate in percent that pays for any swap. Bottom: the largest rate at which
            every
        swap that some rate pays for is hidden (1 if even the lowest rate does not hide one). Lossy
        encoding does not pay where the top is not above the bottom; (1, 100) if no rate pays for
        any swap.
    """
    top, bottom = MIN_RATE, MAX_RATE
    for swap in swaps:
        paying = _largest_rate(partial(pays, swap, link, codec))
        if paying is None:
            continue
        hiding = _largest_rate(partial(hides, swap, link))
        top = max(top, paying)
        bottom = min(bottom, MIN_RATE if hiding is None else hiding)
    return top, bottom


def rate_of_epoch(top: int, bottom: int, epoch: int, epochs: int) -> int:
    """Return the rate of an epoch, which falls from top to bottom in equal whole steps.

    CSWAP+ rounds the step, so the bottom may be reached before the last epoch (from 100 to 20 in 90
    epochs: by 1, reached in the 81st), or never if the range is narrow.

    Args:
        top: rate of the first epoch, in percent.
        bottom: lowest rate, in percent.
        epoch: counted from 0.
        epochs: total number.

    Raises:
        ValueError: The range or the epoch is invalid.
    """
    if not MIN_RATE <= bottom <= top <= MAX_RATE:
        raise ValueError(
            f"rates must satisfy {MIN_RATE} <= bottom <= top <= {MAX_RATE}; got top {top} and "
            f"bottom {bottom}"
        )
    if not 0 <= epoch < epochs:
        raise ValueError(f"epoch must be at least 0 and less than {epochs}; got {epoch}")
    step = math.floor((top - bottom) / epochs + 0.5)
    return max(top - epoch * step, bottom)


def _largest_rate(holds: Callable[[int], bool]) -> int | None:
    """Return the largest rate that holds, by bisection: all rates below one that holds do too."""
    if not holds(MIN_RATE):
        return None
    held, failed = MIN_RATE, MAX_RATE + 1
    while failed - held > 1:
        rate = (held + failed) // 2
        if holds(rate):
            held = rate
        else:
            failed = rate
    return held
