"""A search for the launch of a kernel (how many blocks, of how many threads) in few measurements.

CSWAP (Chen et al., CLUSTER 2021) finds the launch of its codecs by Bayesian optimisation with 10
random and 25 guided samples: a grid of 197 blocks took 44 ms where 10 took 146 and 1,024 took 150.
Here as there, a Gaussian process says what is expected of the launches that were not measured, and
the next one is the one whose improvement over the best is expected to be the largest. The paper
does not say which process, nor over what; here it is over logarithms of the launch and of the time,
since both matter by their ratios, with Matern's kernel of 5/2 and the length and the noise that
make what was measured likeliest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RANDOM, GUIDED = 10, 25
"""CSWAP's s1 and s2."""

Point = tuple[int, ...]

_Array = NDArray[np.float64]
_LENGTHS = (0.1, 0.2, 0.4, 0.8)  # of a grid whose sides are 1 long
_NOISES = (1e-4, 1e-2, 1e-1)  # variance, of the measured logarithms'


@dataclass(frozen=True)
class Found:
    """What a search has measured.

    Attributes:
        best: The fastest.
        seconds: Of each that was measured, in the order in which they were.
    """

    best: Point
    seconds: dict[Point, float]

    def smallest(self, within: float) -> Point:
        """That with the least product of its numbers, of those near the best: in `within` of it."""
        limit = within * self.seconds[self.best]
        good = [point for point, seconds in self.seconds.items() if seconds <= limit]
        return min(good, key=lambda point: (math.prod(point), self.seconds[point]))


def search(
    grid: Sequence[Point],
    measure: Callable[[Point], float],
    *,
    first: int = RANDOM,
    guided: int = GUIDED,
    seed: int = 0,
    deadline_s: float | None = None,
) -> Found:
    """Looks for the point of a grid that takes least time. Same seed and times, same search.

    Args:
        grid: Points of positive numbers.
        measure: Answers how many seconds a point takes; called at most once for each.
        first: How many are chosen by chance.
        guided: How many by what is known then.
        seed: Of the chance.
        deadline_s: When to stop, on `time.monotonic`'s clock; one point is measured in any case.

    Raises:
        ValueError: The grid is empty.
    """
    if not grid:
        raise ValueError("a launch is to be found on an empty grid")
    places = _unit_cube(grid)
    order = np.random.default_rng(seed).permutation(len(grid))
    seconds: dict[int, float] = {}
    while len(seconds) < min(first + guided, len(grid)):
        if seconds and deadline_s is not None and time.monotonic() > deadline_s:
            break
        if len(seconds) < first:
            chosen = int(order[len(seconds)])
        else:
            chosen = _most_promising(places, seconds)
        seconds[chosen] = measure(grid[chosen])
    best = min(seconds, key=lambda i: seconds[i])
    return Found(grid[best], {grid[i]: each for i, each in seconds.items()})


def _unit_cube(grid: Sequence[Point]) -> _Array:
    """Logarithms, each from 0 to 1."""
    places = np.log(np.asarray(grid, dtype=np.float64))
    low, high = places.min(axis=0), places.max(axis=0)
    scaled: _Array = (places - low) / np.where(high > low, high - low, 1.0)
    return scaled


def _most_promising(places: _Array, seconds: dict[int, float]) -> int:
    measured = np.fromiter(seconds, dtype=np.int64)
    left = np.setdiff1d(np.arange(len(places)), measured)
    logs = np.log(np.fromiter(seconds.values(), dtype=np.float64))
    scale = float(logs.std()) or 1.0
    values = (logs - logs.mean()) / scale
    mean, deviation = _expected(places[measured], values, places[left])
    return int(left[np.argmax(_improvement(values.min() - mean, deviation))])


def _expected(known: _Array, values: _Array, asked: _Array) -> tuple[_Array, _Array]:
    """The likeliest Gaussian process's means and standard deviations."""
    best = (-np.inf, np.zeros(0), np.zeros(0))
    for length in _LENGTHS:
        between, to_asked = _matern(known, known, length), _matern(asked, known, length)
        for noise in _NOISES:
            factor = np.linalg.cholesky(between + noise * np.eye(len(known)))
            solved = np.linalg.solve(factor, values)
            likelihood = -0.5 * float(solved @ solved) - float(np.log(np.diag(factor)).sum())
            if likelihood <= best[0]:
                continue
            half = np.linalg.solve(factor, to_asked.T)
            variance = np.maximum(1.0 - (half**2).sum(axis=0), 1e-12)
            best = (likelihood, half.T @ solved, np.sqrt(variance))
    return best[1], best[2]


def _matern(a: _Array, b: _Array, length: float) -> _Array:
    distance = np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2))
    r = math.sqrt(5) / length * distance
    kernel: _Array = (1 + r + r**2 / 3) * np.exp(-r)
    return kernel


def _improvement(gain: _Array, deviation: _Array) -> _Array:
    """Expected, of normal variables that are better by `gain` on average."""
    z = gain / deviation
    cdf = 0.5 * (1 + np.array([math.erf(each / math.sqrt(2)) for each in z]))
    pdf = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    improvement: _Array = gain * cdf + deviation * pdf
    return improvement
