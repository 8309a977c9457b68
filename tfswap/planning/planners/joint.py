"""Keep, swap or make again: each buffer as it costs the step least.

A swap takes the link's time, and making a tensor again takes the ops' time. A plan of swaps that
waits has too much on the link; what is made again in the least time for the link's time that it
spares is taken off it, as much as pays::

    swaps, by (time to make it again) / (time of its copies)
      0.02   0.1    0.3    0.4  |  0.9    2.0    7.0    cannot
      ───── made again ──────── | ──────── swapped ───────────
                                ▲ where the simulated step is shortest

Behind each choice the swaps are planned anew, for the step that has the clones: sources that stay
for them may leave in turn, or be made again themselves. Capuchin (ASPLOS 2020) and HOME (TC 2022)
decide tensor by tensor and once; TENSILE makes again only what swapping has left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfswap.machine.link import Link
from tfswap.planning.planners import greedy
from tfswap.planning.planners.decision import (
    LEAST_BYTES,
    BudgetTooSmall,
    Decision,
    copying_ns,
    cost,
)
from tfswap.planning.planners.improve import holds_on_a_slow_link
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.planning.recompute import Remaker
from tfswap.planning.simulator import core_tiers
from tfswap.step.timeline import Timeline

POLICY = "joint"

_AGAIN = "+recompute"
# Parts of what pays by the ratio alone that are tried, in this order: with fewer swaps, planning is
# faster.
_PARTS = (1.0, 0.5, 0.75, 0.25, 0.375, 0.125, 0.0625)
# Of the time that copies take: what takes longer to make again is left to the link.
_DEAREST = 4.0
# What others made again have made so much dearer than it was is left out.
_MUCH_DEARER = 1.5
_MOST_ROUNDS = 6
_MOST_DROPS = 8
# Waits below this part of the step are not worth a search.
_NEGLIGIBLE = 0.0005


def plan_jointly(
    timeline: Timeline, machine: Link, budget_bytes: int, *, deadline_s: float = float("inf")
) -> Decision:
    """Choose what is swapped and what is made again.

    Args:
        timeline: one unswapped step, with its dataflow.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        deadline_s: of the monotonic clock; the search ends then. Default: never.

    Raises:
        BudgetTooSmall: if swaps alone do not bring the load below the budget.
        ValueError: the timeline has no dataflow.
    """
    Remaker(timeline)  # raises if there is nothing to look at
    decision = greedy.plan_swaps(timeline, machine, budget_bytes)
    decision = replace(decision, policy=POLICY)
    return relieved(decision, timeline, machine, budget_bytes, deadline_s)


def relieved(
    decision: Decision, timeline: Timeline, machine: Link, budget_bytes: int, deadline_s: float
) -> Decision:
    """The decision, or one that makes again some of what it swaps, if that makes steps shorter.

    Args:
        decision: within the budget.
        timeline: one unswapped step; without a dataflow, the decision stays.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        deadline_s: when to stop, by ``time.monotonic()``.
    """
    best = decision
    if timeline.dataflow is None or not decision.swaps:
        return best
    must_hold = holds_on_a_slow_link(decision.swaps, timeline, machine, budget_bytes)
    for _ in range(_MOST_ROUNDS):
        step = best.timeline or timeline
        spared_ns = best.result.stall_ns + copying_ns(
            machine, best.result.bytes_out, best.result.bytes_in
        )
        if spared_ns <= _NEGLIGIBLE * step.step_ns:
            break
        better = None
        for places in (_swapped(best), _crowding(best, step, budget_bytes)):
            offers = _offers(places, step, machine)
            better = better or _best_part(
                best, step, offers, machine, budget_bytes, deadline_s, must_hold
            )
        if better is None:
            break
        best = better
    return best


@dataclass(frozen=True)
class _Offer:
    """An absence whose tensor could be made again."""

    absence: int
    cost_ns: int
    ratio: float


def _best_part(
    decision: Decision,
    timeline: Timeline,
    offers: Sequence[_Offer],
    machine: Link,
    budget_bytes: int,
    deadline_s: float,
    must_hold: bool,
) -> Decision | None:
    search = _Search(timeline, machine, budget_bytes, must_hold, decision)
    counts = [max(round(part * len(offers)), 1) for part in _PARTS]
    remaker, taken = Remaker(timeline), []
    steps: dict[int, tuple[Timeline, Sequence[_Offer]]] = {}
    for number, offer in enumerate(offers, start=1):
        if _take(remaker, offer):
            taken.append(offer)
        if number in counts and taken:
            steps[number] = remaker.timeline(), tuple(taken)
    for count in dict.fromkeys(counts):
        if count in steps and time.monotonic() < deadline_s:
            search.look_at(*steps[count])
    # Some may have become superfluous by what came behind them.
    dearest = sorted(search.taken, key=lambda offer: -offer.cost_ns)[:_MOST_DROPS]
    for offer in dearest:
        if time.monotonic() > deadline_s:
            break
        remaker, left = Remaker(timeline), [o for o in search.taken if o is not offer]
        if left and all([_take(remaker, each) for each in left]):
            search.look_at(remaker.timeline(), left)
    if search.best is decision:
        return None
    return replace(search.best, policy=decision.policy.split("+")[0] + _AGAIN)


class _Search:
    """The best plan so far, and what is made again in it.

    Attributes:
        best: the plan.
        taken: the offers of what it makes again.
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
        self.taken: Sequence[_Offer] = ()

    def look_at(self, step: Timeline, taken: Sequence[_Offer]) -> None:
        """Plans swaps for a step in which some offers are taken."""
        machine = self._machine
        try:
            trial = greedy.plan_swaps(step, machine, self._budget_bytes)
        except BudgetTooSmall:
            return
        within = trial.result.peak_bytes <= self._budget_bytes
        if not within or cost(trial.result, machine) >= cost(self.best.result, machine):
            return
        if self._must_hold:
            if not holds_on_a_slow_link(trial.swaps, step, machine, self._budget_bytes):
                return
        self.best, self.taken = replace(trial, timeline=step), tuple(taken)


def _take(remaker: Remaker, offer: _Offer) -> bool:
    """Has it made again, unless others have made that impossible or much dearer."""
    remaking = remaker.find(offer.absence)
    if remaking is None or remaking.cost_ns > _MUCH_DEARER * offer.cost_ns:
        return False
    remaker.apply(remaking)
    return True


def _swapped(decision: Decision) -> dict[int, bool]:
    """The absences that are put to use, and whether the tensor is copied out for each."""
    copied = (bool(times[0] >= 0) for times in decision.result.swap_times())
    return dict(zip((swap.absence for swap in decision.swaps), copied, strict=True))


def _crowding(decision: Decision, timeline: Timeline, budget_bytes: int) -> dict[int, bool]:
    """Other absences where the load would be above the budget: their tensors crowd others out."""
    load = OpLoad.of(timeline)
    gaps = Gaps.of(timeline, load, LEAST_BYTES)
    crowded = gaps.absence[gaps.areas(load.bytes > budget_bytes) > 0].tolist()
    used = {swap.absence for swap in decision.swaps}
    return {place: True for place in crowded if place not in used}


def _offers(places: dict[int, bool], timeline: Timeline, machine: Link) -> Sequence[_Offer]:
    """What could be made again instead of swapped, what spares most for its time first.

    Args:
        places: of absences; whether a swap of it takes a copy out.
        timeline: the step.
        machine: speeds of the link.
    """
    remaker, link = Remaker(timeline), core_tiers(machine)[0]

    def link_ns(size_bytes: int, out: bool) -> int:
        moved_ns = link.in_duration_ns(size_bytes) + out * link.out_duration_ns(size_bytes)
        return int(moved_ns) + copying_ns(machine, out * size_bytes, size_bytes)

    offers = []
    for place, out in places.items():
        remaking = remaker.find(place)
        if remaking is None:
            continue
        spared_ns = link_ns(remaking.bytes, out)
        spared_ns -= sum(link_ns(size, True) for _, size in remaking.kept)
        if spared_ns <= 0 or remaking.cost_ns > _DEAREST * spared_ns:
            continue
        offers.append(_Offer(place, remaking.cost_ns, remaking.cost_ns / spared_ns))
    return sorted(offers, key=lambda offer: offer.ratio)
