"""SWDOA: swap the absences that remove the most load above the budget.

AutoSwap (Zhang et al., arXiv 1903.06631, section IV) scores an absence by the area under the load
curve that it spans, takes the best one, subtracts it from the load and scores the rest again.
Differences here:

* the score is the area that the absence can remove from the load *above the budget*, divided by the
  time that its copies take on the link;
* an absence begins when its copy-out can have ended and ends when its copy-in has to start, given
  the copies chosen before;
* a buffer may be absent several times; only the first absence needs a copy-out;
* selection continues until gates and triggers keep the load within the budget at any link speed,
  and the simulator compares several selections.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tfswap import _core
from tfswap.machine.link import Link
from tfswap.planning.planners.candidates import Candidates, Ints, Mask, find_candidates, with_stalls
from tfswap.planning.planners.decision import MIN_SWAP_BYTES, Decision, no_plan_fits
from tfswap.planning.planners.placement import Placement, place, swaps_of
from tfswap.planning.planners.selection import select, select_enforceable
from tfswap.planning.planners.tight_load import TightLoad, tight_load
from tfswap.planning.simulator import SimResult, core_tiers, simulate, swap_rows
from tfswap.step.timeline import Timeline, op_at, peak_load

POLICY = "greedy"

# Factors on the duration of copies during selection. Larger: fewer stalls, more traffic. 0: ignore
# the link, only gates and triggers count.
_LINK_FACTORS = (1.0, 2.0, 0.0)
_MAX_STRETCHES = 2
_MAX_REPAIRS = 36
_MAX_ALTERNATIVES = 4
# Stalls below this fraction of the step justify neither a search nor more traffic.
_NEGLIGIBLE = 0.0005
# Fractions of the swaps to drop at once, before single swaps are tried.
_DROPPED_PARTS = (1.0, 0.5, 0.25, 0.125)
_MAX_DROPS = 12


@dataclass(frozen=True, eq=False)
class _Trial:
    """A selection with its gates and triggers, and its simulation."""

    selected: Mask
    early: Ints
    placement: Placement
    result: SimResult
    limit_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the load stays within the limit, by the segments and in the simulator."""
        return self.placement.fits and self.result.peak_bytes <= self.limit_bytes

    @property
    def stalls_matter(self) -> bool:
        return self.result.stall_ns > self.result.step_ns * _NEGLIGIBLE

    @property
    def cost(self) -> tuple[bool, int, int, int]:
        """Sort key: over the limit, then stalls, traffic and number of swaps."""
        stall_ns = self.result.stall_ns if self.stalls_matter else 0
        moved_bytes = self.result.bytes_out + self.result.bytes_in
        return (not self.fits, stall_ns, moved_bytes, len(self.placement.places))


@dataclass(frozen=True, eq=False)
class _Search:
    """What stays fixed while plans are compared."""

    timeline: Timeline
    link: _core.Tier
    candidates: Candidates
    limit_bytes: int
    gate_all: bool = False


def plan_swaps(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    min_bytes: int = MIN_SWAP_BYTES,
    margin: float = 0.01,
) -> Decision:
    """Choose swaps that keep the step within the budget, with the fewest stalls found.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        min_bytes: smaller buffers are not swapped. Default 64 KiB: a timeline lists absences only
            of tensors that are worth a copy.
        margin: fraction of the budget that is left free where possible. Default 0.01.

    Returns:
        The decision. Its simulated peak is at most ``budget_bytes``; no swaps if the step fits.

    Raises:
        BudgetTooSmall: if all usable absences together do not bring the load below the budget.
        ValueError: if the timeline or the machine is malformed.

    Source: AutoSwap, arXiv 1903.06631, section IV (SWDOA).
    """
    if peak_load(timeline) <= budget_bytes:
        return Decision(POLICY, (), simulate(timeline, (), machine))
    link = core_tiers(machine)[0]
    candidates = find_candidates(timeline, link, min_bytes)
    floor = _floor_load(candidates)
    floor_bytes = int(floor.max())
    if floor_bytes > budget_bytes:
        op_name = _op_in_segment(timeline, int(np.argmax(floor)))
        raise no_plan_fits(timeline, budget_bytes, floor_bytes, op_name, margin)
    with_margin = int(budget_bytes * (1 - margin))
    limit_bytes = with_margin if floor_bytes <= with_margin else budget_bytes

    search = _Search(timeline, link, candidates, limit_bytes)
    best = min(_selections(search), key=lambda trial: trial.cost)
    if not best.fits:
        # Ungated copies-out that continue in the next step kept the plan from fitting.
        search = replace(search, gate_all=True)
        best = min(_selections(search), key=lambda trial: trial.cost)
    best = _drop_unneeded(search, best)
    best = _repair_stalls(search, best)
    best = _drop_unneeded(search, best)
    return Decision(POLICY, swaps_of(candidates, best.placement), best.result)


def _selections(search: _Search) -> list[_Trial]:
    trials = []
    for factor in _LINK_FACTORS:
        axis = search.candidates
        for _ in range(1 + _MAX_STRETCHES):
            trial = _try(search, select(axis, search.limit_bytes, factor))
            trials.append(trial)
            if factor == 0 or not trial.stalls_matter:
                break
            # Stalls give copies more time than the first time axis showed.
            axis = with_stalls(search.candidates, search.timeline, trial.result)
    return trials


def _try(search: _Search, selected: Mask, early: Ints | None = None) -> _Trial:
    if early is None:
        early = np.zeros(len(search.candidates), dtype=np.int64)
    placement = place(
        search.candidates, selected, search.limit_bytes, early=early, gate_all=search.gate_all
    )
    swaps = swaps_of(search.candidates, placement)
    result = _core.simulate(search.timeline.core, swap_rows(swaps), [search.link])
    return _Trial(selected, early, placement, result, search.limit_bytes)


def _floor_load(candidates: Candidates) -> Ints:
    """Return the load of each segment with every usable absence at its longest."""
    return tight_load(candidates, np.ones(len(candidates), dtype=np.bool_))


def _drop_unneeded(search: _Search, trial: _Trial) -> _Trial:
    """Drop swaps that do not improve the plan, those with the most traffic first."""
    selected = _without_idle(search, trial)
    if selected is not None:
        trial = _fewer_if_no_worse(search, trial, selected)
    for part in _DROPPED_PARTS:
        most = int(np.ceil(part * np.count_nonzero(trial.selected)))
        trial = _fewer_if_no_worse(
            search, trial, _without_replaceable(search, trial.selected, most)
        )
    size = search.candidates.bytes
    places = np.flatnonzero(trial.selected)
    load = TightLoad(search.candidates, trial.selected)
    tries = 0
    for candidate in places[np.argsort(-size[places], kind="stable")].tolist():
        if tries == _MAX_DROPS:
            break
        load.remove(candidate)
        if load.max_bytes <= search.limit_bytes:
            selected = trial.selected.copy()
            selected[candidate] = False
            trial = _fewer_if_no_worse(search, trial, selected)
            tries += 1
        if trial.selected[candidate]:
            load.restore(candidate)
    return trial


def _fewer_if_no_worse(search: _Search, trial: _Trial, selected: Mask) -> _Trial:
    """Return the trial with fewer swaps if it is no worse, otherwise the given trial."""
    if np.array_equal(selected, trial.selected):
        return trial
    fewer = _try(search, selected, trial.early)
    return fewer if fewer.cost <= trial.cost else trial


def _without_replaceable(search: _Search, selected: Mask, most: int) -> Mask:
    """Drop up to ``most`` swaps that gates and triggers of the others can replace."""
    selected = selected.copy()
    size = search.candidates.bytes
    places = np.flatnonzero(selected)
    load = TightLoad(search.candidates, selected)
    for candidate in places[np.argsort(-size[places], kind="stable")].tolist():
        if most == 0:
            break
        load.remove(candidate)
        if load.max_bytes <= search.limit_bytes:
            selected[candidate] = False
            most -= 1
        else:
            load.restore(candidate)
    return selected


def _without_idle(search: _Search, trial: _Trial) -> Mask | None:
    """Drop swaps that no segment needs, keeping other gates and triggers; None: no such swap."""
    candidates, placement = search.candidates, trial.placement
    load = placement.load.copy()
    selected = trial.selected.copy()
    far_copies, uses = np.unique(candidates.far_copy[placement.places], return_counts=True)
    uses_of = dict(zip(far_copies.tolist(), uses.tolist(), strict=True))
    size = candidates.bytes[placement.places]
    dropped = False
    for i in np.argsort(-size, kind="stable").tolist():
        candidate = int(placement.places[i])
        far_copy = int(candidates.far_copy[candidate])
        makes_far_copy = placement.gate_start[i] >= 0
        if makes_far_copy and uses_of[far_copy] > 1:
            continue
        gone, back = int(placement.gone[i]), int(placement.back[i])
        windows = [load[gone:back]]
        if candidates.crosses[candidate]:
            windows = [load[gone:], load[:back]]
        if any(len(w) and w.max() + size[i] > search.limit_bytes for w in windows):
            continue
        for window in windows:
            window += size[i]
        selected[candidate] = False
        uses_of[far_copy] -= 1
        dropped = True
    return selected if dropped else None


def _repair_stalls(search: _Search, trial: _Trial) -> _Trial:
    """Change the selection around the longest stalls while that lowers the cost."""
    tries = 0
    given_up: set[int] = set()
    while tries < _MAX_REPAIRS and trial.stalls_matter:
        worst = _longest_wait(trial, given_up)
        if worst is None:
            break
        better = None
        for selected, early in _repairs(search, trial, worst):
            changed = _try(search, selected, early)
            tries += 1
            if changed.cost < trial.cost:
                better = changed
                break
        if better is None:
            given_up.add(worst)
        else:
            trial = better
    return trial


def _repairs(search: _Search, trial: _Trial, worst: int) -> Iterator[tuple[Mask, Ints]]:
    """Yield (selection, earliness) pairs that may shorten one wait, most promising first."""
    candidates = search.candidates
    early = trial.early.copy()
    for _, cause, swap, ns in trial.result.stalls:
        if cause == "swap-in":
            early[trial.placement.places[swap]] += ns + ns // 2
    if (early != trial.early).any():
        yield trial.selected, early

    without = trial.selected.copy()
    without[worst] = False
    for other in _alternatives(candidates, trial, worst):
        exchanged = without.copy()
        exchanged[other] = True
        if tight_load(candidates, exchanged).max() <= search.limit_bytes:
            yield exchanged, trial.early
        both = trial.selected.copy()
        both[other] = True
        yield both, trial.early

    allowed = np.ones(len(candidates), dtype=np.bool_)
    allowed[worst] = False
    if tight_load(candidates, allowed).max() <= search.limit_bytes:
        yield (
            select_enforceable(candidates, search.limit_bytes, without, allowed),
            trial.early,
        )


def _alternatives(candidates: Candidates, trial: _Trial, worst: int) -> list[int]:
    """Return unselected absences at the ends of the worst one, largest first."""
    place = int(np.searchsorted(trial.placement.places, worst))
    gone, back = int(trial.placement.gone[place]), int(trial.placement.back[place]) - 1
    found: list[int] = []
    for segment in (gone, back):
        gone_by = candidates.earliest_release <= segment
        away_after = candidates.latest_trigger_end > segment
        covers = np.where(candidates.crosses, gone_by | away_after, gone_by & away_after)
        others = np.flatnonzero(covers & ~trial.selected)
        found += others[np.argsort(-candidates.bytes[others], kind="stable")].tolist()
    return list(dict.fromkeys(found))[:_MAX_ALTERNATIVES]


def _longest_wait(trial: _Trial, given_up: set[int]) -> int | None:
    waited: dict[int, int] = {}
    for _, _, swap, ns in trial.result.stalls:
        candidate = int(trial.placement.places[swap])
        if candidate not in given_up:
            waited[candidate] = waited.get(candidate, 0) + ns
    if not waited:
        return None
    return max(waited, key=lambda candidate: (waited[candidate], -candidate))


def _op_in_segment(timeline: Timeline, segment: int) -> str:
    """Return the op that runs in a segment; no op starts or ends within one."""
    if segment == 0:
        return op_at(timeline, -1)
    borders = np.sort(np.concatenate(timeline.core.op_positions()))
    return op_at(timeline, int(borders[segment - 1]))
