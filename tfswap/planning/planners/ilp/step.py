"""The step and its absences in the solver's units, and the faults of a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.link import Link
from tfswap.planning.planners.anchors import PlacementRequest, swaps_for
from tfswap.planning.planners.decision import Decision, budget_too_small
from tfswap.planning.planners.ilp.program import SLACK, Floats
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.planning.simulator import SimResult, core_tiers, simulate
from tfswap.step.timeline import Timeline, crosses_step_end

POLICY = "tvdnn_ilp"

Ints = NDArray[np.int64]

# In the solver's units the step takes 1000 and the largest buffer has size 1.
STEP = 1000.0
_FIRST_MOMENTS = 30
_MOMENTS_A_ROUND = 4


@dataclass(frozen=True)
class Gap:
    """An absence. Places are positions of events in the replay, times are in the solver's units.

    Attributes:
        absence: index into the timeline's absences.
        size: of the buffer.
        crosses: whether it continues in the next step.
        far_copy: buffer, tensor, and whether the buffer existed before the step.
        begins, ends: places of the end of the op before it and of the start of the op after it.
        made: place of the end of its producer; -1: before the step.
        made_at, due: end of the producer, and start of the op after the gap.
        out_time, in_time: of its copies.
    """

    absence: int
    size: float
    crosses: bool
    far_copy: tuple[int, str, bool]
    begins: int
    ends: int
    made: int
    made_at: float
    due: float
    out_time: float
    in_time: float

    @property
    def stays_far(self) -> bool:
        """Whether its far copy of the previous step is still valid, so it needs no copy-out."""
        return self.crosses and self.far_copy[2]

    def in_tail(self, place: int) -> bool:
        return place > self.begins and (self.crosses or place < self.ends)

    def in_head(self, place: int) -> bool:
        return place < self.ends and (self.crosses or place > self.begins)


@dataclass(frozen=True, eq=False)
class Step:
    """The step in the solver's units.

    Attributes:
        unit_ns, unit_bytes: units of all times, and of sizes and loads.
        at, load: time of each event of the replay, and the load above the budget after it.
        moments: places of the events that begin a moment: the load is over the budget, and it has
            changed or a gap has ended.
        changes: places of all events that change the load or end a gap, and of the step's end.
        starts, start_op, start_at: ascending places of op starts, their ops, and their times.
        ends, end_op, end_at: the same for op ends.
    """

    timeline: Timeline
    machine: Link
    budget_bytes: int
    min_bytes: int
    unit_ns: float
    unit_bytes: int
    gaps: tuple[Gap, ...]
    at: Floats
    load: Floats
    moments: Ints
    changes: Ints
    starts: Ints
    start_op: Ints
    start_at: Floats
    ends: Ints
    end_op: Ints
    end_at: Floats

    @staticmethod
    def of(timeline: Timeline, machine: Link, budget_bytes: int, min_bytes: int) -> Step:
        event_ns, event_load = timeline.core.events()
        op_starts, op_ends = (places.astype(np.int64) for places in timeline.core.op_positions())
        tier = core_tiers(machine)[0]
        unit_ns = max(timeline.step_ns, 1) / STEP
        unit_bytes = max(int(timeline.buffer_bytes.max(initial=1)), 1)
        gaps = []
        for index, absence in enumerate(timeline.absences):
            size = int(timeline.buffer_bytes[absence.buffer])
            producer = absence.producer_op
            if size < max(min_bytes, 1):
                continue
            gaps.append(
                Gap(
                    absence=index,
                    size=size / unit_bytes,
                    crosses=crosses_step_end(timeline, absence),
                    far_copy=(absence.buffer, absence.tensor, producer < 0),
                    begins=int(op_ends[absence.after_op]),
                    ends=int(op_starts[absence.before_op]),
                    made=-1 if producer < 0 else int(op_ends[producer]),
                    made_at=0.0 if producer < 0 else int(timeline.op_end_ns[producer]) / unit_ns,
                    due=int(timeline.op_start_ns[absence.before_op]) / unit_ns,
                    out_time=tier.out_duration_ns(size) / unit_ns,
                    in_time=tier.in_duration_ns(size) / unit_ns,
                )
            )
        start_op, end_op = np.argsort(op_starts), np.argsort(op_ends)
        changes = np.diff(event_load, prepend=timeline.resident_bytes) != 0
        changes[[gap.ends for gap in gaps]] = True
        over = changes & (event_load > budget_bytes)
        return Step(
            timeline=timeline,
            machine=machine,
            budget_bytes=budget_bytes,
            min_bytes=min_bytes,
            unit_ns=unit_ns,
            unit_bytes=unit_bytes,
            gaps=tuple(gaps),
            at=event_ns / unit_ns,
            load=(event_load - budget_bytes) / unit_bytes,
            moments=np.flatnonzero(over).astype(np.int64),
            changes=np.append(np.flatnonzero(changes), len(event_load)).astype(np.int64),
            starts=op_starts[start_op],
            start_op=start_op,
            start_at=timeline.op_start_ns[start_op] / unit_ns,
            ends=op_ends[end_op],
            end_op=end_op,
            end_at=timeline.op_end_ns[end_op] / unit_ns,
        )

    def least_loads(self) -> Ints:
        """Return the load of each part with every possible absence."""
        load = OpLoad.of(self.timeline)
        gaps = Gaps.of(self.timeline, load, self.min_bytes)
        least = load.bytes.copy()
        for i in range(len(gaps)):
            gaps.subtract(i, least)
        return least

    def check(self) -> None:
        """Check that the budget can be met at some speed of the link.

        Raises:
            BudgetTooSmall: if it cannot.
        """
        least = None
        for place in self.moments.tolist():
            gone = sum(g.size for g in self.gaps if g.in_tail(place) or g.in_head(place))
            missing = self.load[place] - gone
            if missing > SLACK:
                least = self.least_loads() if least is None else least
                part = self.starts_up_to(place)
                at_least = self.budget_bytes + round(missing * self.unit_bytes)
                least[part] = max(int(least[part]), at_least)
        if least is not None:
            raise budget_too_small(self.timeline, self.budget_bytes, least, POLICY)

    def all_requests(self) -> list[PlacementRequest]:
        """Request every gap at a moment: out at once, in when it is needed."""
        requests = []
        for gap in self.gaps:
            if any(gap.in_tail(p) or gap.in_head(p) for p in self.moments.tolist()):
                place = self.starts_up_to(gap.begins)
                gate = int(self.start_op[place]) if place < len(self.starts) else None
                requests.append(PlacementRequest(gap.absence, gate, None))
        return requests

    def plan(self, requests: list[PlacementRequest]) -> Decision:
        swaps = swaps_for(self.timeline, requests)
        return Decision(POLICY, swaps, simulate(self.timeline, swaps, self.machine))

    def time_to_spare(self, gap: Gap) -> float:
        """Return the slack of a gap after its copies in both directions."""
        due = gap.due + (STEP if gap.crosses else 0.0)
        return due - float(self.at[gap.begins]) - gap.out_time - gap.in_time

    def starts_up_to(self, place: int) -> int:
        """Return how many ops have started; the stall depends on this number only."""
        return int(np.searchsorted(self.starts, place, side="right"))

    def first_moments(self) -> set[int]:
        """Return the fullest moment of each of some intervals of the step."""
        stretch = (self.at[self.moments] * (_FIRST_MOMENTS / (STEP + 1))).astype(np.int64)
        return {
            int(max(self.moments[stretch == s], key=lambda place: self.load[place]))
            for s in np.unique(stretch)
        }

    def violated(self, result: SimResult, known: set[int]) -> list[int]:
        """Return moments where a plan exceeds the budget, fullest first, not adjacent."""
        shift = np.zeros(len(self.starts) + 1)
        place_of = {int(op): place for place, op in enumerate(self.start_op)}
        for op, _, _, ns in result.stalls:
            shift[place_of[op] + 1] += ns
        shift = np.cumsum(shift)
        times, loads = result.load_curve()
        over: list[tuple[int, int]] = []
        for rank, place in enumerate(self.moments.tolist()):
            real_ns = self.at[place] * self.unit_ns + shift[self.starts_up_to(place)]
            load = int(loads[np.searchsorted(times, real_ns + 0.5, side="right") - 1])
            if load > self.budget_bytes and place not in known:
                over.append((load, rank))
        chosen: list[int] = []
        for _, rank in sorted(over, reverse=True):
            if all(abs(rank - other) > 2 for other in chosen):
                chosen.append(rank)
        return [int(self.moments[rank]) for rank in chosen[:_MOMENTS_A_ROUND]]
