"""Which tier of far memory each swapped buffer goes to, and whether it is encoded there.

A planner chooses what leaves, under one link. Then each far copy gets a *place*: as it is in host
memory, encoded there, or in the file. Three ways to decide about encoding:

``auto``
    What shortens the step in the simulator, with the work of cores that copies and codecs take from
    its ops: by local search over all far copies, so a codec that frees the link for others counts.
``cswap``
    The inequality of CSWAP (Chen et al., CLUSTER 2021, section IV-B; CSWAP+, TPDS 2022), for each
    buffer by itself: the codec's time in full against the part of the transfer that the ops beside
    it do not hide.
a codec's name
    All are encoded by it.

Lossy codecs are further choices for tensors whose ratios have them (``lossy_choice.py``). Under a
lossless codec's name they are taken as under ``cswap``.

The file takes what host memory has no room for; there also by search, from what the planner chose
under the file's link.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tfswap.machine import codecs
from tfswap.machine.far_tier import COMPRESSED, FILE, HOST, CodecSpeed, FarTier
from tfswap.machine.link import NO_LIMIT, Link
from tfswap.machine.machine import cores
from tfswap.planning.planners.hidden_times import hidden_times
from tfswap.planning.simulator import SimResult, Swap, simulate
from tfswap.step.timeline import Timeline

AUTO, CSWAP = "auto", "cswap"

Ratios = Mapping[str, Mapping[str, float]]
"""Of tensors, by codec: encoded bytes / bytes."""

WORTHWHILE = 0.97
"""A far copy that is encoded keeps this part of its bytes at most."""

# Each further pass of the search finds less.
_MAX_PASSES = 4


@dataclass(frozen=True)
class Place:
    """Where a far copy is kept.

    Attributes:
        tier: "host", "compressed" or "file".
        codec: of the compressed tier.
        ratio: what is kept of its bytes.
        threads: of the host that encode and decode it.
    """

    tier: str
    codec: str = ""
    ratio: float = 1.0
    threads: int = 1


@dataclass(frozen=True)
class FarMemory:
    """The tiers that there are.

    Attributes:
        host: as it is; encoded buffers cross the same link, and share its capacity.
        file: None: there is none.
        codecs: that may be used; one with several numbers of threads is in it as often.
        whole_blocks: encoding frees no host memory: how long a buffer becomes is known too late,
            so each has room for all of it.
    """

    host: FarTier
    file: FarTier | None = None
    codecs: tuple[CodecSpeed, ...] = ()
    whole_blocks: bool = False

    @property
    def links(self) -> Sequence[Link]:
        """What the simulator is given, by its number of the tier."""
        return (self.host,) if self.file is None else (self.host, self.file)


@dataclass(frozen=True)
class Assignment:
    """Swaps with their places.

    Attributes:
        swaps: by absence, as the simulator takes them.
        places: of each far copy, by tensor.
        result: simulated without a budget.
        cost_ns: the step's time, and what its ops lose to copies and codecs.
    """

    swaps: tuple[Swap, ...]
    places: dict[str, Place]
    result: SimResult
    cost_ns: int


class FarMemoryTooSmall(ValueError):
    """What is to leave the device has room nowhere.

    Attributes:
        needed_bytes: what far memory must hold at once.
        capacity_bytes: what it can hold.
    """

    def __init__(self, message: str, needed_bytes: int, capacity_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.capacity_bytes = capacity_bytes


def assign(
    timeline: Timeline,
    swaps: Iterable[Swap],
    far: FarMemory,
    ratios: Ratios,
    *,
    codec: str | None = AUTO,
    budget_bytes: int = NO_LIMIT,
    deadline_s: float | None = None,
) -> Assignment:
    """Give each far copy its place.

    Args:
        timeline: one unswapped step.
        swaps: what a planner chose; tiers and codecs in them are ignored.
        far: the tiers.
        ratios: what codecs make of the tensors; one that is not in it is not encoded.
        codec: "auto", "cswap", a codec's name, or None: nothing is encoded.
        budget_bytes: what "auto" keeps the load within, if the load as it is without codecs is:
            shorter copies-in come back earlier.
        deadline_s: when the search is to end, on `time.monotonic`'s clock.

    Raises:
        FarMemoryTooSmall: the tiers together cannot hold what leaves.
    """
    search = _Search(timeline, tuple(sorted(swaps)), far, ratios, budget_bytes)
    names = dict.fromkeys(speed.name for speed in far.codecs)
    # "auto" begins with the best of what others do.
    begun = []
    failure: FarMemoryTooSmall | None = None
    for rule in (None, CSWAP, *names) if codec == AUTO else (codec,):
        for threads in search.thread_counts if rule is not None else (0,):
            try:
                begun.append(search.ruled(rule, threads, deadline_s))
            except FarMemoryTooSmall as error:
                failure = failure or error
    if failure is not None and not begun:
        raise failure
    search.best = min(begun, key=lambda each: (not search.keeps_budget(each), each.cost_ns))
    if codec == AUTO:
        search.improve(encode=True, deadline_s=deadline_s)
    return search.best


def at_places(
    timeline: Timeline,
    swaps: Iterable[Swap],
    far: FarMemory,
    ratios: Ratios,
    places: Mapping[str, Place],
) -> Assignment:
    """The same places with other ratios; what is not encoded any smaller stays encoded."""
    search = _Search(timeline, tuple(sorted(swaps)), far, ratios)
    now = {}
    for tensor, place in places.items():
        ratio = ratios.get(tensor, {}).get(place.codec, place.ratio)
        now[tensor] = replace(place, ratio=ratio)
    return search.tried(now)


def without_places(swaps: Iterable[Swap]) -> tuple[Swap, ...]:
    """The swaps as a planner states them: which tier they go to, and how, left out."""
    return tuple(Swap(swap.absence, swap.gate_op, swap.trigger_op) for swap in swaps)


def forms(timeline: Timeline, far: FarMemory, ratios: Ratios) -> NDArray[np.int64]:
    """How each absence's buffer is away for the least time, were it swapped: [absences, 3].

    Returns:
        `Swap`'s far_bytes, encode_ns and decode_ns, in memory.
    """
    swaps = tuple(Swap(absence) for absence in range(len(timeline.absences)))
    return _Search(timeline, swaps, far, ratios).shortest()


class _Search:
    """Places of all far copies, changed one at a time."""

    def __init__(
        self,
        timeline: Timeline,
        swaps: tuple[Swap, ...],
        far: FarMemory,
        ratios: Ratios,
        budget_bytes: int = NO_LIMIT,
    ) -> None:
        self._timeline = timeline
        self._swaps = swaps
        self._far = far
        self._ratios = ratios
        self._speeds = {(speed.name, speed.threads): speed for speed in far.codecs}
        self._of_tensor: dict[str, list[Swap]] = defaultdict(list)
        for swap in swaps:
            self._of_tensor[timeline.absences[swap.absence].tensor].append(swap)
        self.best = self.tried(dict.fromkeys(self._of_tensor, Place(HOST)))
        self._limit_bytes = max(budget_bytes, self.best.result.peak_bytes)

    def keeps_budget(self, assignment: Assignment) -> bool:
        """Whether the load is within the budget, or no higher than without codecs."""
        return assignment.result.peak_bytes <= self._limit_bytes

    @property
    def thread_counts(self) -> Sequence[int]:
        """Of the codecs; (0,) without any."""
        return sorted({threads for _, threads in self._speeds}) or (0,)

    def ruled(self, codec: str | None, threads: int, deadline_s: float | None) -> Assignment:
        """Encoded by one rule, by so many threads at most; only the file's part is searched for."""
        self.begin(codec, threads)
        self.fit()
        if self._far.file is not None:
            self.improve(encode=False, deadline_s=deadline_s)
        return self.best

    def begin(self, codec: str | None, threads: int) -> None:
        """Places before any search."""
        places = {}
        for tensor in self._of_tensor:
            places[tensor] = Place(HOST)
            for place in self._encoded_by(tensor, threads) if codec is not None else ():
                by_inequality = codec == CSWAP or place.codec in codecs.LOSSY
                if place.codec == codec or (by_inequality and self._pays(tensor, place)):
                    places[tensor] = place
                    break
        self.best = self.tried(places)

    def fit(self) -> None:
        """Moves what host memory has no room for: into the file, or encodes it."""
        file = self._far.file
        needed_bytes = self._host_bytes(self.best)
        for tensor in self._by_size():
            if self._host_bytes(self.best) <= self._far.host.capacity_bytes:
                return
            for place in self._encoded(tensor)[:1] if file is None else (Place(FILE),):
                self.best = self.tried({**self.best.places, tensor: place})
        if self._host_bytes(self.best) <= self._far.host.capacity_bytes:
            return
        capacity_bytes = self._far.host.capacity_bytes
        mib = 1 << 20
        raise FarMemoryTooSmall(
            f"far memory is too small: {-(-needed_bytes // mib)} MiB must be away from the device "
            f"at once, and host_limit is {capacity_bytes // mib} MiB. Raise host_limit to "
            f"{-(-needed_bytes // mib)} MiB, or give a spill_dir on a disk for the rest.",
            needed_bytes,
            capacity_bytes,
        )

    def improve(self, *, encode: bool, deadline_s: float | None) -> None:
        """Changes places as long as that shortens the step."""
        for _ in range(_MAX_PASSES):
            before_ns = self.best.cost_ns
            for tensor in self._by_size():
                for place in self._choices(tensor, encode):
                    if deadline_s is not None and time.monotonic() > deadline_s:
                        return
                    if place == self.best.places[tensor]:
                        continue
                    tried = self.tried({**self.best.places, tensor: place})
                    if tried.cost_ns >= self.best.cost_ns or not self._fits(tried):
                        continue
                    if self.keeps_budget(tried) or not self.keeps_budget(self.best):
                        self.best = tried
            if self.best.cost_ns >= before_ns:
                return

    def shortest(self) -> NDArray[np.int64]:
        """By absence, far_bytes, encode_ns and decode_ns of what takes least time by itself."""
        host = self._far.host

        def taken_ns(choice: tuple[Swap, int]) -> float:
            placed, cores_ns = choice
            bytes_ = self._size_bytes(placed) if placed.far_bytes < 0 else placed.far_bytes
            link_ns = bytes_ * 1e9 / host.out_bytes_per_s + bytes_ * 1e9 / host.in_bytes_per_s
            return link_ns + placed.encode_ns + placed.decode_ns + cores_ns

        found = np.zeros((len(self._swaps), 3), dtype=np.int64)
        for tensor, own in self._of_tensor.items():
            places = (Place(HOST), *self._encoded(tensor))
            for swap in own:
                best, _ = min((self._placed(swap, place) for place in places), key=taken_ns)
                found[swap.absence] = best.far_bytes, best.encode_ns, best.decode_ns
        return found

    def _size_bytes(self, swap: Swap) -> int:
        return int(self._timeline.buffer_bytes[self._timeline.absences[swap.absence].buffer])

    def _choices(self, tensor: str, encode: bool) -> list[Place]:
        now = self.best.places[tensor]
        choices = [Place(HOST)] if encode or now.tier == FILE else []
        if encode:
            choices += self._encoded(tensor)
        if self._far.file is not None:
            choices.append(Place(FILE))
        return choices

    def _encoded(self, tensor: str) -> list[Place]:
        """The ways to encode a tensor, smallest first."""
        ratios = self._ratios.get(tensor, {})
        places = [
            Place(COMPRESSED, name, ratios[name], threads)
            for name, threads in self._speeds
            if ratios.get(name, 1.0) <= WORTHWHILE
        ]
        return sorted(places, key=lambda place: (place.ratio, place.threads))

    def _encoded_by(self, tensor: str, threads: int) -> list[Place]:
        """The same, each codec with the most threads that are not above that many, if it can."""
        chosen: dict[str, Place] = {}
        for place in self._encoded(tensor):
            if place.codec not in chosen or place.threads <= threads:
                chosen[place.codec] = place
        return list(chosen.values())

    def _by_size(self) -> list[str]:
        def size_bytes(tensor: str) -> int:
            return self._size_bytes(self._of_tensor[tensor][0])

        return sorted(self._of_tensor, key=lambda tensor: (-size_bytes(tensor), tensor))

    def _host_bytes(self, assignment: Assignment) -> int:
        return self._held_bytes(assignment)[0] if self._swaps else 0

    def _held_bytes(self, assignment: Assignment) -> Sequence[int]:
        """What each tier holds at most."""
        encoded = any(place.tier == COMPRESSED for place in assignment.places.values())
        if not (self._far.whole_blocks and encoded):
            return assignment.result.far_peak_bytes
        # As late as the codecs have it.
        whole = [replace(swap, far_bytes=-1) for swap in assignment.swaps]
        return simulate(self._timeline, whole, self._far.links).far_peak_bytes

    def _fits(self, assignment: Assignment) -> bool:
        held = self._held_bytes(assignment)
        return all(
            bytes_ <= link.capacity_bytes
            for bytes_, link in zip(held, (self._far.host, self._far.file), strict=False)
            if link is not None
        )

    def tried(self, places: dict[str, Place]) -> Assignment:
        """What those come to."""
        swaps = []
        working_ns = 0
        for tensor, own in self._of_tensor.items():
            for swap in own:
                placed, cores_ns = self._placed(swap, places[tensor])
                swaps.append(placed)
                working_ns += cores_ns
        swaps.sort()
        result = simulate(self._timeline, swaps, self._far.links)
        return Assignment(tuple(swaps), places, result, result.step_ns + working_ns)

    def _placed(self, swap: Swap, place: Place) -> tuple[Swap, int]:
        """The swap at its place, and what ops lose to its copies."""
        size_bytes = self._size_bytes(swap)
        plain = replace(swap, far_bytes=-1, encode_ns=0, decode_ns=0)
        if place.tier == FILE:
            assert self._far.file is not None
            return replace(plain, tier=1), self._far.file.copy_ns(size_bytes, size_bytes)
        host = self._far.host
        if place.tier == HOST:
            return replace(plain, tier=0), host.copy_ns(size_bytes, size_bytes)
        speed = self._speeds[place.codec, place.threads]
        far_bytes = int(size_bytes * place.ratio)
        encode_ns = speed.encode.ns(size_bytes, place.ratio)
        decode_ns = speed.decode.ns(size_bytes, place.ratio)
        # The link carries what is encoded already: the slower of both decides.
        placed = replace(
            plain,
            tier=0,
            far_bytes=far_bytes,
            encode_ns=max(0, encode_ns - round(far_bytes * 1e9 / host.out_bytes_per_s)),
            decode_ns=max(0, decode_ns - round(far_bytes * 1e9 / host.in_bytes_per_s)),
        )
        return placed, self._cores_ns(speed, encode_ns + decode_ns)

    @staticmethod
    def _cores_ns(speed: CodecSpeed, ns: int) -> int:
        return round(ns * (speed.threads / cores() + speed.device_part))

    def _pays(self, tensor: str, place: Place) -> bool:
        """CSWAP's inequality: T < T'."""
        timeline, host = self._timeline, self._far.host
        speed = self._speeds[place.codec, place.threads]
        t_with = t_without = 0.0
        for number, swap in enumerate(self._of_tensor[tensor]):
            absence = timeline.absences[swap.absence]
            size_bytes = int(timeline.buffer_bytes[absence.buffer])
            forward_ns, backward_ns = hidden_times(timeline, absence)
            directions = [(host.in_bytes_per_s, backward_ns, speed.decode)]
            if number == 0:
                directions.append((host.out_bytes_per_s, forward_ns, speed.encode))
            for bytes_per_s, hidden_ns, codec in directions:
                transfer_ns = size_bytes * 1e9 / bytes_per_s
                t_without += max(transfer_ns - hidden_ns, 0.0)
                t_with += max(transfer_ns * place.ratio - hidden_ns, 0.0)
                t_with += codec.ns(size_bytes, place.ratio)
        return t_with < t_without
