"""The search for a launch, on synthetic surfaces where every launch's time is known."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from tfswap.machine.launch_search import Point, SearchResult, search

BLOCKS = (1, 2, 4, 8, 10, 16, 24, 32, 48, 64, 96, 128, 197, 256, 384, 512, 768, 1024, 2048, 4096)
THREADS = (64, 128, 256, 512, 1024)
GRID = list(itertools.product(BLOCKS, THREADS))

# Seconds by number of blocks (of 64 threads) in CSWAP, for 500 MB with half zeros.
PAPER = {10: 0.146, 197: 0.044, 1024: 0.150}


def cswap(point: Point) -> float:
    """Interpolate the paper's points in logarithms; more threads per block are slower."""
    blocks, threads = point
    known = sorted(PAPER)
    logs = np.log(known)
    at = math.log(blocks)
    if blocks < known[0]:
        value = math.log(PAPER[10]) + (logs[0] - at)
    else:
        value = float(np.interp(at, logs, [math.log(PAPER[b]) for b in known]))
        value += 0.7 * max(0.0, at - logs[-1])
    return math.exp(value) * (1 + 0.15 * math.log2(threads / 64))


def link_bound(point: Point) -> float:
    """From 2,000 threads on, the link is the bottleneck."""
    blocks, threads = point
    return max(0.020, 40 / (blocks * threads)) * (1 + 0.0002 * blocks)


def valley(point: Point) -> float:
    """The minimum is not aligned with an axis."""
    blocks, threads = point
    return 0.01 * (
        1 + abs(math.log2(blocks * threads / 8192)) + 0.3 * abs(math.log2(threads / 256))
    )


SURFACES = pytest.mark.parametrize("surface", [cswap, link_bound, valley])


def noisy(surface: Callable[[Point], float], seed: int, noise: float) -> Callable[[Point], float]:
    rng = np.random.default_rng(seed)
    return lambda point: surface(point) * math.exp(noise * rng.standard_normal())


def test_the_cswap_surface_has_the_paper_s_points() -> None:
    for blocks, seconds in PAPER.items():
        assert cswap((blocks, 64)) == pytest.approx(seconds)


@SURFACES
@pytest.mark.parametrize("seed", range(8))
def test_a_third_of_the_measurements_finds_a_nearly_best_launch(
    surface: Callable[[Point], float], seed: int
) -> None:
    best = min(map(surface, GRID))
    found = search(GRID, surface, seed=seed)
    assert len(found.seconds) == 35 < len(GRID) / 2.8
    assert surface(found.best) <= 1.05 * best


@SURFACES
@pytest.mark.parametrize("seed", range(8))
def test_noisy_measurements(surface: Callable[[Point], float], seed: int) -> None:
    best = min(map(surface, GRID))
    found = search(GRID, noisy(surface, seed, 0.05), seed=seed)
    assert surface(found.best) <= 1.25 * best


@SURFACES
def test_guided_search_beats_random_search(surface: Callable[[Point], float]) -> None:
    def slowdown(guided: int) -> float:
        first = 35 - guided
        found = [search(GRID, surface, first=first, guided=guided, seed=s) for s in range(12)]
        return float(np.mean([surface(each.best) for each in found])) / min(map(surface, GRID))

    assert slowdown(25) <= slowdown(0)


def test_the_search_is_deterministic_for_a_seed() -> None:
    one, other = (search(GRID, cswap, seed=3) for _ in range(2))
    assert list(one.seconds.items()) == list(other.seconds.items())
    assert list(search(GRID, cswap, seed=4).seconds) != list(one.seconds)


def test_each_point_of_a_small_grid_is_measured_once() -> None:
    measured: list[Point] = []

    def measure(point: Point) -> float:
        measured.append(point)
        return cswap(point)

    small = GRID[::10]
    found = search(small, measure)
    assert sorted(measured) == sorted(small) == sorted(found.seconds)
    assert found.best == min(small, key=cswap)


def test_equal_times_and_a_single_point() -> None:
    assert search([(16, 512)], lambda point: 1.0).best == (16, 512)
    found = search(GRID, lambda point: 1.0)
    assert len(found.seconds) == 35


def test_a_deadline_ends_the_search() -> None:
    assert len(search(GRID, cswap, deadline_s=time.monotonic() - 1).seconds) == 1


def test_an_empty_grid_is_rejected() -> None:
    with pytest.raises(ValueError, match="empty grid"):
        search([], cswap)


def test_the_smallest_launch_within_a_tolerance() -> None:
    found = SearchResult(
        (64, 256), {(64, 256): 1.00, (16, 512): 1.04, (8, 512): 1.2, (16, 1024): 1.01}
    )
    assert found.smallest(1.05) == (16, 512)
    assert found.smallest(1.0) == (64, 256)
    assert found.smallest(1.3) == (8, 512)
