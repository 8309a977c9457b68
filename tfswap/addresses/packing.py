"""Which addresses buffers get whose lifetimes are known (dynamic storage allocation).

The packers are the core's (``tfswap/cc/packing``); this is their face in Python.
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
"""What the exact solver prunes by; each may be switched off."""

FIXED_NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Buffers:
    """n buffers to be packed.

    Attributes:
        size: int64[n], in bytes.
        lower, upper: int64[n]; live in [lower, upper) on any clock.
        alignment: int64[n]; offsets are multiples. Defaults to 1.
        fixed: int64[n]; where it must be, -1 for anywhere. Defaults to anywhere.
        gaps: int64[m, 3]; rows (buffer, lower, upper): then its addresses are anybody's. Those of
            one buffer are in order and do not touch.

    Raises:
        ValueError: A buffer makes no sense; the text names it.
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
        """The problem as the core holds it."""
        n = len(self.size)
        ones, nowhere = np.ones(n, np.int64), np.full(n, FIXED_NOWHERE, np.int64)
        return _core.PackingProblem(
            size=self.size,
            lower=self.lower,
            upper=self.upper,
            alignment=ones if self.alignment is None else self.alignment,
            fixed=nowhere if self.fixed is None else self.fixed,
            gaps=np.empty((0, 3), np.int64) if self.gaps is None else self.gaps,
        )

    @cached_property
    def max_live(self) -> int:
        """The largest load, in bytes: no packing is lower."""
        return int(self.core.max_live())


@dataclass(frozen=True, eq=False)
class Packing:
    """Where n buffers are.

    Attributes:
        offsets: int64[n], in bytes from the slab's begin.
        height: The end of the highest, in bytes.
        lower_bound: No packing of these buffers is lower, in bytes.
    """

    offsets: Ints
    height: int
    lower_bound: int

    @property
    def is_lowest(self) -> bool:
        """Whether no packing is lower, as far as is proved."""
        return self.height <= self.lower_bound


@dataclass(frozen=True)
class Solution:
    """What the exact solver came to.

    Attributes:
        outcome: "solved", "impossible" or "out of time".
        packing: If solved.
        nodes: Search nodes looked at.
    """

    outcome: str
    packing: Packing | None
    nodes: int


def pack(
    buffers: Buffers, *, seconds: float = 1.0, capacities: Sequence[int] = (), seed: int = 1
) -> Packing:
    """The lowest packing that all packers together find.

    Args:
        buffers: What is packed.
        seconds: How long to search; it ends early at a packing that cannot be lower.
        capacities: Heights that are good enough, ascending; none: only the lowest is.
        seed: Of the searches.
    """
    offsets, lower_bound, _ = buffers.core.pack(seconds, sorted(capacities), seed)
    return _packing(buffers, offsets, int(lower_bound))


def first_fit(buffers: Buffers) -> Packing:
    """Large buffers first, each into the lowest hole (SmartPool, arXiv 1903.06631, section IV)."""
    return _packing(buffers, buffers.core.place_by_size(best_fit=False), buffers.max_live)


def best_fit(buffers: Buffers) -> Packing:
    """Large buffers first, each into the smallest hole (SmartPool's default).

    Its authors' code looks at one hole only where there is one range of addresses taken; this looks
    at all.
    """
    return _packing(buffers, buffers.core.place_by_size(best_fit=True), buffers.max_live)


def improve(buffers: Buffers, *, seconds: float = 1.0, enough: int = 0, seed: int = 1) -> Packing:
    """Local search over the order in which buffers are placed.

    Args:
        buffers: What is packed.
        seconds: How long.
        enough: Stop at a packing of at most this height, in bytes.
        seed: Of the search.
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
    """Packs into a height, or proves that it cannot be done.

    Args:
        buffers: What is packed.
        capacity: The height, in bytes.
        seconds: When to give up.
        without: Rules (of `RULES`) that are switched off; the answer is the same.
        seed: Of the order among equals.

    Source: branch and bound after MiniMalloc (Moffitt, ASPLOS 2023), with rules of our own.

    Raises:
        ValueError: No such rule.
    """
    outcome, offsets, nodes = buffers.core.solve(capacity, seconds, list(without), seed)
    packing = _packing(buffers, offsets, buffers.max_live) if outcome == "solved" else None
    return Solution(outcome, packing, int(nodes))


def find_fault(buffers: Buffers, packing: Packing) -> str:
    """The first fault of a packing in words; empty if there is none. Simple, and quadratic."""
    return str(buffers.core.find_fault(packing.offsets, packing.height))


def _packing(buffers: Buffers, offsets: Ints, lower_bound: int) -> Packing:
    height = int((offsets + buffers.size).max(initial=0))
    return Packing(offsets, height, lower_bound)
