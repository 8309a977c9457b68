"""The usable absences, and the step divided into segments at which gates and triggers act.

The starts and ends of ops, in chronological order, divide the step into segments::

    segment     0 |  1  |  2  |   3   |  4  |  5
                  A     A     B       B     C
                start  end  start    end  start

At any link speed, the memory of a swapped buffer is free from the segment that its gate's start (or
after_op's end, if later) opens, up to the segment that its trigger's end opens. So a plan whose
load over these segments is below the budget also keeps it in the simulator; the speed of the link
only decides how long ops wait.

An absence that crosses the step's end consists of two windows: from its gate to the end, and from
the start to its trigger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tfswap._core import SimResult, Tier
from tfswap.step.timeline import Timeline, absence_rows, crosses_step_end

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Anchors:
    """The ops of one control-flow context that can be gates and triggers.

    Attributes:
        gate_op: sorted by start.
        gate_segment: the segment that each of them opens when it starts; ascending.
        trigger_op: sorted by end.
        trigger_segment: the segment that each of them opens when it ends; ascending.
    """

    gate_op: Ints
    gate_segment: Ints
    trigger_op: Ints
    trigger_segment: Ints


@dataclass(frozen=True, eq=False)
class Candidates:
    """The usable absences of a timeline, and its segments.

    Arrays with a ``segment_`` name have one entry per segment, all others one per candidate.

    Attributes:
        segment_ns: start time of each segment.
        segment_load: maximal unswapped load in it.
        absence: index into the timeline's absences, ascending.
        bytes: size of the buffer.
        out_ns, in_ns: duration of its copies.
        far_copy: candidates with the same value share a copy-out.
        made_before: the far copy from the previous step that a candidate can share with one that
            crosses the step's end; -1 for candidates whose tensor is produced in this step.
        crosses: whether the absence continues in the next step.
        producer_end, after_end, before_start: segments that the starts and ends of these ops open.
        latest_trigger_end: segment opened by the last possible trigger; 0: the start of the step.
        earliest_gate_start: segment opened by the best gate for the earliest release.
        context: control-flow context.
        anchors: gates and triggers by context.
    """

    segment_ns: Ints
    segment_load: Ints
    absence: Ints
    bytes: Ints
    out_ns: Ints
    in_ns: Ints
    far_copy: Ints
    made_before: Ints
    crosses: Mask
    producer_end: Ints
    after_end: Ints
    before_start: Ints
    latest_trigger_end: Ints
    earliest_gate_start: Ints
    context: Ints
    anchors: dict[int, Anchors]

    def __len__(self) -> int:
        return len(self.absence)

    @property
    def segment_weight_ns(self) -> Ints:
        """Durations, at least 1 so that segments without duration count too."""
        following = np.append(self.segment_ns[1:], self.segment_ns[-1])
        return np.maximum(following - self.segment_ns, 1)

    @property
    def earliest_release(self) -> Ints:
        """The first segment in which the memory can be free, with a copy-out of its own."""
        return np.maximum(self.earliest_gate_start, self.after_end)


def find_candidates(timeline: Timeline, link: Tier, min_bytes: int) -> Candidates:
    """Return the absences of at least ``min_bytes`` that have a gate and a trigger.

    Args:
        timeline: the unswapped step.
        link: speeds of the copies.
        min_bytes: smaller buffers are not swapped.
    """
    segments = _cut(timeline)
    anchors = _find_anchors(timeline, segments)
    rows = absence_rows(timeline).astype(np.int64)
    buffer, producer, after, before, far_copy = rows.T
    size = timeline.buffer_bytes[buffer]
    producer_end = np.where(producer >= 0, segments.op_end[producer], 0)
    after_end = segments.op_end[after]
    before_start = segments.op_start[before]
    context = np.array([absence.context for absence in timeline.absences], dtype=np.int64)

    gate_start = np.full(len(rows), -1, dtype=np.int64)
    trigger_end = np.full(len(rows), -1, dtype=np.int64)
    for number, places in anchors.items():
        own = np.flatnonzero(context == number)
        gate_start[own] = _earliest_gate(places, producer_end[own], after_end[own])
        trigger_end[own] = _latest_at_most(places.trigger_segment, before_start[own] - 1)
    release = np.maximum(gate_start, after_end)
    crosses = np.array(
        [crosses_step_end(timeline, absence) for absence in timeline.absences], dtype=np.bool_
    )
    usable = (size >= max(min_bytes, 1)) & (gate_start >= 0) & (crosses | (trigger_end > release))
    kept = np.flatnonzero(usable)
    # Values of the previous step and of this step have separate far copies.
    made_before = np.where((producer < 0) | crosses, far_copy, -1)
    own_copy = 2 * far_copy + np.where((producer < 0) & ~crosses, 0, 1)
    return Candidates(
        segment_ns=segments.ns,
        segment_load=segments.load,
        absence=kept,
        bytes=size[kept],
        out_ns=np.array([link.out_duration_ns(int(b)) for b in size[kept]], dtype=np.int64),
        in_ns=np.array([link.in_duration_ns(int(b)) for b in size[kept]], dtype=np.int64),
        far_copy=own_copy[kept],
        made_before=made_before[kept],
        crosses=crosses[kept],
        producer_end=producer_end[kept],
        after_end=after_end[kept],
        before_start=before_start[kept],
        latest_trigger_end=np.maximum(trigger_end[kept], 0),
        earliest_gate_start=gate_start[kept],
        context=context[kept],
        anchors=anchors,
    )


def with_stalls(candidates: Candidates, timeline: Timeline, result: SimResult) -> Candidates:
    """Return the candidates on a time axis that includes the stalls of ``result``."""
    op_start = _cut(timeline).op_start
    wait_ns = np.zeros(len(candidates.segment_ns), dtype=np.int64)
    for op, _, _, ns in result.stalls:
        wait_ns[op_start[op]] += ns
    return replace(candidates, segment_ns=candidates.segment_ns + np.cumsum(wait_ns))


def leaders(candidates: Candidates, selected: Mask) -> Mask:
    """Return which selected candidates copy out: the earliest one of each far copy.

    Candidates that cross the step's end copy out for those that read the value in the next step.
    """
    places = np.flatnonzero(selected)
    _, first = np.unique(candidates.far_copy[places], return_index=True)
    leads = np.zeros(len(candidates), dtype=np.bool_)
    leads[places[first]] = True
    if candidates.crosses.any():
        carried = candidates.made_before[selected & candidates.crosses]
        served = np.isin(candidates.made_before, carried) & ~candidates.crosses
        leads[served & (candidates.made_before >= 0)] = False
    return leads


def load_under(candidates: Candidates, places: Ints, gone: Ints, back: Ints) -> Ints:
    """Return the load of each segment while ``places`` are absent in [``gone``, ``back``)."""
    relief = np.zeros(len(candidates.segment_load) + 1, dtype=np.int64)
    crosses = candidates.crosses[places]
    useful = crosses | (back > gone)
    size = candidates.bytes[places][useful]
    np.add.at(relief, gone[useful], size)
    np.add.at(relief, back[useful], -size)
    relief[0] += int(candidates.bytes[places][crosses].sum())
    return candidates.segment_load - np.cumsum(relief[:-1])


@dataclass(frozen=True, eq=False)
class _Segments:
    ns: Ints
    load: Ints
    op_start: Ints
    op_end: Ints


def _cut(timeline: Timeline) -> _Segments:
    event_ns, event_load = timeline.core.events()
    start_position, end_position = timeline.core.op_positions()
    borders = np.sort(np.concatenate([start_position, end_position])).astype(np.int64)
    first = borders[0] if len(borders) else len(event_ns)
    before_ops = max(int(event_load[:first].max(initial=0)), timeline.resident_bytes)
    inside = np.maximum.reduceat(event_load, borders) if len(borders) else event_load[:0]
    return _Segments(
        ns=np.concatenate([[0], event_ns[borders]]).astype(np.int64),
        load=np.concatenate([[before_ops], inside]).astype(np.int64),
        op_start=np.searchsorted(borders, start_position) + 1,
        op_end=np.searchsorted(borders, end_position) + 1,
    )


def _find_anchors(timeline: Timeline, segments: _Segments) -> dict[int, Anchors]:
    anchors = {}
    for context in sorted({absence.context for absence in timeline.absences}):
        ops = np.flatnonzero(timeline.op_gateable & (timeline.op_context == context))
        by_start = ops[np.argsort(segments.op_start[ops])]
        by_end = ops[np.argsort(segments.op_end[ops])]
        anchors[context] = Anchors(
            gate_op=by_start,
            gate_segment=segments.op_start[by_start],
            trigger_op=by_end,
            trigger_segment=segments.op_end[by_end],
        )
    return anchors


def _latest_at_most(ascending: Ints, limit: Ints) -> Ints:
    place = np.searchsorted(ascending, limit, side="right") - 1
    return np.where(place >= 0, np.append(ascending, -1)[place], -1)


def _earliest_gate(places: Anchors, producer_end: Ints, after_end: Ints) -> Ints:
    """Return the latest gate that does not delay the release, else the first one; -1: none.

    The memory is not released before after_op has ended, so earlier gates have no advantage.
    """
    free_of_charge = _latest_at_most(places.gate_segment, after_end)
    place = np.searchsorted(places.gate_segment, producer_end, side="right")
    first = np.append(places.gate_segment, -1)[place]
    return np.where(free_of_charge > producer_end, free_of_charge, first)
