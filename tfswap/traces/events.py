"""A stream of memory events, as allocators record them, and the step that repeats in it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap import _core
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline

_LEAST_STEP_EVENTS = 50  # AutoSwap's own threshold for a repeat (papers' code, SwapGPU::Detection)


class Kind(enum.IntEnum):
    """What an event says about its block."""

    MALLOC = 0
    FREE = 1
    READ = 2
    WRITE = 3
    LAYER = 4  # a layer begins to work with it


@dataclass(frozen=True, eq=False)
class Events:
    """n events in the order in which they happened.

    Attributes:
        kind: int8[n], of `Kind`.
        block: int64[n]; events of one block (from its allocation to its free) have one number.
        bytes: int64[n]; the block's size.
        time_ns: int64[n], ascending.
    """

    kind: NDArray[np.int8]
    block: NDArray[np.int64]
    bytes: NDArray[np.int64]
    time_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Step:
    """One step of `events`: ``length`` events from ``start`` on; the next step follows."""

    events: Events
    start: int
    length: int


class NoStepFound(ValueError):
    """Nothing repeats in a stream of events."""


def find_step(events: Events, min_events: int = _LEAST_STEP_EVENTS) -> Step:
    """The step that repeats, without addresses.

    An allocation is coded as its size, any other event as its kind and its distance to the block's
    event before it; a step is the longest stretch of such codes that follows itself.

    Args:
        events: Two steps of them at least.
        min_events: A shorter repeat is no step. Defaults to 50.

    Returns:
        The first of the repeating stretches, moved on to an allocation: a step follows it, which
        says when it ends.

    Raises:
        NoStepFound: Nothing that long repeats.

    Source: Zhang et al., arXiv 1903.06631, section III (iteration detection); there O(n^2).
    """
    codes = _codes(events)
    start, length = _core.longest_repetition(codes, min_events)
    if length == 0:
        raise NoStepFound(
            f"no stretch of {min_events} or more events repeats among these {len(events)}: the "
            "trace must hold two whole steps that do the same"
        )
    allocations = np.flatnonzero(events.kind == Kind.MALLOC)
    place = int(np.searchsorted(allocations, start))
    moved = int(allocations[place]) if place < len(allocations) else start
    return Step(events, moved if moved < start + length else start, length)


def _codes(events: Events) -> NDArray[np.int64]:
    order = np.lexsort((np.arange(len(events)), events.block))
    distance = np.zeros(len(events), dtype=np.int64)
    same = events.block[order][1:] == events.block[order][:-1]
    distance[order[1:]] = np.where(same, order[1:] - order[:-1], 0)
    kinds = len(Kind)
    # Sizes and distances are told apart by the kind.
    value = np.where(events.kind == Kind.MALLOC, events.bytes, distance)
    return (value * kinds + events.kind).astype(np.int64)


def timeline_of(step: Step, min_bytes: int = 1 << 20) -> Timeline:
    """The step as planners see it.

    An access lasts until the next event: the recording has no ends. Each write makes a new tensor.
    A block that the step neither allocates nor frees may be absent from its last access to its
    first one of the next step.

    Args:
        step: From `find_step`.
        min_bytes: Absences of smaller blocks are left out.
    """
    events = step.events
    inside = slice(step.start, step.start + step.length)
    origin_ns = int(events.time_ns[step.start])
    after = step.start + step.length
    if after < len(events):
        end_ns = int(events.time_ns[after]) - origin_ns
    else:
        end_ns = int(events.time_ns[after - 1]) - origin_ns
    kinds = events.kind[inside]
    times = np.append(events.time_ns[inside] - origin_ns, end_ns)

    places: dict[int, int] = {}
    sizes: list[int] = []
    alloc_ns: list[int] = []
    free_ns: list[int] = []
    uses: list[list[tuple[int, bool]]] = []
    ops: list[int] = []
    blocks = events.block[inside]
    for i in range(step.length):
        block = int(blocks[i])
        place = places.get(block)
        if place is None:
            place = places[block] = len(sizes)
            sizes.append(int(events.bytes[step.start + i]))
            alloc_ns.append(int(times[i]) if kinds[i] == Kind.MALLOC else -1)
            free_ns.append(OUTLIVES_STEP_NS)
            uses.append([])
        if kinds[i] == Kind.FREE:
            free_ns[place] = int(times[i])
        elif kinds[i] in (Kind.READ, Kind.WRITE):
            uses[place].append((len(ops), bool(kinds[i] == Kind.WRITE)))
            ops.append(i)

    names = [f"{Kind(kinds[i]).name.capitalize()}{n}" for n, i in enumerate(ops)]
    starts = times[ops]
    ends = times[np.asarray(ops, dtype=np.int64) + 1]
    absences: list[Absence] = []
    for place, accesses in enumerate(uses):
        if sizes[place] >= min_bytes:
            stays = alloc_ns[place] < 0 and free_ns[place] == OUTLIVES_STEP_NS
            absences += _absences(place, accesses, stays)
    return Timeline(
        op_names=tuple(names),
        op_start_ns=starts.astype(np.int64),
        op_end_ns=ends.astype(np.int64),
        op_gateable=np.ones(len(ops), dtype=bool),
        op_context=np.zeros(len(ops), dtype=np.int32),
        resident_bytes=0,
        buffer_bytes=np.array(sizes, dtype=np.int64),
        buffer_alloc_ns=np.array(alloc_ns, dtype=np.int64),
        buffer_free_ns=np.array(free_ns, dtype=np.int64),
        absences=tuple(absences),
        step_ns=end_ns,
    )


def _absences(place: int, accesses: list[tuple[int, bool]], stays: bool) -> list[Absence]:
    absences = []
    # Of a block that stays, what is read before the first write was written a step before.
    writers = [op for op, writes in accesses if writes]
    tensor = writers[-1] if stays and writers else -1
    producer = -1
    for (after, writes), (before, _) in zip(accesses, accesses[1:], strict=False):
        if writes:
            producer = tensor = after
        if before > after + 1:
            absences.append(Absence(place, f"b{place}@{tensor}:0", producer, after, before))
    if stays and accesses:
        last, writes = accesses[-1]
        if writes:
            producer = tensor = last
        absences.append(Absence(place, f"b{place}@{tensor}:0", producer, last, accesses[0][0]))
    return absences
