"""Keep, swap or recompute each buffer, whichever costs the step least.

Swaps take link time, recomputations take op time. A plan of swaps that waits has an overloaded
link. The search moves tensors from swapping to recomputation, in the order of recompute time per
link time saved, as far as that shortens the step::

    swaps, by (time to recompute) / (time of its copies)
      0.02   0.1    0.3    0.4  |  0.9    2.0    7.0    impossible
      ───── recomputed ──────── | ──────── swapped ───────────
                                ▲ where the simulated step is shortest

After each choice, swaps are planned again for the step with clones: sources that are kept for the
clones may be swapped or recomputed themselves. Capuchin (ASPLOS 2020) and HOME (TC 2022) decide
tensor by tensor and only once; TENSILE recomputes only what remains after swapping.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfswap.machine.link import Link
from tfswap.planning.planners import greedy
from tfswap.planning.planners.decision import (
    MIN_SWAP_BYTES,
    BudgetTooSmall,
    Decision,
    copying_ns,
    cost,
)
from tfswap.planning.planners.improve import keeps_budget_on_slow_link
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.planning.recomputer import Recomputer
from tfswap.planning.simulator import core_tiers
from tfswap.step.timeline import Timeline

POLICY = "joint"

_SUFFIX = "+recompute"
# Fractions of the worthwhile options to try, in this order: planning is faster with fewer swaps.
_PARTS = (1.0, 0.5, 0.75, 0.25, 0.375, 0.125, 0.0625)
# Maximal recompute time relative to the time of the copies.
_MAX_COST_RATIO = 4.0
# Maximal growth of a recompute time by recomputations applied before it.
_MAX_COST_GROWTH = 1.5
_MAX_ROUNDS = 6
_MAX_DROPS = 8
# Waits and copies below this fraction of the step do not justify a search of a second.
_NEGLIGIBLE = 0.02


def plan_jointly(
    timeline: Timeline, machine: Link, budget_bytes: int, *, deadline_s: float = float("inf")
) -> Decision:
    """Choose what is swapped and what is recomputed.

    Args:
        timeline: one unswapped step, with its dataflow.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        deadline_s: end of the search, in ``time.monotonic()``'s time. Default: never.

    Raises:
        BudgetTooSmall: if swaps alone do not bring the load below the budget.
        ValueError: the timeline has no dataflow.
    """
    Recomputer(timeline)  # raises if there is no dataflow
    decision = greedy.plan_swaps(timeline, machine, budget_bytes)
    decision = replace(decision, policy=POLICY)
    return with_recomputes(decision, timeline, machine, budget_bytes, deadline_s)


def with_recomputes(
    decision: Decision, timeline: Timeline, machine: Link, budget_bytes: int, deadline_s: float
) -> Decision:
    """Return the decision, or a faster one that recomputes some of the swapped tensors.

    Args:
        decision: within the budget.
        timeline: one unswapped step; without a dataflow, the decision is returned.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        deadline_s: when to stop, in ``time.monotonic()``'s time.
    """
    best = decision
    if timeline.dataflow is None or not decision.swaps:
        return best
    must_hold = keeps_budget_on_slow_link(decision.swaps, timeline, machine, budget_bytes)
    for _ in range(_MAX_ROUNDS):
        step = best.timeline or timeline
        saved_ns = best.result.stall_ns + copying_ns(
            machine, best.result.bytes_out, best.result.bytes_in
        )
        if saved_ns <= _NEGLIGIBLE * step.step_ns:
            break
        better = None
        for places in (_swapped(best), _above_budget(best, step, budget_bytes)):
            options = _options(places, step, machine)
            better = better or _best_part(
                best, step, options, machine, budget_bytes, deadline_s, must_hold
            )
        if better is None:
            break
        best = better
    return best


@dataclass(frozen=True)
class _Option:
    """An absence whose tensor could be recomputed."""

    absence: int
    cost_ns: int
    ratio: float


def _best_part(
    decision: Decision,
    timeline: Timeline,
    options: Sequence[_Option],
    machine: Link,
    budget_bytes: int,
    deadline_s: float,
    must_hold: bool,
) -> Decision | None:
    search = _Search(timeline, machine, budget_bytes, must_hold, decision)
    counts = [max(round(part * len(options)), 1) for part in _PARTS]
    recomputer, taken = Recomputer(timeline), []
    steps: dict[int, tuple[Timeline, Sequence[_Option]]] = {}
    for number, option in enumerate(options, start=1):
        if _apply_option(recomputer, option):
            taken.append(option)
        if number in counts and taken:
            steps[number] = recomputer.timeline(), tuple(taken)
    for count in dict.fromkeys(counts):
        if count in steps and time.monotonic() < deadline_s:
            search.consider(*steps[count])
    # Later options may have made some earlier ones superfluous.
    most_expensive = sorted(search.taken, key=lambda option: -option.cost_ns)[:_MAX_DROPS]
    for option in most_expensive:
        if time.monotonic() > deadline_s:
            break
        recomputer, left = Recomputer(timeline), [o for o in search.taken if o is not option]
        if left and all([_apply_option(recomputer, each) for each in left]):
            search.consider(recomputer.timeline(), left)
    if search.best is decision:
        return None
    return replace(search.best, policy=decision.policy.split("+")[0] + _SUFFIX)


class _Search:
    """The best plan so far, and its recomputations.

    Attributes:
        best: the plan.
        taken: the options that it recomputes.
    """

    def __init__(
        self,
        timeline: Timeline,
        machine: Link,
        budget_bytes: int,
        must_hold: bool,
        decision: Decision,
    ) -> None:
        self._timeline = timeline
        self._machine = machine
        self._budget_bytes = budget_bytes
        self._must_hold = must_hold
        self.best = decision
        self.taken: Sequence[_Option] = ()

    def consider(self, step: Timeline, taken: Sequence[_Option]) -> None:
        """Plan swaps for a step that recomputes some options; keep the plan if it is better."""
        machine = self._machine
        try:
            trial = greedy.plan_swaps(step, machine, self._budget_bytes)
        except BudgetTooSmall:
            return
        within = trial.result.peak_bytes <= self._budget_bytes
        if not within or cost(trial.result, machine) >= cost(self.best.result, machine):
            return
        if self._must_hold:
            if not keeps_budget_on_slow_link(trial.swaps, step, machine, self._budget_bytes):
                return
        self.best, self.taken = replace(trial, timeline=step), tuple(taken)


def _apply_option(recomputer: Recomputer, option: _Option) -> bool:
    """Apply an option, unless earlier ones made it impossible or much more expensive."""
    recomputation = recomputer.find(option.absence)
    if recomputation is None or recomputation.cost_ns > _MAX_COST_GROWTH * option.cost_ns:
        return False
    recomputer.apply(recomputation)
    return True


def _swapped(decision: Decision) -> dict[int, bool]:
    """Return the used absences, and whether each of them has a copy-out."""
    copied = (bool(times[0] >= 0) for times in decision.result.swap_times())
    return dict(zip((swap.absence for swap in decision.swaps), copied, strict=True))


def _above_budget(decision: Decision, timeline: Timeline, budget_bytes: int) -> dict[int, bool]:
    """Return unused absences at times where the load would exceed the budget."""
    load = OpLoad.of(timeline)
    gaps = Gaps.of(timeline, load, MIN_SWAP_BYTES)
    crowded = gaps.absence[gaps.areas(load.bytes > budget_bytes) > 0].tolist()
    used = {swap.absence for swap in decision.swaps}
    return {place: True for place in crowded if place not in used}


def _options(places: dict[int, bool], timeline: Timeline, machine: Link) -> Sequence[_Option]:
    """Return what could be recomputed instead of swapped, best ratio first.

    Args:
        places: absence indices, with whether a swap of it has a copy-out.
        timeline: the step.
        machine: speeds of the link.
    """
    recomputer, link = Recomputer(timeline), core_tiers(machine)[0]

    def link_ns(size_bytes: int, out: bool) -> int:
        moved_ns = link.in_duration_ns(size_bytes) + out * link.out_duration_ns(size_bytes)
        return int(moved_ns) + copying_ns(machine, out * size_bytes, size_bytes)

    options = []
    for place, out in places.items():
        recomputation = recomputer.find(place)
        if recomputation is None:
            continue
        saved_ns = link_ns(recomputation.bytes, out)
        saved_ns -= sum(link_ns(size, True) for _, size in recomputation.kept)
        if saved_ns <= 0 or recomputation.cost_ns > _MAX_COST_RATIO * saved_ns:
            continue
        options.append(_Option(place, recomputation.cost_ns, recomputation.cost_ns / saved_ns))
    return sorted(options, key=lambda option: option.ratio)
