"""A stream of memory events, as an allocator records them, and the step that repeats in it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap import _core
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline

_MIN_STEP_EVENTS = 50  # AutoSwap's threshold for a repeat (the paper's code, SwapGPU::Detection)


class Kind(enum.IntEnum):
    """What happens to an event's block."""

    MALLOC = 0
    FREE = 1
    READ = 2
    WRITE = 3
    LAYER = 4  # a layer starts to use the block


@dataclass(frozen=True, eq=False)
class Events:
    """n events in the order of time.

    Attributes:
        kind: int8[n], values of `Kind`.
        block: int64[n]; identifies a block from its allocation to its free.
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
    """One step of `events`: ``length`` events from ``start`` on, followed by the next step."""

    events: Events
    start: int
    length: int


class NoStepFound(ValueError):
    """A stream of events has no repeating step."""


def find_step(events: Events, min_events: int = _MIN_STEP_EVENTS) -> Step:
    """Return the repeating step, found without addresses.

    An allocation is encoded as its size, any other event as its kind and its distance to the
    block's previous event. A step is the longest sequence of such codes that is followed by itself.

    Args:
        events: Events of at least two steps.
        min_events: Shortest repeat that counts as a step. Defaults to 50.

    Returns:
        The first repeat, shifted to start at an allocation. The next step follows it, so its end is
        known.

    Raises:
        NoStepFound: No sequence of `min_events` events repeats.

    Source: Zhang et al., arXiv 1903.06631, section III (iteration detection); there O(n^2).
    """
    codes = _codes(events)
    start, length = _core.longest_repetition(codes, min_events)
    if length == 0:
        raise NoStepFound(
            f"no sequence of {min_events} or more events repeats among these {len(events)}: the "
            "trace must hold two equal whole steps"
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
    # The kind distinguishes sizes from distances.
    value = np.where(events.kind == Kind.MALLOC, events.bytes, distance)
    return (value * kinds + events.kind).astype(np.int64)


def timeline_of(step: Step, min_bytes: int = 1 << 20) -> Timeline:
    """Convert a step to a timeline for planners.

    An access lasts until the next event, since the recording has no ends. Each write makes a new
    tensor. A block that the step neither allocates nor frees may be absent from its last access to
    its first access in the next step.

    Args:
        step: The result of `find_step`.
        min_bytes: Smaller blocks have no absences.
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
    # In a persistent block, a tensor read before the first write was written in the previous step.
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
