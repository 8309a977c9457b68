"""Local search: a plan made a little different again and again, kept where that is better.

Moves change one swap at a time where it hurts (the op that waits longest) or at random: an absence
dropped, taken up, exchanged for another one that spans the same moment; a gate or a trigger put one
possible op earlier or later. Whatever the simulator finds no worse than before stays. The search
is the same for the same input until its time is over, and more time never makes a plan worse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tfswap import _core
from tfswap.planners.decision import MIB, Decision, cost
from tfswap.simulator import Link, SimResult, Swap, core_tiers, swap_rows
from tfswap.timeline import Timeline, crosses_step_end

Ints = NDArray[np.int64]


_SEED = 1
# Waits below this part of the step are not worth a search.
_NEGLIGIBLE = 0.0002
_PROGRESS_EVERY_S = 1.0
_WHERE_IT_HURTS = 0.7
_SLOW = 16.0
# Part of the budget that is left free where the first plan leaves it free.
_MARGIN = 0.01


def improved(
    decision: Decision,
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    deadline_s: float,
    say: Callable[[str], None] | None = None,
    min_bytes: int = MIB,
) -> Decision:
    """The decision, or a better one that was found in time.

    Args:
        decision: where the search begins; within the budget.
        timeline: the unswapped step.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        deadline_s: when to stop, by ``time.monotonic()``.
        say: called with a line about every second.
        min_bytes: smaller buffers stay.
    """
    if not decision.swaps or _waits_little(decision.result, timeline):
        return decision
    search = _Search(timeline, machine, min_bytes)
    limit_bytes = max(decision.result.peak_bytes, int(budget_bytes * (1 - _MARGIN)))
    needs_gates = holds_on_a_slow_link(decision.swaps, timeline, machine, limit_bytes)
    swaps = {swap.absence: swap for swap in decision.swaps}
    result = search.simulate(swaps)
    random = np.random.default_rng(_SEED)
    begun_s = said_s = time.monotonic()
    while (now_s := time.monotonic()) < deadline_s and not _waits_little(result, timeline):
        if say is not None and now_s - said_s >= _PROGRESS_EVERY_S:
            said_s = now_s
            say(f"planning: waits of {result.stall_ns / 1e6:.1f} ms after {now_s - begun_s:.0f} s")
        changed = search.neighbour(swaps, result, random)
        if changed is None:
            continue
        outcome = search.simulate(changed)
        if outcome.peak_bytes > limit_bytes or cost(outcome, machine) > cost(result, machine):
            continue
        if needs_gates and not holds_on_a_slow_link(
            tuple(changed.values()), timeline, machine, limit_bytes
        ):
            continue
        swaps, result = changed, outcome
    if cost(result, machine) >= cost(decision.result, machine):
        return decision
    return replace(
        decision,
        policy=f"{decision.policy}, improved",
        swaps=tuple(sorted(swaps.values())),
        result=result,
    )


def holds_on_a_slow_link(
    swaps: Sequence[Swap], timeline: Timeline, machine: Link, budget_bytes: int
) -> bool:
    """Whether gates and triggers keep the budget also when copies take much longer than foretold.

    Across the step's end nothing can be gated in time, so such plans hold on their own link only.
    """
    slow = _core.Tier(
        machine.out_bytes_per_s / _SLOW, machine.in_bytes_per_s / _SLOW, machine.out_latency_ns
    )
    result = _core.simulate(timeline.core, swap_rows(sorted(swaps)), [slow])
    return result.peak_bytes <= budget_bytes


def _waits_little(result: SimResult, timeline: Timeline) -> bool:
    return result.stall_ns <= timeline.step_ns * _NEGLIGIBLE


class _Search:
    """The moves that a timeline allows."""

    def __init__(self, timeline: Timeline, machine: Link, min_bytes: int) -> None:
        self._timeline = timeline
        self._tiers = core_tiers(machine)
        self._starts, self._ends = timeline.core.op_positions()
        self._usable: dict[int, Ints] = {}
        rows = []
        for index, absence in enumerate(timeline.absences):
            size = int(timeline.buffer_bytes[absence.buffer])
            if size < max(min_bytes, 1):
                continue
            if absence.context not in self._usable:
                usable = timeline.op_gateable & (timeline.op_context == absence.context)
                self._usable[absence.context] = np.flatnonzero(usable)
            begin, end = self._ends[absence.after_op], self._starts[absence.before_op]
            rows.append((index, size, begin, end, crosses_step_end(timeline, absence)))
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        self._index, self._bytes, self._begin, self._end = table[:, :4].T
        self._crosses = table[:, 4].astype(bool)
        self._gates: dict[int, Ints] = {}
        self._triggers: dict[int, Ints] = {}

    def simulate(self, swaps: dict[int, Swap]) -> SimResult:
        return _core.simulate(
            self._timeline.core, swap_rows(swaps[i] for i in sorted(swaps)), self._tiers
        )

    def neighbour(
        self, swaps: dict[int, Swap], result: SimResult, random: np.random.Generator
    ) -> dict[int, Swap] | None:
        """Some of the swaps changed; None: there is no such change."""
        ordered = sorted(swaps)
        stalls = [(swap, ns) for _, _, swap, ns in result.stalls if swap >= 0]
        if stalls and random.random() < _WHERE_IT_HURTS:
            ns = np.array([ns for _, ns in stalls], dtype=np.float64)
            absence = ordered[stalls[int(random.choice(len(stalls), p=ns / ns.sum()))][0]]
        else:
            absence = ordered[int(random.integers(len(ordered)))]
        changed = dict(swaps)
        move = random.random()
        if move < 0.4:
            changed[absence] = self._shifted(changed[absence], random)
        elif move < 0.5:
            del changed[absence]
        elif move < 0.8:
            other = self._beside(absence, swaps, random)
            if other is None:
                return None
            changed[other] = self._like(swaps[absence], other)
            if random.random() < 0.7:
                del changed[absence]
        else:
            for one in random.choice(ordered, size=min(3, len(ordered)), replace=False).tolist():
                changed[one] = self._shifted(changed[one], random)
        return changed or None

    def _gates_of(self, index: int) -> Ints:
        """Ops that can gate an absence, by start; -1 for none."""
        if index not in self._gates:
            absence = self._timeline.absences[index]
            usable = self._usable[absence.context]
            ready = -1 if absence.producer_op < 0 else self._ends[absence.producer_op]
            gates = usable[self._starts[usable] > ready]
            gates = gates[np.argsort(self._starts[gates])]
            if not crosses_step_end(self._timeline, absence):
                gates = gates[self._starts[gates] < self._starts[absence.before_op]]
            self._gates[index] = np.append(gates, -1)
        return self._gates[index]

    def _triggers_of(self, index: int) -> Ints:
        """Ops that can trigger an absence's end, by end; -1: as soon as it has left."""
        if index not in self._triggers:
            absence = self._timeline.absences[index]
            usable = self._usable[absence.context]
            in_time = self._ends[usable] < self._starts[absence.before_op]
            if not crosses_step_end(self._timeline, absence):
                in_time &= self._ends[usable] > self._ends[absence.after_op]
            triggers = usable[in_time]
            triggers = triggers[np.argsort(self._ends[triggers])]
            self._triggers[index] = np.concatenate([[-1], triggers])
        return self._triggers[index]

    def _shifted(self, swap: Swap, random: np.random.Generator) -> Swap:
        """A gate or a trigger some possible ops earlier or later."""
        distance = int(random.geometric(0.25)) * (1 if random.random() < 0.5 else -1)
        if random.random() < 0.5:
            gates = self._gates_of(swap.absence)
            return replace(swap, gate_op=_moved(gates, swap.gate_op, distance))
        triggers = self._triggers_of(swap.absence)
        return replace(swap, trigger_op=_moved(triggers, swap.trigger_op, distance))

    def _like(self, swap: Swap, other: int) -> Swap:
        """A swap of another absence with the gate and the trigger nearest to this one's."""
        gates, triggers = self._gates_of(other), self._triggers_of(other)
        gate, trigger = int(gates[-1]), int(triggers[0])
        if swap.gate_op >= 0 and len(gates) > 1:
            place = np.searchsorted(self._starts[gates[:-1]], self._starts[swap.gate_op])
            gate = int(gates[min(int(place), len(gates) - 2)])
        if swap.trigger_op >= 0 and len(triggers) > 1:
            place = np.searchsorted(self._ends[triggers[1:]], self._ends[swap.trigger_op], "right")
            trigger = int(triggers[int(place)])
        return Swap(other, gate, trigger)

    def _beside(
        self, absence: int, swaps: dict[int, Swap], random: np.random.Generator
    ) -> int | None:
        """An absence that is not used and spans a moment of this one; large ones more often."""
        place = int(np.searchsorted(self._index, absence))
        begin, end = int(self._begin[place]), int(self._end[place])
        if self._crosses[place]:
            end += len(self._timeline.core.events()[0])
        moment = begin + int(random.integers(max(end - begin, 1)))
        begun, not_over = self._begin <= moment, self._end > moment
        spans = np.where(self._crosses, begun | not_over, begun & not_over)
        spans &= ~np.isin(self._index, list(swaps))
        found = np.flatnonzero(spans)
        if not len(found):
            return None
        size = self._bytes[found].astype(np.float64)
        return int(self._index[int(random.choice(found, p=size / size.sum()))])


def _moved(ops: Ints, op: int, distance: int) -> int:
    places = np.flatnonzero(ops == op)
    place = int(places[0]) if len(places) else 0
    return int(ops[min(max(place + distance, 0), len(ops) - 1)])
