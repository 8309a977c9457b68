"""Bayesian optimisation of a kernel's launch (number of blocks, threads per block).

CSWAP (Chen et al., CLUSTER 2021) finds the launch of its codecs by Bayesian optimisation with 10
random and 25 guided samples: a grid of 197 blocks took 44 ms where 10 took 146 and 1,024 took 150.
As in the paper, a Gaussian process predicts the launches that were not measured, and the search
measures the one with the largest expected improvement next. The paper specifies neither the kernel
nor the inputs of the process. Here the inputs are the logarithms of the launch and of the time,
since ratios matter for both; the kernel is Matern 5/2, with the length scale and the noise of the
highest likelihood.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RANDOM, GUIDED = 10, 25
"""Numbers of random and guided samples: s1 and s2 in CSWAP."""

Point = tuple[int, ...]

_Array = NDArray[np.float64]
_LENGTH_SCALES = (0.1, 0.2, 0.4, 0.8)  # in the unit cube
_NOISES = (1e-4, 1e-2, 1e-1)  # relative to the variance of the measured logarithms


@dataclass(frozen=True)
class SearchResult:
    """The measurements of a search.

    Attributes:
        best: The fastest point.
        seconds: The time of each measured point, in the order of measurement.
    """

    best: Point
    seconds: dict[Point, float]

    def smallest(self, within: float) -> Point:
        """Return the point of the smallest product among those within a factor of the best."""
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
) -> SearchResult:
    """Search a grid for the fastest point. The search is deterministic for a seed and given times.

    Args:
        grid: Points of positive numbers.
        measure: Returns the seconds that a point takes; called at most once for each point.
        first: Number of random samples.
        guided: Number of guided samples.
        seed: Seed of the random samples.
        deadline_s: When to stop, on `time.monotonic`'s clock; at least one point is measured.

    Raises:
        ValueError: The grid is empty.
    """
    if not grid:
        raise ValueError("cannot search an empty grid")
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
    return SearchResult(grid[best], {grid[i]: each for i, each in seconds.items()})


def _unit_cube(grid: Sequence[Point]) -> _Array:
    """Return the logarithms of the points, each scaled to [0, 1]."""
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
    mean, deviation = _predict(places[measured], values, places[left])
    return int(left[np.argmax(_expected_improvement(values.min() - mean, deviation))])


def _predict(known: _Array, values: _Array, asked: _Array) -> tuple[_Array, _Array]:
    """Return the means and standard deviations of the most likely Gaussian process."""
    best = (-np.inf, np.zeros(0), np.zeros(0))
    for length_scale in _LENGTH_SCALES:
        between = _matern(known, known, length_scale)
        to_asked = _matern(asked, known, length_scale)
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


def _matern(a: _Array, b: _Array, length_scale: float) -> _Array:
    distance = np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2))
    r = math.sqrt(5) / length_scale * distance
    kernel: _Array = (1 + r + r**2 / 3) * np.exp(-r)
    return kernel


def _expected_improvement(gain: _Array, deviation: _Array) -> _Array:
    """Return the expected improvement of normal variables whose mean is better by `gain`."""
    z = gain / deviation
    cdf = 0.5 * (1 + np.array([math.erf(each / math.sqrt(2)) for each in z]))
    pdf = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    improvement: _Array = gain * cdf + deviation * pdf
    return improvement
