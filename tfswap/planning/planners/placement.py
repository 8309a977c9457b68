"""Choose gates and triggers for a set of absences, as late and as early as the budget allows.

Each swap first gets the gate and the trigger that suit the link best: a gate after the copy-out has
certainly ended, and a trigger early enough for the copy-in to complete in time. Where the load then
exceeds the limit, triggers move later (from the step's end, those needed last first) and gates move
earlier (from the step's start, those copied out first first). In this order the moved copies wait
least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfswap.planning.planners.candidates import Candidates, Ints, Mask, leaders, load_under
from tfswap.planning.simulator import Swap


@dataclass(frozen=True, eq=False)
class Placement:
    """Gates and triggers.

    Arrays have one entry per selected candidate.

    Attributes:
        places: the selected candidates, ascending.
        gone: first segment in which the buffer is certainly absent; for an absence across the
            step's end without a gate, one past the last segment.
        back: first segment that may contain it again.
        gate_start: segment opened by the gate's start; -1: no gate.
        load: maximal load of each segment.
        fits: whether the load is within the limit everywhere.
    """

    places: Ints
    gone: Ints
    back: Ints
    gate_start: Ints
    load: Ints
    fits: bool


@dataclass(frozen=True, eq=False)
class Windows:
    """When copies end and have to start if no op ever waits; ns, per selected candidate."""

    out_end_ns: Ints
    in_start_ns: Ints


def link_windows(
    candidates: Candidates, places: Ints, leads: Mask, spare: float = 0.0, early: Ints | None = None
) -> Windows:
    """Schedule copies-out first come, first served, and copies-in just in time.

    Args:
        candidates: all candidates.
        places: the selected ones, ascending.
        leads: which of ``places`` copy out.
        spare: additional time for each copy, as a fraction of its duration.
        early: ns by which each copy-in of ``places`` starts still earlier.
    """
    ns = candidates.segment_ns
    ready = ns[candidates.producer_end[places]]
    duration = np.where(leads, candidates.out_ns[places], 0)
    order = np.argsort(ready, kind="stable")
    order = order[leads[order]]
    out_end = np.zeros(len(places), dtype=np.int64)
    out_end[order] = _queue_ends(ready[order], duration[order])
    out_end += (spare * duration).astype(np.int64)

    need = ns[candidates.before_start[places]]
    duration = candidates.in_ns[places]
    order = np.argsort(-need, kind="stable")
    in_start = np.empty(len(places), dtype=np.int64)
    in_start[order] = -_queue_ends(-need[order], duration[order])
    in_start -= (spare * duration).astype(np.int64)
    if early is not None:
        in_start -= early
    return Windows(out_end_ns=out_end, in_start_ns=in_start)


def tight_windows(candidates: Candidates, places: Ints, leads: Mask) -> tuple[Ints, Ints]:
    """Return the longest absences that gates and triggers can enforce, as (gone, back) segments."""
    gone = np.where(leads, candidates.earliest_release[places], candidates.after_end[places])
    return gone, candidates.latest_trigger_end[places]


def place(
    candidates: Candidates,
    selected: Mask,
    limit_bytes: int,
    spare: float = 1.0,
    early: Ints | None = None,
    gate_all: bool = False,
) -> Placement:
    """Choose a gate and a trigger for each selected candidate.

    Args:
        candidates: all candidates.
        selected: which of them are swapped.
        limit_bytes: target of the load.
        spare: see ``link_windows``.
        early: ns per candidate by which its copy-in should start earlier.
        gate_all: whether all copies-out must end within the step, at any cost.
    """
    places = np.flatnonzero(selected)
    leads = leaders(candidates, selected)[places]
    windows = link_windows(
        candidates, places, leads, spare, early[places] if early is not None else None
    )
    earliest, latest = tight_windows(candidates, places, leads)
    back = _wanted_triggers(candidates, places, windows, earliest)
    back = _trigger_later(candidates, places, earliest, latest, back, limit_bytes)
    gate = _wanted_gates(candidates, places, windows, leads, back, gate_all)
    gate, gone, load = _gate_earlier(candidates, places, leads, gate, earliest, back, limit_bytes)
    return Placement(
        places=places,
        gone=gone,
        back=back,
        gate_start=gate,
        load=load,
        fits=bool(load.max() <= limit_bytes),
    )


def swaps_of(candidates: Candidates, placement: Placement) -> tuple[Swap, ...]:
    """Return the placement as swaps."""
    places = placement.places
    gate = np.full(len(places), -1, dtype=np.int64)
    trigger = np.full(len(places), -1, dtype=np.int64)
    for number, own in _by_context(candidates, places):
        anchors = candidates.anchors[number]
        gated = own[placement.gate_start[own] >= 0]
        gate[gated] = anchors.gate_op[
            np.searchsorted(anchors.gate_segment, placement.gate_start[gated])
        ]
        triggered = own[placement.back[own] > 0]
        trigger[triggered] = anchors.trigger_op[
            np.searchsorted(anchors.trigger_segment, placement.back[triggered])
        ]
    return tuple(map(Swap, candidates.absence[places].tolist(), gate.tolist(), trigger.tolist()))


def _queue_ends(ready: Ints, duration: Ints) -> Ints:
    """Return the ends of jobs that run one at a time in the given order, once they are ready."""
    done = np.cumsum(duration)
    return done + np.maximum.accumulate(ready - (done - duration)) if len(ready) else done


def _by_context(candidates: Candidates, places: Ints) -> list[tuple[int, Ints]]:
    context = candidates.context[places]
    return [(int(number), np.flatnonzero(context == number)) for number in np.unique(context)]


def _wanted_triggers(
    candidates: Candidates, places: Ints, windows: Windows, earliest: Ints
) -> Ints:
    """Return the last trigger in time for each copy-in, else the first one after the release."""
    wanted = np.searchsorted(candidates.segment_ns, windows.in_start_ns, side="right") - 1
    back = np.empty(len(places), dtype=np.int64)
    for number, own in _by_context(candidates, places):
        ends = candidates.anchors[number].trigger_segment
        crosses = candidates.crosses[places[own]]
        last_in_time = np.searchsorted(ends, wanted[own], side="right") - 1
        first_possible = np.searchsorted(ends, earliest[own], side="right")
        # -1: the start of the step.
        first_possible = np.where(crosses, -1, first_possible)
        latest = candidates.latest_trigger_end[places[own]]
        last_possible = np.where(latest > 0, np.searchsorted(ends, latest), -1)
        chosen = np.minimum(np.maximum(last_in_time, first_possible), last_possible)
        back[own] = np.where(chosen >= 0, np.append(ends, 0)[chosen], 0)
    return back


def _wanted_gates(
    candidates: Candidates,
    places: Ints,
    windows: Windows,
    leads: Mask,
    back: Ints,
    gate_all: bool,
) -> Ints:
    """Return the first gate after each copy-out, else the last one before the trigger's end.

    Absences across the step's end may have none.
    """
    wanted = np.searchsorted(candidates.segment_ns, windows.out_end_ns, side="left")
    wanted = np.maximum(wanted, candidates.earliest_gate_start[places])
    gate = np.full(len(places), -1, dtype=np.int64)
    for number, own in _by_context(candidates, places):
        starts = candidates.anchors[number].gate_segment
        first_after = np.searchsorted(starts, wanted[own], side="left")
        last_useful = np.searchsorted(starts, back[own], side="left") - 1
        crosses = candidates.crosses[places[own]]
        last_useful = np.where(crosses, len(starts) - 1, last_useful)
        chosen = starts[np.maximum(np.minimum(first_after, last_useful), 0)]
        # A copy-out that continues in the next step delays no op.
        goes_on = crosses & (first_after == len(starts)) & (not gate_all)
        gate[own] = np.where(goes_on, -1, chosen)
    return np.where(leads, gate, -1)


def _trigger_later(
    candidates: Candidates,
    places: Ints,
    earliest: Ints,
    latest: Ints,
    back: Ints,
    limit_bytes: int,
) -> Ints:
    """Move triggers after segments that are too full, from the step's end to its start."""
    back = back.copy()
    load = load_under(candidates, places, earliest, back)
    size = candidates.bytes[places]
    need = candidates.before_start[places]
    earliest = np.where(candidates.crosses[places], 0, earliest)
    segment = len(load)
    while True:
        full = np.flatnonzero(load[:segment] > limit_bytes)
        if not len(full):
            return back
        segment = int(full[-1])
        movable = np.flatnonzero((earliest <= segment) & (back <= segment) & (latest > segment))
        # Those needed last first: they lose the least time.
        for i in movable[np.lexsort((-size[movable], -need[movable]))]:
            if load[segment] <= limit_bytes:
                break
            ends = candidates.anchors[int(candidates.context[places[i]])].trigger_segment
            later = int(ends[np.searchsorted(ends, segment, side="right")])
            load[back[i] : later] -= size[i]
            back[i] = later


def _gate_earlier(
    candidates: Candidates,
    places: Ints,
    leads: Mask,
    gate: Ints,
    earliest: Ints,
    back: Ints,
    limit_bytes: int,
) -> tuple[Ints, Ints, Ints]:
    """Move gates before segments that are too full, from the step's start to its end."""
    gate = gate.copy()
    after_end = candidates.after_end[places]
    gone = np.maximum(gate, after_end)
    ungated = leads & candidates.crosses[places] & (gate < 0)
    gone[ungated] = len(candidates.segment_load)
    load = load_under(candidates, places, gone, back)
    size = candidates.bytes[places]
    ready = candidates.producer_end[places]
    crosses = candidates.crosses[places]
    segment = -1
    while True:
        full = np.flatnonzero(load[segment + 1 :] > limit_bytes)
        if not len(full):
            return gate, gone, load
        segment += 1 + int(full[0])
        movable = np.flatnonzero(leads & (gone > segment) & (earliest <= segment))
        movable = movable[crosses[movable] | (back[movable] > segment)]
        # Those copied out first first: they end soonest.
        for i in movable[np.argsort(ready[movable], kind="stable")]:
            if load[segment] <= limit_bytes:
                break
            starts = candidates.anchors[int(candidates.context[places[i]])].gate_segment
            gate[i] = starts[np.searchsorted(starts, segment, side="right") - 1]
            released = max(int(gate[i]), int(after_end[i]))
            until = int(gone[i]) if crosses[i] else min(int(gone[i]), int(back[i]))
            load[released:until] -= size[i]
            gone[i] = released
