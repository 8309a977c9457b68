"""StepStory: one step under a plan, as simulated, for pages and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.far_tier import FILE
from tfswap.machine.link import Link
from tfswap.machine.machine import Machine
from tfswap.planning.planners.assignment import Place
from tfswap.planning.simulator import SimResult, Swap, simulate
from tfswap.planning.whatif import Answer, at_budget, budgets_between, with_faster_links
from tfswap.step.timeline import OUTLIVES_STEP_NS, Timeline, peak_load

Ints = NDArray[np.int64]


class Stall(NamedTuple):
    """A wait that swapping costs.

    Attributes:
        op: Index of the op that waits.
        begin_ns: When, on the axis of the swapped step.
        wait_ns: For how long.
        why: "gate", "swap-in", "budget" or "order".
        tensor: For whose copy; "" for none.
    """

    op: int
    begin_ns: int
    wait_ns: int
    why: str
    tensor: str


class Trip(NamedTuple):
    """A buffer's way to far memory and back, on the axis of the swapped step.

    Attributes:
        tensor: The graph's name of it.
        buffer: Its index.
        size_bytes: On the device.
        kept_bytes: In far memory.
        tier: "host", "compressed" or "file".
        codec: Of the compressed tier.
        out_begin_ns, out_end_ns: Of the copy out; -1 where an earlier one still serves.
        gone_ns: When its memory is free.
        in_begin_ns, in_end_ns: Of the copy in.
    """

    tensor: str
    buffer: int
    size_bytes: int
    kept_bytes: int
    tier: str
    codec: str
    out_begin_ns: int
    out_end_ns: int
    gone_ns: int
    in_begin_ns: int
    in_end_ns: int

    def is_away(self, at_ns: int) -> bool:
        """Whether it is on no part of the device; a trip may go on into the next step."""
        if self.gone_ns <= self.in_begin_ns:
            return self.gone_ns <= at_ns < self.in_begin_ns
        return at_ns >= self.gone_ns or at_ns < self.in_begin_ns

    def away_ns(self, step_ns: int) -> int:
        """How long it takes from leaving to being back."""
        begin_ns = self.out_begin_ns if self.out_begin_ns >= 0 else self.gone_ns
        across_end = self.in_end_ns < begin_ns
        return self.in_end_ns - begin_ns + (step_ns if across_end else 0)


@dataclass(frozen=True, eq=False)
class StepStory:
    """One step, without swaps and with them.

    Attributes:
        timeline: The unswapped step.
        swaps: As they were simulated.
        places: Where in far memory each tensor goes; what has none goes to host memory as it is.
        machine: The link to host memory.
        links: Of the tiers, by their numbers in `swaps`.
        budget_bytes: What the load may reach.
        policy: What made the plan.
    """

    timeline: Timeline
    swaps: tuple[Swap, ...]
    places: dict[str, Place]
    machine: Machine
    links: tuple[Link, ...]
    budget_bytes: int
    policy: str = ""

    @cached_property
    def result(self) -> SimResult:
        """The step with the swaps."""
        return simulate(self.timeline, self.swaps, self.links)

    @cached_property
    def unswapped_load(self) -> tuple[Ints, Ints]:
        """Times in ns, and bytes from then on."""
        return self.timeline.unswapped_load()

    @property
    def unswapped_peak_bytes(self) -> int:
        """Of that load."""
        return int(self.unswapped_load[1].max(initial=0))

    @cached_property
    def load(self) -> tuple[Ints, Ints]:
        """Likewise, with the swaps; each time once."""
        times, load = self.result.load_curve()
        last = np.append(times[1:] != times[:-1], True) if len(times) else np.zeros(0, bool)
        # Of one moment, what it comes to: a free and an allocation there do not add up.
        return times[last], load[last]

    @cached_property
    def stalls(self) -> tuple[Stall, ...]:
        """In the order of time."""
        found = sorted(self.result.stalls, key=lambda stall: int(self._start_ns[stall[0]]))
        stalls, waited_ns = [], 0
        for op, why, place, wait_ns in found:
            tensor = self._tensor(place) if place >= 0 else ""
            begin_ns = int(self._start_ns[op]) + waited_ns
            stalls.append(Stall(op, begin_ns, wait_ns, why, tensor))
            waited_ns += wait_ns
        return tuple(stalls)

    def moved(self, times_ns: Ints) -> Ints:
        """Moments of the unswapped step on the axis of the swapped one: stalls shift them."""
        stalls = self.stalls
        if not stalls:
            return times_ns
        starts = self._start_ns[[stall.op for stall in stalls]]
        shifts = np.concatenate([[0], np.cumsum([stall.wait_ns for stall in stalls])])
        shifted: Ints = times_ns + shifts[np.searchsorted(starts, times_ns, side="right")]
        return shifted

    @cached_property
    def op_times(self) -> tuple[Ints, Ints]:
        """When ops start and end, on the axis of the swapped step."""
        return self.moved(self.timeline.op_start_ns), self.moved(self.timeline.op_end_ns)

    @cached_property
    def trips(self) -> tuple[Trip, ...]:
        """Of each swap."""
        return tuple(
            Trip(
                tensor,
                buffer,
                size_bytes,
                size_bytes if swap.far_bytes < 0 else swap.far_bytes,
                place.tier,
                place.codec,
                *(int(time) for time in times),
            )
            for swap, times in zip(self.swaps, self.result.swap_times(), strict=True)
            for absence in [self.timeline.absences[swap.absence]]
            for tensor, buffer in [(absence.tensor, absence.buffer)]
            for size_bytes in [int(self.timeline.buffer_bytes[buffer])]
            for place in [self.places.get(tensor, Place("host" if swap.tier == 0 else FILE))]
        )

    @cached_property
    def buffer_names(self) -> tuple[str, ...]:
        """The tensor that each buffer holds, or the op that ran when it was allocated."""
        timeline = self.timeline
        names = [""] * len(timeline.buffer_bytes)
        for absence in timeline.absences:
            names[absence.buffer] = names[absence.buffer] or absence.tensor
        running = np.searchsorted(timeline.op_start_ns, timeline.buffer_alloc_ns, side="right") - 1
        for buffer, name in enumerate(names):
            if not name:
                op = int(running[buffer])
                names[buffer] = f"(of {timeline.op_names[op]})" if op >= 0 else "(from before)"
        return tuple(names)

    @cached_property
    def buffer_times(self) -> tuple[Ints, Ints]:
        """When buffers are allocated and freed, on the axis of the swapped step."""
        freed = self.timeline.buffer_free_ns
        step_ns = self.result.step_ns
        free_ns = np.where(
            freed == OUTLIVES_STEP_NS, step_ns, self.moved(np.minimum(freed, step_ns))
        )
        return self.moved(self.timeline.buffer_alloc_ns), free_ns

    def holders(self, at_ns: int, count: int = 5) -> list[tuple[str, int]]:
        """Names and bytes of the largest buffers on the device at a moment of the swapped step."""
        alloc_ns, free_ns = self.buffer_times
        there = (alloc_ns <= at_ns) & (free_ns > at_ns)
        for trip in self.trips:
            if trip.is_away(at_ns):
                there[trip.buffer] = False
        places = np.flatnonzero(there)
        sizes = self.timeline.buffer_bytes[places]
        largest = places[np.argsort(-sizes, kind="stable")[:count]]
        return [(self.buffer_names[i], int(self.timeline.buffer_bytes[i])) for i in largest]

    def what_if(self, planning_time_s: float = 0.3) -> tuple[Answer, ...]:
        """The step under other budgets, and with faster links to host memory.

        Args:
            planning_time_s: For each plan.
        """
        machine = self.machine
        peak_bytes = peak_load(self.timeline)
        budgets = {self.budget_bytes, *budgets_between(self.timeline, machine, 4)}
        wider = self.budget_bytes + (peak_bytes - self.budget_bytes) // 2
        if wider > self.budget_bytes:
            budgets.add(wider)
        found = [
            at_budget(self.timeline, machine, budget, planning_time_s=planning_time_s)
            for budget in sorted(budgets, reverse=True)
        ]
        found += with_faster_links(
            self.timeline, machine, self.budget_bytes, planning_time_s=planning_time_s
        )
        return tuple(found)

    @property
    def _start_ns(self) -> Ints:
        return self.timeline.op_start_ns

    def _tensor(self, place: int) -> str:
        return self.timeline.absences[self.swaps[place].absence].tensor


def lanes(begin_ns: Sequence[int] | Ints, end_ns: Sequence[int] | Ints) -> list[int]:
    """Rows in which things do not overlap: each goes to the first that is free when it begins.

    Args:
        begin_ns: Ascending.
        end_ns: Of each.
    """
    free_ns: list[int] = []
    rows = []
    for begin, end in zip(begin_ns, end_ns, strict=True):
        row = next((row for row, until in enumerate(free_ns) if until <= begin), len(free_ns))
        if row == len(free_ns):
            free_ns.append(0)
        free_ns[row] = max(int(end), int(begin))
        rows.append(row)
    return rows
