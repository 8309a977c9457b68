"""Assign each swapped buffer a tier of far memory, and choose whether it is encoded there.

A planner chooses swaps for one link. Then each far copy gets a *place*: unencoded in host memory,
encoded in host memory, or in the file. There are three rules for encoding:

``auto``
    Encode where that shortens the simulated step, including the time of cores that copies and
    codecs take from its ops. A local search over all far copies decides, so it counts when a codec
    frees the link for other copies.
``cswap``
    The inequality of CSWAP (Chen et al., CLUSTER 2021, section IV-B; CSWAP+, TPDS 2022), for each
    buffer separately: the full time of the codec against the part of the transfer that ops do not
    hide.
a codec's name
    Encode all buffers with this codec.

Lossy codecs are additional choices for tensors that have ratios for them (``lossy_choice.py``).
Under the name of a lossless codec they are chosen as under ``cswap``.

The file takes what does not fit in host memory, also by search, starting from the planner's choice
for the file's link.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tfswap.machine import codecs
from tfswap.machine.far_tier import COMPRESSED, FILE, HOST, CodecSpeed
from tfswap.machine.link import NO_LIMIT
from tfswap.machine.machine import cores
from tfswap.planning.planners.assignment import (
    AUTO,
    CSWAP,
    MAX_ENCODED_RATIO,
    Assignment,
    FarMemory,
    FarMemoryTooSmall,
    Place,
    Ratios,
)
from tfswap.planning.planners.hidden_times import hidden_times
from tfswap.planning.simulator import Swap, simulate
from tfswap.step.timeline import Timeline

# Later passes of the search gain less.
_MAX_PASSES = 4


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
    """Assign each far copy a place.

    Args:
        timeline: one unswapped step.
        swaps: a planner's choice; tiers and codecs in them are ignored.
        far: the tiers.
        ratios: compression ratios; tensors without one are not encoded.
        codec: "auto", "cswap", a codec's name, or None: nothing is encoded.
        budget_bytes: limit of the load for "auto", or the load without codecs if that is higher
            (shorter copies-in return earlier).
        deadline_s: end of the search, in `time.monotonic`'s time.

    Raises:
        FarMemoryTooSmall: the tiers together cannot hold what is swapped out.
    """
    search = _Search(timeline, tuple(sorted(swaps)), far, ratios, budget_bytes)
    names = dict.fromkeys(speed.name for speed in far.codecs)
    # "auto" starts from the best result of the other rules.
    initial = []
    failure: FarMemoryTooSmall | None = None
    for rule in (None, CSWAP, *names) if codec == AUTO else (codec,):
        for threads in search.thread_counts if rule is not None else (0,):
            try:
                initial.append(search.apply_rule(rule, threads, deadline_s))
            except FarMemoryTooSmall as error:
                failure = failure or error.with_traceback(None)
    if failure is not None and not initial:
        try:
            raise failure
        finally:
            del failure  # otherwise its traceback and this frame keep each other
    search.best = min(initial, key=lambda each: (not search.keeps_budget(each), each.cost_ns))
    if codec == AUTO:
        search.improve(encode=True, deadline_s=deadline_s)
    return search.best


def evaluate_places(
    timeline: Timeline,
    swaps: Iterable[Swap],
    far: FarMemory,
    ratios: Ratios,
    places: Mapping[str, Place],
) -> Assignment:
    """Return the assignment with the same places under other ratios."""
    search = _Search(timeline, tuple(sorted(swaps)), far, ratios)
    updated = {}
    for tensor, place in places.items():
        ratio = ratios.get(tensor, {}).get(place.codec, place.ratio)
        updated[tensor] = replace(place, ratio=ratio)
    return search.evaluate(updated)


def strip_places(swaps: Iterable[Swap]) -> tuple[Swap, ...]:
    """Return the swaps without tiers and encoding, as planners choose them."""
    return tuple(Swap(swap.absence, swap.gate_op, swap.trigger_op) for swap in swaps)


def fastest_forms(timeline: Timeline, far: FarMemory, ratios: Ratios) -> NDArray[np.int64]:
    """Return the fastest encoding of each absence's buffer: int64[absences, 3].

    Returns:
        `Swap`'s far_bytes, encode_ns and decode_ns, in host memory.
    """
    swaps = tuple(Swap(absence) for absence in range(len(timeline.absences)))
    return _Search(timeline, swaps, far, ratios).fastest()


class _Search:
    """Local search over the places of all far copies."""

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
        self.best = self.evaluate(dict.fromkeys(self._of_tensor, Place(HOST)))
        self._limit_bytes = max(budget_bytes, self.best.result.peak_bytes)

    def keeps_budget(self, assignment: Assignment) -> bool:
        """Return whether the load is within the budget, or no higher than without codecs."""
        return assignment.result.peak_bytes <= self._limit_bytes

    @property
    def thread_counts(self) -> Sequence[int]:
        """Numbers of threads of the codecs; (0,) without codecs."""
        return sorted({threads for _, threads in self._speeds}) or (0,)

    def apply_rule(self, codec: str | None, threads: int, deadline_s: float | None) -> Assignment:
        """Encode by one rule with at most so many threads; search only for the part in the file."""
        self.initialize(codec, threads)
        self.fit_capacity()
        if self._far.file is not None:
            self.improve(encode=False, deadline_s=deadline_s)
        return self.best

    def initialize(self, codec: str | None, threads: int) -> None:
        """Set the places before any search."""
        places = {}
        for tensor in self._of_tensor:
            places[tensor] = Place(HOST)
            for place in self._encoded_by(tensor, threads) if codec is not None else ():
                by_inequality = codec == CSWAP or place.codec in codecs.LOSSY
                if place.codec == codec or (by_inequality and self._pays(tensor, place)):
                    places[tensor] = place
                    break
        self.best = self.evaluate(places)

    def fit_capacity(self) -> None:
        """Move what does not fit in host memory to the file, or encode it.

        Raises:
            FarMemoryTooSmall: the tiers together cannot hold what is swapped out.
        """
        file = self._far.file
        needed_bytes = self._host_bytes(self.best)
        for tensor in self._by_size():
            if self._host_bytes(self.best) <= self._far.host.capacity_bytes:
                return
            for place in self._encoded(tensor)[:1] if file is None else (Place(FILE),):
                self.best = self.evaluate({**self.best.places, tensor: place})
        if self._host_bytes(self.best) <= self._far.host.capacity_bytes:
            return
        capacity_bytes = self._far.host.capacity_bytes
        mib = 1 << 20
        raise FarMemoryTooSmall(
            f"far memory is too small: {-(-needed_bytes // mib)} MiB must be swapped out at once, "
            f"and host_limit is {capacity_bytes // mib} MiB. Raise host_limit to "
            f"{-(-needed_bytes // mib)} MiB, or set spill_dir to a folder on a disk.",
            needed_bytes,
            capacity_bytes,
        )

    def improve(self, *, encode: bool, deadline_s: float | None) -> None:
        """Change places while that shortens the step."""
        for _ in range(_MAX_PASSES):
            before_ns = self.best.cost_ns
            for tensor in self._by_size():
                for place in self._choices(tensor, encode):
                    if deadline_s is not None and time.monotonic() > deadline_s:
                        return
                    if place == self.best.places[tensor]:
                        continue
                    candidate = self.evaluate({**self.best.places, tensor: place})
                    if candidate.cost_ns >= self.best.cost_ns or not self._fits(candidate):
                        continue
                    if self.keeps_budget(candidate) or not self.keeps_budget(self.best):
                        self.best = candidate
            if self.best.cost_ns >= before_ns:
                return

    def fastest(self) -> NDArray[np.int64]:
        """Return far_bytes, encode_ns and decode_ns of the fastest encoding of each absence."""
        host = self._far.host

        def taken_ns(choice: tuple[Swap, int]) -> float:
            placed, cores_ns = choice
            bytes_ = self._size_bytes(placed) if placed.far_bytes < 0 else placed.far_bytes
            link_ns = bytes_ * 1e9 / host.out_bytes_per_s + bytes_ * 1e9 / host.in_bytes_per_s
            return link_ns + placed.encode_ns + placed.decode_ns + cores_ns

        found = np.zeros((len(self._swaps), 3), dtype=np.int64)
        for tensor, own_swaps in self._of_tensor.items():
            places = (Place(HOST), *self._encoded(tensor))
            for swap in own_swaps:
                best, _ = min((self._placed(swap, place) for place in places), key=taken_ns)
                found[swap.absence] = best.far_bytes, best.encode_ns, best.decode_ns
        return found

    def _size_bytes(self, swap: Swap) -> int:
        return int(self._timeline.buffer_bytes[self._timeline.absences[swap.absence].buffer])

    def _choices(self, tensor: str, encode: bool) -> list[Place]:
        current = self.best.places[tensor]
        choices = [Place(HOST)] if encode or current.tier == FILE else []
        if encode:
            choices += self._encoded(tensor)
        if self._far.file is not None:
            choices.append(Place(FILE))
        return choices

    def _encoded(self, tensor: str) -> list[Place]:
        """Return the ways to encode a tensor, smallest first."""
        ratios = self._ratios.get(tensor, {})
        places = [
            Place(COMPRESSED, name, ratios[name], threads)
            for name, threads in self._speeds
            if ratios.get(name, 1.0) <= MAX_ENCODED_RATIO
        ]
        return sorted(places, key=lambda place: (place.ratio, place.threads))

    def _encoded_by(self, tensor: str, threads: int) -> list[Place]:
        """Return one way per codec, with the most threads up to ``threads`` if there is one."""
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
        """Return the peak of each tier."""
        encoded = any(place.tier == COMPRESSED for place in assignment.places.values())
        if not (self._far.whole_blocks and encoded):
            return assignment.result.far_peak_bytes
        # Full sizes, with the timing of the codecs.
        whole = [replace(swap, far_bytes=-1) for swap in assignment.swaps]
        return simulate(self._timeline, whole, self._far.links).far_peak_bytes

    def _fits(self, assignment: Assignment) -> bool:
        held = self._held_bytes(assignment)
        return all(
            bytes_ <= link.capacity_bytes
            for bytes_, link in zip(held, (self._far.host, self._far.file), strict=False)
            if link is not None
        )

    def evaluate(self, places: dict[str, Place]) -> Assignment:
        """Simulate the places."""
        swaps = []
        working_ns = 0
        for tensor, own_swaps in self._of_tensor.items():
            for swap in own_swaps:
                placed, cores_ns = self._placed(swap, places[tensor])
                swaps.append(placed)
                working_ns += cores_ns
        swaps.sort()
        result = simulate(self._timeline, swaps, self._far.links)
        return Assignment(tuple(swaps), places, result, result.step_ns + working_ns)

    def _placed(self, swap: Swap, place: Place) -> tuple[Swap, int]:
        """Return the swap at its place, and the time that ops lose to its copies."""
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
        # The link copies encoded parts while the codec works on others: the slower one decides.
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
        """Return whether encoding satisfies CSWAP's inequality T < T'."""
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
