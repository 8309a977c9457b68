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

from tfswap.planners import greedy
from tfswap.planners.decision import BudgetTooSmall, Decision, copying_ns, cost
from tfswap.planners.improve import holds_on_a_slow_link
from tfswap.recompute import Remaker, Remaking
from tfswap.simulator import Link, core_tiers
from tfswap.timeline import Absence, Timeline

POLICY = "joint"

_AGAIN = "+recompute"
# Parts of what pays by the ratio alone that are tried.
_PARTS = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
# Of the time that copies take: what takes longer to make again is left to the link.
_DEAREST = 4.0
_MOST_ROUNDS = 6
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
        better = _best_part(best, step, machine, budget_bytes, deadline_s, must_hold)
        if better is None:
            break
        best = better
    return best


@dataclass(frozen=True)
class _Offer:
    """A swap that something made again could stand for."""

    absence: Absence
    cost_ns: int
    ratio: float


def _best_part(
    decision: Decision,
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    deadline_s: float,
    must_hold: bool,
) -> Decision | None:
    offers = _offers(decision, timeline, machine)
    counts = {max(round(part * len(offers)), 1) for part in _PARTS}
    best, least, step = None, cost(decision.result, machine), timeline
    for number, offer in enumerate(offers, start=1):
        if time.monotonic() > deadline_s:
            break
        remaker = Remaker(step)
        remaking = _find(remaker, step, offer)
        if remaking is not None:
            step = remaker.apply(remaking)
        if number not in counts or step is timeline:
            continue
        trial = _with_swaps(step, machine, budget_bytes)
        if trial is None or cost(trial.result, machine) >= least:
            continue
        if not must_hold or holds_on_a_slow_link(trial.swaps, step, machine, budget_bytes):
            best, least = trial, cost(trial.result, machine)
    return None if best is None else replace(best, policy=decision.policy.split("+")[0] + _AGAIN)


def _offers(decision: Decision, timeline: Timeline, machine: Link) -> Sequence[_Offer]:
    """What could be made again instead of swapped, what spares most for its time first."""
    remaker, link = Remaker(timeline), core_tiers(machine)[0]

    def link_ns(size_bytes: int, out: bool) -> int:
        moved_ns = link.in_duration_ns(size_bytes) + out * link.out_duration_ns(size_bytes)
        return int(moved_ns) + copying_ns(machine, out * size_bytes, size_bytes)

    offers = []
    for swap, times in zip(decision.swaps, decision.result.swap_times(), strict=True):
        remaking = remaker.find(swap.absence)
        if remaking is None:
            continue
        spared_ns = link_ns(remaking.bytes, bool(times[0] >= 0))
        spared_ns -= sum(link_ns(size, True) for _, size in remaking.kept)
        if spared_ns <= 0 or remaking.cost_ns > _DEAREST * spared_ns:
            continue
        absence = timeline.absences[swap.absence]
        offers.append(_Offer(absence, remaking.cost_ns, remaking.cost_ns / spared_ns))
    return sorted(offers, key=lambda offer: offer.ratio)


def _with_swaps(step: Timeline, machine: Link, budget_bytes: int) -> Decision | None:
    """The plan of swaps beside what is made again; None if there is none."""
    try:
        decision = greedy.plan_swaps(step, machine, budget_bytes)
    except BudgetTooSmall:
        return None
    within = decision.result.peak_bytes <= budget_bytes
    return replace(decision, timeline=step) if within else None


def _find(remaker: Remaker, step: Timeline, offer: _Offer) -> Remaking | None:
    """The offer in a step that has clones by now; None if it is not as good any more."""
    wanted = offer.absence
    # Of the gaps before these readers, the last one.
    places = [
        place
        for place, absence in enumerate(step.absences)
        if absence.tensor == wanted.tensor and set(wanted.consumers) <= set(absence.consumers)
    ]
    if not places:
        return None
    remaking = remaker.find(max(places, key=lambda place: step.absences[place].after_op))
    # Its sources may have been made again meanwhile, or be kept for others.
    return remaking if remaking and remaking.cost_ns <= 1.5 * offer.cost_ns else None
