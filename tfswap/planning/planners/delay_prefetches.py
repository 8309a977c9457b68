"""Delay prefetches that would return before there is room for them.

A plan is made for one speed of the link and of the ops. If ops turn out slower, or codecs compress
tensors better than before, the link runs ahead of the simulation: copies-in start as soon as their
triggers end, and take memory that the ops in between need. Therefore triggers are *delayed* where
the load would otherwise exceed the budget: to the next op that leaves room, but to none that ends
after the simulated start of the copy-in::

                     trigger                  in the simulation
    ops      --A--    --B--   --C--   --D--       ▼
    link     ▒▒▒▒▒▒▒▒▒▒▒▒ others ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒|▓▓ in ▓▓|
    ahead                  |▓▓ in ▓▓|· · · holds memory too early
    now                                    trigger

The link serves copies-in in the order of their triggers, so copies that follow a delayed one are
delayed with it where necessary. The simulated step does not change.

Where that is not enough (the room appears within an op, and only an op's end can be a trigger), a
copy-in may wait for the end of that op although the simulation starts it earlier.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.link import Link
from tfswap.planning.simulator import SimResult, Swap, simulate
from tfswap.step.timeline import Timeline, crosses_step_end

Ints = NDArray[np.int64]

# Maximal cost of making room for early copies-in, as a fraction of the step.
_MAX_WAIT = 0.05


def delay_prefetches(
    timeline: Timeline,
    swaps: Sequence[Swap],
    links: Sequence[Link],
    budget_bytes: int,
    deadline_s: float,
) -> tuple[Swap, ...]:
    """Return the swaps with later triggers where early copies-in would exceed the budget.

    Args:
        timeline: one unswapped step.
        swaps: by absence, with their places in far memory.
        links: one per tier.
        budget_bytes: upper limit of the load.
        deadline_s: when to stop, in `time.monotonic`'s time.
    """
    before = simulate(timeline, swaps, links)
    chosen = _delay_without_waits(timeline, swaps, links, before, budget_bytes, deadline_s)
    most_ns = before.stall_ns + int(_MAX_WAIT * timeline.step_ns)
    return _delay_with_waits(timeline, chosen, links, budget_bytes, most_ns, deadline_s)


def _delay_without_waits(
    timeline: Timeline,
    swaps: Sequence[Swap],
    links: Sequence[Link],
    before: SimResult,
    budget_bytes: int,
    deadline_s: float,
) -> tuple[Swap, ...]:
    prefetches = _Prefetches(timeline, swaps, before)
    load = prefetches.load_ahead()
    limit = np.maximum(prefetches.load_simulated(), budget_bytes)
    for event in np.flatnonzero(load > limit).tolist():
        if time.monotonic() > deadline_s:
            break
        if load[event] <= limit[event]:
            continue
        for place in prefetches.early(event):
            prefetches.delay(place, event, load)
            if load[event] <= limit[event]:
                break
    chosen = tuple(
        replace(swap, trigger_op=trigger)
        for swap, trigger in zip(swaps, prefetches.trigger.tolist(), strict=True)
    )
    after = simulate(timeline, chosen, links)
    no_worse = after.stall_ns <= before.stall_ns and after.peak_bytes <= before.peak_bytes
    return chosen if no_worse else tuple(swaps)


def _delay_with_waits(
    timeline: Timeline,
    swaps: tuple[Swap, ...],
    links: Sequence[Link],
    budget_bytes: int,
    most_ns: int,
    deadline_s: float,
) -> tuple[Swap, ...]:
    chosen = swaps
    result = simulate(timeline, chosen, links)
    prefetches = _Prefetches(timeline, chosen, result)
    load = prefetches.load_ahead()
    refused: set[tuple[int, int]] = set()  # for the current plan: later events ask for the same
    for event in np.flatnonzero(load > budget_bytes).tolist():
        for place in prefetches.held(event):
            if load[event] <= budget_bytes or time.monotonic() > deadline_s:
                break
            trigger = prefetches.first_trigger(place, event)
            if trigger is None or (place, trigger) in refused:
                continue
            trial = tuple(
                replace(swap, trigger_op=trigger) if i == place else swap
                for i, swap in enumerate(chosen)
            )
            tried = simulate(timeline, trial, links)
            most_bytes = max(budget_bytes, result.peak_bytes)
            if tried.stall_ns > most_ns or tried.peak_bytes > most_bytes:
                refused.add((place, trigger))
                continue
            chosen, result = trial, tried
            refused.clear()
            prefetches = _Prefetches(timeline, chosen, result)
            load = prefetches.load_ahead()
    return chosen


class _Prefetches:
    """When buffers are released and copied in, as positions among a timeline's events.

    Attributes:
        trigger: of each swap, including delays so far.
    """

    def __init__(self, timeline: Timeline, swaps: Sequence[Swap], result: SimResult) -> None:
        absences = [timeline.absences[swap.absence] for swap in swaps]
        starts, self._ends = (at.astype(np.int64) for at in timeline.core.op_positions())
        recorded_ns, self._load = timeline.core.events()
        simulated_ns = _simulated_times(recorded_ns, starts, result)
        self._end_ns = simulated_ns[self._ends]
        _, out_end_ns, released_ns, self._in_start_ns, _ = result.swap_times().T
        self._bytes = timeline.buffer_bytes[[absence.buffer for absence in absences]]
        self._within = np.array([not crosses_step_end(timeline, a) for a in absences], dtype=bool)
        self._needed_at = starts[[absence.before_op for absence in absences]]
        self.trigger = np.array([swap.trigger_op for swap in swaps], dtype=np.int64)
        # A buffer is absent from event `gone` to event `back`, exclusive.
        self._gone = np.searchsorted(simulated_ns, released_ns)
        self._back_simulated = np.searchsorted(simulated_ns, self._in_start_ns)
        has_trigger = self.trigger >= 0
        self._back = np.where(has_trigger, self._ends[self.trigger], self._gone)
        requested_ns = np.maximum(np.where(has_trigger, self._end_ns[self.trigger], 0), out_end_ns)
        self._requested_ns = np.minimum(requested_ns, self._in_start_ns)
        self._context = [absence.context for absence in absences]
        by_end = np.argsort(self._ends, kind="stable")
        by_end = by_end[timeline.op_gateable[by_end]]
        self._usable = {
            context: by_end[timeline.op_context[by_end] == context]
            for context in set(self._context)
        }
        self._next_on_link = self._queues([swap.tier for swap in swaps])

    def _queues(self, tiers: Sequence[int]) -> dict[int, int]:
        """Return for each swap the one that its link serves next."""
        following: dict[int, int] = {}
        last: dict[int, int] = {}
        for place in np.argsort(self._in_start_ns, kind="stable").tolist():
            tier = tiers[place]
            if tier in last:
                following[last[tier]] = place
            last[tier] = place
        return following

    def load_ahead(self) -> Ints:
        """Return the load per event if copies-in complete as soon as their triggers have ended."""
        return self._load_where(self._back)

    def load_simulated(self) -> Ints:
        """Return the load per event if copies-in start as simulated."""
        return self._load_where(self._back_simulated)

    def _load_where(self, back: Ints) -> Ints:
        load = self._load.astype(np.int64)
        for place in np.flatnonzero(self._within).tolist():
            load[self._gone[place] : back[place]] -= self._bytes[place]
        return load

    def early(self, event: int) -> list[int]:
        """Return swaps that are back at an event too early, a link's last one first."""
        places = np.flatnonzero(self._held(event) & (self._back_simulated > event))
        order = np.argsort(-self._in_start_ns[places], kind="stable")
        return [int(place) for place in places[order]]

    def held(self, event: int) -> list[int]:
        """Return swaps that are back at an event before they are needed, the last needed first."""
        places = np.flatnonzero(self._held(event))
        return [int(place) for place in places[np.argsort(-self._needed_at[places], kind="stable")]]

    def _held(self, event: int) -> NDArray[np.bool_]:
        held: NDArray[np.bool_] = self._within & (self._gone <= event) & (self._back <= event)
        held &= self._needed_at > event
        return held

    def delay(self, place: int, event: int, load: Ints) -> None:
        """Keep a swap's buffer absent at an event too, if possible, and update the load."""
        changes: dict[int, int] = {}
        after_event = event
        while True:
            later = self.first_trigger(place, after_event)
            if later is None or self._end_ns[later] > self._in_start_ns[place]:
                return
            changes[place] = later
            after_event = int(self._ends[later])
            follower = self._next_on_link.get(place)
            # Keep the order in which the link serves both.
            if follower is None or self._requested_ns[follower] > self._end_ns[later]:
                break
            place = follower
        for each, trigger in changes.items():
            since = max(self._back[each], self._gone[each])
            self.trigger[each] = trigger
            self._back[each] = self._ends[trigger]
            self._requested_ns[each] = max(self._requested_ns[each], self._end_ns[trigger])
            load[since : self._back[each]] -= self._bytes[each]

    def first_trigger(self, place: int, after_event: int) -> int | None:
        """Return the first possible trigger that ends after an event; None if there is none."""
        if not self._within[place]:
            return None
        usable = self._usable[self._context[place]]
        first = int(np.searchsorted(self._ends[usable], after_event, side="right"))
        if first == len(usable) or self._ends[usable[first]] >= self._needed_at[place]:
            return None
        return int(usable[first])


def _simulated_times(recorded_ns: Ints, starts: Ints, result: SimResult) -> Ints:
    """Return the times of events under the plan: every wait of an op delays all later events."""
    waits = sorted((int(starts[op]), ns) for op, _, _, ns in result.stalls if op >= 0)
    places = np.array([place for place, _ in waits], dtype=np.int64)
    later_ns = np.cumsum([0, *(ns for _, ns in waits)], dtype=np.int64)
    at = np.searchsorted(places, np.arange(len(recorded_ns)), side="right")
    simulated_ns: Ints = recorded_ns + later_ns[at]
    return simulated_ns
