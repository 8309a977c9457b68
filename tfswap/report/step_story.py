"""StepStory: one simulated step under a plan, for the report page and pictures."""

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
    """A wait caused by swapping.

    Attributes:
        op: Index of the op that waits.
        begin_ns: Begin of the wait, on the time axis of the swapped step.
        wait_ns: Duration.
        why: "gate", "swap-in", "budget" or "order".
        tensor: The tensor whose copy the op waits for, or "".
    """

    op: int
    begin_ns: int
    wait_ns: int
    why: str
    tensor: str


class Trip(NamedTuple):
    """A buffer's round trip to far memory, on the time axis of the swapped step.

    Attributes:
        tensor: Name of the tensor in the graph.
        buffer: Index of the buffer.
        size_bytes: Size on the device.
        stored_bytes: Size in far memory.
        tier: "host", "compressed" or "file".
        codec: Codec of the compressed tier.
        out_begin_ns, out_end_ns: The copy out; -1 if an earlier copy is reused.
        freed_ns: When the device memory is freed.
        in_begin_ns, in_end_ns: The copy in.
    """

    tensor: str
    buffer: int
    size_bytes: int
    stored_bytes: int
    tier: str
    codec: str
    out_begin_ns: int
    out_end_ns: int
    freed_ns: int
    in_begin_ns: int
    in_end_ns: int

    def is_away(self, at_ns: int) -> bool:
        """Return whether no device memory is in use; a trip may continue in the next step."""
        if self.freed_ns <= self.in_begin_ns:
            return self.freed_ns <= at_ns < self.in_begin_ns
        return at_ns >= self.freed_ns or at_ns < self.in_begin_ns

    def away_ns(self, step_ns: int) -> int:
        """Return the time from the begin of the copy out to the end of the copy in."""
        begin_ns = self.out_begin_ns if self.out_begin_ns >= 0 else self.freed_ns
        across_end = self.in_end_ns < begin_ns
        return self.in_end_ns - begin_ns + (step_ns if across_end else 0)


@dataclass(frozen=True, eq=False)
class StepStory:
    """One step without and with swaps.

    Attributes:
        timeline: The unswapped step.
        swaps: The simulated swaps.
        places: Far-memory tier and codec of each tensor; raw host memory if missing.
        machine: The link to host memory.
        links: Links of the tiers, indexed by the tier numbers in `swaps`.
        budget_bytes: The budget.
        policy: The planner that made the plan.
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
        """The simulated step with swaps."""
        return simulate(self.timeline, self.swaps, self.links)

    @cached_property
    def unswapped_load(self) -> tuple[Ints, Ints]:
        """The load without swaps: times in ns, and bytes in use from then on."""
        return self.timeline.unswapped_load()

    @property
    def unswapped_peak_bytes(self) -> int:
        """The peak load without swaps."""
        return int(self.unswapped_load[1].max(initial=0))

    @cached_property
    def load(self) -> tuple[Ints, Ints]:
        """The load with swaps: distinct times in ns, and bytes in use from then on."""
        times, load = self.result.load_curve()
        last = np.append(times[1:] != times[:-1], True) if len(times) else np.zeros(0, bool)
        # At equal times only the last value counts: a free and an allocation do not add up.
        return times[last], load[last]

    @cached_property
    def stalls(self) -> tuple[Stall, ...]:
        """The stalls, by time."""
        found = sorted(self.result.stalls, key=lambda stall: int(self._start_ns[stall[0]]))
        stalls, waited_ns = [], 0
        for op, why, place, wait_ns in found:
            tensor = self._tensor(place) if place >= 0 else ""
            begin_ns = int(self._start_ns[op]) + waited_ns
            stalls.append(Stall(op, begin_ns, wait_ns, why, tensor))
            waited_ns += wait_ns
        return tuple(stalls)

    def _shifted(self, times_ns: Ints) -> Ints:
        """Map times of the unswapped step to the axis of the swapped one: stalls shift them."""
        stalls = self.stalls
        if not stalls:
            return times_ns
        starts = self._start_ns[[stall.op for stall in stalls]]
        shifts = np.concatenate([[0], np.cumsum([stall.wait_ns for stall in stalls])])
        shifted: Ints = times_ns + shifts[np.searchsorted(starts, times_ns, side="right")]
        return shifted

    @cached_property
    def op_times(self) -> tuple[Ints, Ints]:
        """Start and end times of the ops, on the axis of the swapped step."""
        return self._shifted(self.timeline.op_start_ns), self._shifted(self.timeline.op_end_ns)

    @cached_property
    def trips(self) -> tuple[Trip, ...]:
        """The round trip of each swap."""
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
        """The tensor in each buffer, or the op that allocated it."""
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
        """Allocation and free times of the buffers, on the axis of the swapped step."""
        freed = self.timeline.buffer_free_ns
        step_ns = self.result.step_ns
        free_ns = np.where(
            freed == OUTLIVES_STEP_NS, step_ns, self._shifted(np.minimum(freed, step_ns))
        )
        return self._shifted(self.timeline.buffer_alloc_ns), free_ns

    def holders(self, at_ns: int, count: int = 5) -> list[tuple[str, int]]:
        """Return names and bytes of the largest buffers on the device at a time of the step."""
        alloc_ns, free_ns = self.buffer_times
        on_device = (alloc_ns <= at_ns) & (free_ns > at_ns)
        for trip in self.trips:
            if trip.is_away(at_ns):
                on_device[trip.buffer] = False
        buffers = np.flatnonzero(on_device)
        sizes = self.timeline.buffer_bytes[buffers]
        largest = buffers[np.argsort(-sizes, kind="stable")[:count]]
        return [(self.buffer_names[i], int(self.timeline.buffer_bytes[i])) for i in largest]

    def what_if(self, planning_time_s: float = 0.3) -> tuple[Answer, ...]:
        """Predict the step under other budgets, and with faster links to host memory.

        Args:
            planning_time_s: Time limit of each plan's search, in seconds.
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
    """Assign intervals to rows without overlap: each to the first row that is free.

    Args:
        begin_ns: Begin of each interval, ascending.
        end_ns: End of each interval.

    Returns:
        The row of each interval.
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
