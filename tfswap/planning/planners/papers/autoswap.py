"""AutoSwap: take absences across the peak by score until the load is within the limit.

Source: Zhang, Yeung, Shu, He, Wang, "Efficient Memory Management for GPU-based Deep Learning
Systems", arXiv 1903.06631, section IV, and the authors' code. For an absence of s bytes between
the times t_i and t_{i+1}, whose copies take dt_out and dt_in (all in ns):

* DOA, duration of absence: t_{i+1} - t_i - dt_out - dt_in
* AOA, area of absence: s * DOA, or DOA / s where DOA is negative
* WDOA, weighted DOA: the load summed over the ops between t_i and t_{i+1}
* SWDOA, submodular WDOA: WDOA of the load that remains after subtracting the better ones
* ``best``: the one of the four with the least wait in the simulator
* ``bo``: a weighted sum of the four standardised scores, with weights found by Bayesian
  optimisation of the simulated wait (the authors' package and settings: the four pure scores
  first, then 20 points by upper confidence bound with kappa 5)

Each buffer has at most one absence, which spans the peak of the unswapped load. Buffers are copied
out in the order of readiness and copied in as late as the link allows, latest need first.

Departures from the paper: a gate replaces the paper's table of stopped ops, and a trigger starts a
prefetch; the simulator computes waits (they delay everything after them, the paper adds them up);
a buffer that is copied in occupies memory from the start of its copy (the authors' script omits
this).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tfswap._core import Tier
from tfswap.machine.link import Link
from tfswap.planning.planners.anchors import PlacementRequest, swaps_for
from tfswap.planning.planners.decision import MIB, Decision, budget_too_small
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.planning.simulator import SimResult, Swap, core_tiers, simulate
from tfswap.step.timeline import Timeline, peak_load

Floats = NDArray[np.float64]

POLICY = "autoswap"

# As in the authors' script.
_BO_STEPS = 20
_BO_KAPPA = 5.0


def plan_swaps(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    score: str = "swdoa",
    min_bytes: int = MIB,
) -> Decision:
    """Choose swaps as AutoSwap does.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: target of the load.
        score: "doa", "aoa", "wdoa", "swdoa", "best" or "bo". Default "swdoa".
        min_bytes: smaller buffers are not swapped. Default 1 MiB, as in the paper.

    Raises:
        BudgetTooSmall: if all absences across the peak do not bring the load below the budget
            (the paper's ``load_min``).
        ValueError: if the score is unknown.
    """
    if score not in SCORES:
        allowed = ", ".join(map(repr, SCORES))
        raise ValueError(f"unknown score {score!r}: allowed are {allowed}")
    if peak_load(timeline) <= budget_bytes:
        return Decision(POLICY, (), simulate(timeline, (), machine))
    search = _Search(timeline, machine, budget_bytes, min_bytes)
    swaps, result = SCORES[score](search)
    return Decision(f"{POLICY}:{score}", swaps, result)


def pure_score(name: str, gaps: Gaps, load: OpLoad, link: Tier) -> Floats:
    """Return DOA, AOA, WDOA or SWDOA of each gap; larger scores are taken first."""
    return _PURE[name](gaps, load, link)


def _doa(gaps: Gaps, load: OpLoad, link: Tier) -> Floats:
    copies_ns = [link.out_duration_ns(int(b)) + link.in_duration_ns(int(b)) for b in gaps.bytes]
    return (gaps.duration_ns - np.array(copies_ns, dtype=np.int64)).astype(np.float64)


def _aoa(gaps: Gaps, load: OpLoad, link: Tier) -> Floats:
    doa = _doa(gaps, load, link)
    size = gaps.bytes.astype(np.float64)
    return np.where(doa >= 0, doa * size, doa / size)


def _wdoa(gaps: Gaps, load: OpLoad, link: Tier) -> Floats:
    return gaps.areas(load.bytes).astype(np.float64)


def _swdoa(gaps: Gaps, load: OpLoad, link: Tier) -> Floats:
    left = list(range(len(gaps)))
    current = load.bytes.copy()
    score = np.zeros(len(gaps))
    while left:
        areas = gaps.areas(current)
        best = max(left, key=lambda i: areas[i])
        score[best] = len(left)
        left.remove(best)
        gaps.subtract(best, current)
    return score


_PURE: dict[str, Callable[[Gaps, OpLoad, Tier], Floats]] = {
    "doa": _doa,
    "aoa": _aoa,
    "wdoa": _wdoa,
    "swdoa": _swdoa,
}


class _Search:
    """What stays fixed while scores are compared."""

    def __init__(
        self, timeline: Timeline, machine: Link, budget_bytes: int, min_bytes: int
    ) -> None:
        self.timeline = timeline
        self.machine = machine
        self.budget_bytes = budget_bytes
        self.link = core_tiers(machine)[0]
        self.load = OpLoad.of(timeline)
        gaps = Gaps.of(timeline, self.load, min_bytes)
        across = np.flatnonzero(gaps.cover(self.load.peak))
        self.gaps = gaps.take(across)
        least = self.load.bytes.copy()
        for i in range(len(self.gaps)):
            self.gaps.subtract(i, least)
        if int(least.max()) > budget_bytes:
            raise budget_too_small(
                timeline, budget_bytes, least, "AutoSwap with one absence per buffer"
            )

    def score(self, name: str) -> Floats:
        return pure_score(name, self.gaps, self.load, self.link)

    def run(self, score: Floats) -> tuple[tuple[Swap, ...], SimResult]:
        """Select, schedule and simulate under one score."""
        current = self.load.bytes.copy()
        chosen: list[int] = []
        for i in np.argsort(-score, kind="stable").tolist():
            if current.max() <= self.budget_bytes:
                break
            chosen.append(i)
            self.gaps.subtract(i, current)
        swaps = self._schedule(self.gaps.take(np.array(sorted(chosen), dtype=np.int64)))
        return swaps, simulate(self.timeline, swaps, self.machine)

    def _schedule(self, gaps: Gaps) -> tuple[Swap, ...]:
        """Choose gates and triggers: copies-out forwards in time, then copies-in backwards."""
        start_ns = self.load.start_ns
        parts = len(start_ns)
        current = self.load.bytes.copy()
        gone = np.zeros(len(gaps), dtype=np.int64)
        link_free_ns = 0
        for i in np.argsort(gaps.after_end_ns, kind="stable").tolist():
            begin_ns = max(int(gaps.after_end_ns[i]), link_free_ns)
            end_ns = begin_ns + self.link.out_duration_ns(int(gaps.bytes[i]))
            end = int(np.searchsorted(start_ns, end_ns, side="left"))
            last = parts - 1 if gaps.crosses[i] else int(gaps.back[i]) - 1
            end = max(min(end, last), int(gaps.gone[i]))
            # The first part that must not begin before this copy has ended.
            over = np.flatnonzero(current[gaps.gone[i] : end + 1] > self.budget_bytes)
            stop = int(gaps.gone[i]) + int(over[0]) if len(over) else end
            gone[i] = stop
            gaps.subtract(i, current, gone=stop)
            # A stopped op starts when the copy has ended; on the step's own time axis, at its
            # recorded start.
            link_free_ns = min(end_ns, int(start_ns[stop])) if stop < parts else end_ns

        back = gaps.back.copy()
        needed_ns = int(self.timeline.step_ns)
        for i in np.argsort(-gaps.before_start_ns, kind="stable").tolist():
            needed_ns = min(int(gaps.before_start_ns[i]), needed_ns)
            needed_ns -= self.link.in_duration_ns(int(gaps.bytes[i]))
            # The last part that starts early enough, but not before the buffer is absent.
            first = 0 if gaps.crosses[i] else int(gone[i])
            begin = int(np.searchsorted(start_ns, needed_ns, side="right")) - 1
            begin = min(max(begin, first), int(gaps.back[i]) - 1)
            over = np.flatnonzero(current[begin : gaps.back[i]] + gaps.bytes[i] > self.budget_bytes)
            if len(over):
                begin += int(over[-1]) + 1
            current[begin : gaps.back[i]] += gaps.bytes[i]
            back[i] = begin
        return swaps_for(
            self.timeline,
            (
                PlacementRequest(
                    int(gaps.absence[i]),
                    int(gone[i]) - 1 if gone[i] >= 1 else None,
                    int(back[i]) if back[i] < gaps.back[i] else None,
                )
                for i in range(len(gaps))
            ),
        )


def _pure(name: str) -> Callable[[_Search], tuple[tuple[Swap, ...], SimResult]]:
    return lambda search: search.run(search.score(name))


def _cost(search: _Search, result: SimResult) -> tuple[bool, int, int]:
    return (result.peak_bytes > search.budget_bytes, result.stall_ns, result.bytes_out)


def _best(search: _Search) -> tuple[tuple[Swap, ...], SimResult]:
    found = [search.run(search.score(name)) for name in _PURE]
    return min(found, key=lambda plan: _cost(search, plan[1]))


def _bo(search: _Search) -> tuple[tuple[Swap, ...], SimResult]:
    try:
        from bayes_opt import BayesianOptimization
        from bayes_opt.acquisition import UpperConfidenceBound
    except ImportError as error:
        raise ValueError(
            "score='bo' needs the package bayesian-optimization: pip install bayesian-optimization"
        ) from error
    names = list(_PURE)
    scores = []
    for name in names:
        score = search.score(name)
        spread = float(score.std())
        scores.append((score - score.mean()) / (spread if spread > 0 else 1.0))
    tried: list[tuple[tuple[Swap, ...], SimResult]] = []

    def less_wait(**weights: float) -> float:
        total = sum(weights[name] * score for name, score in zip(names, scores, strict=True))
        tried.append(search.run(np.asarray(total)))
        over, stall_ns, _ = _cost(search, tried[-1][1])
        # A plan over the budget is worse than any within it.
        return -(stall_ns + (search.timeline.step_ns if over else 0)) / 1e6

    optimizer = BayesianOptimization(
        less_wait,
        {name: (-1.0, 1.0) for name in names},
        acquisition_function=UpperConfidenceBound(kappa=_BO_KAPPA),
        random_state=1,
        verbose=0,
        allow_duplicate_points=True,
    )
    for name in names:
        optimizer.probe({other: float(other == name) for other in names}, lazy=True)
    optimizer.maximize(init_points=0, n_iter=0)
    if all(result.stall_ns > 0 for _, result in tried):
        optimizer.maximize(init_points=0, n_iter=_BO_STEPS)
    return min(tried, key=lambda plan: _cost(search, plan[1]))


SCORES: dict[str, Callable[[_Search], tuple[tuple[Swap, ...], SimResult]]] = {
    **{name: _pure(name) for name in _PURE},
    "best": _best,
    "bo": _bo,
}
