"""Assign addresses to buffers with known lifetimes (dynamic storage allocation).

The packers are in the native core (``tfswap/cc/packing``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfswap import _core

Ints = NDArray[np.int64]

RULES = ("moments", "not_first", "dominance", "support", "decomposition", "memory")
"""Pruning rules of the exact solver; each can be disabled."""

ANY_OFFSET = -1
"""The fixed offset of a buffer without one."""


@dataclass(frozen=True, eq=False)
class Buffers:
    """n buffers to pack.

    Attributes:
        size: int64[n], in bytes.
        lower, upper: int64[n]; the buffer is live in [lower, upper), on any clock.
        alignment: int64[n]; offsets are multiples of it. Defaults to 1.
        fixed: int64[n]; the required offset, `ANY_OFFSET` for none. Defaults to `ANY_OFFSET`.
        gaps: int64[m, 3]; rows (buffer, lower, upper): times in which other buffers may use the
            buffer's addresses. The gaps of one buffer are in order and do not touch.

    Raises:
        ValueError: A buffer is invalid; the message names it.
    """

    size: Ints
    lower: Ints
    upper: Ints
    alignment: Ints | None = None
    fixed: Ints | None = None
    gaps: Ints | None = None

    def __post_init__(self) -> None:
        _ = self.core

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def core(self) -> Any:
        """The problem in the native core."""
        n = len(self.size)
        ones, any_offset = np.ones(n, np.int64), np.full(n, ANY_OFFSET, np.int64)
        return _core.PackingProblem(
            size=self.size,
            lower=self.lower,
            upper=self.upper,
            alignment=ones if self.alignment is None else self.alignment,
            fixed=any_offset if self.fixed is None else self.fixed,
            gaps=np.empty((0, 3), np.int64) if self.gaps is None else self.gaps,
        )

    @cached_property
    def max_live(self) -> int:
        """The peak load in bytes, a lower bound on the height of every packing."""
        return int(self.core.max_live())


@dataclass(frozen=True, eq=False)
class Packing:
    """The addresses of n buffers.

    Attributes:
        offsets: int64[n], in bytes from the slab's begin.
        height: The end of the highest buffer, in bytes.
        lower_bound: A lower bound on the height of every packing, in bytes.
    """

    offsets: Ints
    height: int
    lower_bound: int

    @property
    def is_lowest(self) -> bool:
        """Whether the lower bound proves that no packing is lower."""
        return self.height <= self.lower_bound


@dataclass(frozen=True)
class Solution:
    """The result of the exact solver.

    Attributes:
        outcome: "solved", "impossible" or "out of time".
        packing: The packing, if solved.
        nodes: Number of search nodes visited.
    """

    outcome: str
    packing: Packing | None
    nodes: int


def pack(
    buffers: Buffers, *, seconds: float = 1.0, capacities: Sequence[int] = (), seed: int = 1
) -> Packing:
    """Return the lowest packing that all packers find together.

    Args:
        buffers: The buffers to pack.
        seconds: Time limit; the search ends early when the packing is proved to be the lowest.
        capacities: Heights that are good enough. Default: only the lowest packing is.
        seed: Seed of the searches.
    """
    offsets, lower_bound, _ = buffers.core.pack(seconds, sorted(capacities), seed)
    return _packing(buffers, offsets, int(lower_bound))


def first_fit(buffers: Buffers) -> Packing:
    """Place large buffers first, each in the lowest hole (SmartPool, arXiv 1903.06631, sec. IV)."""
    return _packing(buffers, buffers.core.place_by_size(best_fit=False), buffers.max_live)


def best_fit(buffers: Buffers) -> Packing:
    """Place large buffers first, each in the smallest hole (SmartPool's default).

    Unlike the authors' code, which considers only one hole if a single range of addresses is taken,
    this considers all holes.
    """
    return _packing(buffers, buffers.core.place_by_size(best_fit=True), buffers.max_live)


def improve(buffers: Buffers, *, seconds: float = 1.0, enough: int = 0, seed: int = 1) -> Packing:
    """Run a local search over the order in which buffers are placed.

    Args:
        buffers: The buffers to pack.
        seconds: Time limit.
        enough: Stop at a packing of at most this height, in bytes.
        seed: Seed of the search.
    """
    return _packing(buffers, buffers.core.improve(seconds, enough, seed), buffers.max_live)


def solve(
    buffers: Buffers,
    capacity: int,
    *,
    seconds: float = 10.0,
    without: Iterable[str] = (),
    seed: int = 1,
) -> Solution:
    """Pack buffers within a height, or prove that it is impossible.

    Args:
        buffers: The buffers to pack.
        capacity: The height, in bytes.
        seconds: Time limit.
        without: Rules of `RULES` to disable, which does not change the outcome.
        seed: Seed of the order among equal choices.

    Source: branch and bound after MiniMalloc (Moffitt, ASPLOS 2023), with additional rules.

    Raises:
        ValueError: A rule is unknown.
    """
    outcome, offsets, nodes = buffers.core.solve(capacity, seconds, list(without), seed)
    packing = _packing(buffers, offsets, buffers.max_live) if outcome == "solved" else None
    return Solution(outcome, packing, int(nodes))


def find_fault(buffers: Buffers, packing: Packing) -> str:
    """Return a description of a packing's first fault, or "". Deliberately simple and quadratic."""
    return str(buffers.core.find_fault(packing.offsets, packing.height))


def _packing(buffers: Buffers, offsets: Ints, lower_bound: int) -> Packing:
    height = int((offsets + buffers.size).max(initial=0))
    return Packing(offsets, height, lower_bound)
