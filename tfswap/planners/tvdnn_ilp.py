"""tvDNN's optimal schedule: which absences are used and when each copy runs, by a MILP.

Source: Park, Cho, Jung, Lee, "tvDNN: GPU memory virtualization for deep learning with memory object
sectioning", PPoPP 2018, a poster: its text says that the optimal schedule is an ILP's, not which.
This is a reconstruction, over whole buffers (the paper's are cut in sections).

Moments k are stretches [t_k, v_k) in which the load is L_k, above the budget B, and no gap ends.
Stalls happen where ops start: what is at t_k in the recorded step is at T_k = t_k + S_k, and v_k at
V_k, with S >= 0 and ascending. For each gap g of b_g bytes, which takes o_g ns out and i_g ns in,
there are binary variables:

* u_g: it is used; x_gk: its copy-out has ended by T_k; y_gk: its copy-in begins at V_k or later.
  x ascends to u with k, y descends from u: in moment k the buffer is absent if x + y - u = 1.
* memory: sum over the gaps around k of b_g (x_gk + y_gk - u_g) >= L_k - B
* link out, first come, first served: C_j >= C_(j-1) + o_j u_j and C_j >= R_j + o_j u_j, where R_j
  is the end of what makes j; C_j <= T_k if x_jk. Besides, for all R and k: sum of o_j x_jk over
  what is made from R on <= T_k - R. Gaps with one far copy share one copy-out.
* link in: for all k and D: sum of i_g y_gk over what is needed up to D <= D - V_k
* the total wait is W or less; any solution will do.

W is searched instead of minimised: with W given, most x and y are known (a copy-out that would end
more than W late is not over in k), and what is left is solved in seconds. It begins with some
thirty moments; those in which a plan breaks the budget are added. Fewer only lower the bound.

What the MILP cannot say exactly is left out: copies-in may be preempted, stalls do not have to end
where a copy does, and what crosses the step's end has left in time. So every plan that the
simulator finds within the budget satisfies it, and where it has no solution no plan waits W or
less. A solution becomes gates and triggers, copies-in in the order of their deadlines. Absences
are added where these break the budget, swaps that the budget does not need are dropped, and what
waits longer than foretold is repaired by a second of `improve`'s local search. The simulator
has the last word.

Departures: buffers below ``min_bytes`` stay, in the plan and in the bound; an op that the graph
does not allow as an anchor is replaced by a neighbour; the best of `tvdnn_heuristic`, `greedy` and
the solutions is returned: where the time is over, or a solution waits longer than foretold, it may
be one of theirs.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tfswap.planners import greedy, tvdnn
from tfswap.planners.anchors import Wish, swaps_for
from tfswap.planners.bound import least_wait_ns
from tfswap.planners.decision import MIB, BudgetTooSmall, Decision, cost, over_budget, too_small
from tfswap.planners.improve import improved
from tfswap.planners.load import Gaps, OpLoad
from tfswap.simulator import Link, SimResult, core_tiers, simulate
from tfswap.timeline import Timeline, crosses_step_end, peak_load

POLICY = "tvdnn_ilp"

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Terms = Iterable[tuple[int, float]]

_FIRST_MOMENTS = 30
_MOMENTS_A_ROUND = 4
# The search ends when so little is left to try, in parts of the wait and of the step.
_GAP = 0.02
_GAP_OF_STEP = 1e-4
# From the bound to the least wait found, for the next W: small ones are solved soon.
_ADVANCE = 0.25
# Of the time left, for one MILP; and less time is not worth one.
_SHARE = 0.6
_LEAST_S = 0.05
# Of all time, for the local search around a solution.
_REPAIR_SHARE = 0.1
# The step is 1000 long and the largest buffer 1 to the solver, whose own tolerance is 1e-6.
_STEP = 1000.0
_SLACK = 2e-6


def plan_ilp(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    min_bytes: int = MIB,
    time_limit_s: float = 10.0,
) -> Decision:
    """``tvdnn_ilp``.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: what the load may reach.
        min_bytes: smaller buffers stay. Default 1 MiB.
        time_limit_s: when the search ends, with what it has. Default 10 s.

    Returns:
        The plan that waits least, and a note of how far from the optimum it is at most.

    Raises:
        BudgetTooSmall: if no plan was found within the budget.
        ValueError: if SciPy is not installed.
    """
    return optimum(timeline, machine, budget_bytes, min_bytes=min_bytes, time_limit_s=time_limit_s)[
        0
    ]


def optimum(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    min_bytes: int = MIB,
    time_limit_s: float = 10.0,
) -> tuple[Decision, int]:
    """The decision of `plan_ilp`, and what no schedule of swaps waits less than; ns."""
    begun_s = time.monotonic()
    if importlib.util.find_spec("scipy") is None:
        raise ValueError(f"{POLICY} needs the package scipy: pip install scipy")
    if peak_load(timeline) <= budget_bytes:
        return Decision(POLICY, (), simulate(timeline, (), machine)), 0
    step = _Step.of(timeline, machine, budget_bytes, min_bytes)
    step.check()
    found = []
    for planner in (tvdnn.plan_heuristic, greedy.plan_swaps):
        try:
            found.append(planner(timeline, machine, budget_bytes, min_bytes=min_bytes))
        except BudgetTooSmall:
            continue
    if not found:
        found = [step.plan(step.everything())]
    search = _Search(step, found, time_limit_s - (time.monotonic() - begun_s))
    search.run()
    within = [d for d in search.found if d.result.peak_bytes <= budget_bytes]
    if not within:
        nearest = min(search.found, key=lambda d: d.result.peak_bytes)
        raise over_budget(timeline, budget_bytes, nearest.result, POLICY)
    best = min(within, key=lambda d: cost(d.result, machine))
    least_ns = min(search.least_ns, best.result.stall_ns)
    notes: tuple[str, ...] = (_note(best.result.stall_ns, least_ns, time.monotonic() - begun_s),)
    if best.policy != POLICY:
        notes += (f"{POLICY}: the plan is that of {best.policy}",)
    return replace(best, policy=POLICY, notes=notes), least_ns


def _note(wait_ns: int, least_ns: int, took_s: float) -> str:
    if wait_ns <= least_ns:
        return f"{POLICY}: optimal in {took_s:.1f} s"
    gap = (wait_ns - least_ns) / wait_ns
    return (
        f"{POLICY}: stopped after {took_s:.1f} s, gap {100 * gap:.0f} %: no schedule of swaps "
        f"waits less than {least_ns / 1e6:.6g} ms"
    )


@dataclass(frozen=True)
class _Gap:
    """An absence; places are those of events in the replay, times in units of the solver.

    Attributes:
        absence: index into the timeline's absences.
        size: of the buffer.
        crosses: whether it goes on into the next step.
        far_copy: buffer, tensor, and whether it was there before the step.
        begins, ends: places of the end of the op before it and the start of the op after it.
        made: place of the end of what makes it; -1: before the step.
        made_at, due: when that ends, and the op after it starts.
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
        """It leaves without a copy: what came back for this step has not changed."""
        return self.crosses and self.far_copy[2]

    def in_tail(self, place: int) -> bool:
        return place > self.begins and (self.crosses or place < self.ends)

    def in_head(self, place: int) -> bool:
        return place < self.ends and (self.crosses or place > self.begins)


@dataclass(frozen=True, eq=False)
class _Step:
    """The step as the solver sees it.

    Attributes:
        unit_ns: of all times.
        at, load: time of each event of the replay, and the load after it above the budget.
        moments: places of the events that begin a moment: the load is over the budget, and changed,
            or a gap ended.
        changes: places of all events that change the load or end a gap, and of the step's end.
        starts, start_op, start_at: places of starts of ops, ascending; whose; and their times.
        ends, end_op, end_at: the same of ends.
    """

    timeline: Timeline
    machine: Link
    budget_bytes: int
    min_bytes: int
    unit_ns: float
    gaps: tuple[_Gap, ...]
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
    def of(timeline: Timeline, machine: Link, budget_bytes: int, min_bytes: int) -> _Step:
        event_ns, event_load = timeline.core.events()
        op_starts, op_ends = (places.astype(np.int64) for places in timeline.core.op_positions())
        tier = core_tiers(machine)[0]
        unit_ns = max(timeline.step_ns, 1) / _STEP
        unit_bytes = max(int(timeline.buffer_bytes.max(initial=1)), 1)
        gaps = []
        for index, absence in enumerate(timeline.absences):
            size = int(timeline.buffer_bytes[absence.buffer])
            producer = absence.producer_op
            if size < max(min_bytes, 1):
                continue
            gaps.append(
                _Gap(
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
        return _Step(
            timeline=timeline,
            machine=machine,
            budget_bytes=budget_bytes,
            min_bytes=min_bytes,
            unit_ns=unit_ns,
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

    def least(self) -> Ints:
        """The load of each part with everything absent that can be."""
        load = OpLoad.of(self.timeline)
        gaps = Gaps.of(self.timeline, load, self.min_bytes)
        least = load.bytes.copy()
        for i in range(len(gaps)):
            gaps.subtract(i, least)
        return least

    def check(self) -> None:
        """Whether the budget can be met at all, at any speed of the link."""
        for place in self.moments.tolist():
            gone = sum(g.size for g in self.gaps if g.in_tail(place) or g.in_head(place))
            if gone < self.load[place] - _SLACK:
                raise too_small(self.timeline, self.budget_bytes, self.least(), POLICY)

    def everything(self) -> list[Wish]:
        """All that is absent at a moment leaves at once and comes back when it is needed."""
        wishes = []
        for gap in self.gaps:
            if any(gap.in_tail(p) or gap.in_head(p) for p in self.moments.tolist()):
                place = self.starts_up_to(gap.begins)
                gate = int(self.start_op[place]) if place < len(self.starts) else None
                wishes.append(Wish(gap.absence, gate, None))
        return wishes

    def plan(self, wishes: list[Wish]) -> Decision:
        swaps = swaps_for(self.timeline, wishes)
        return Decision(POLICY, swaps, simulate(self.timeline, swaps, self.machine))

    def time_to_spare(self, gap: _Gap) -> float:
        """Of a gap, when it has been copied both ways."""
        due = gap.due + (_STEP if gap.crosses else 0.0)
        return due - float(self.at[gap.begins]) - gap.out_time - gap.in_time

    def starts_up_to(self, place: int) -> int:
        """How many ops have started; stalls after as many are the same."""
        return int(np.searchsorted(self.starts, place, side="right"))

    def first_moments(self) -> set[int]:
        """The fullest of each of some stretches of time."""
        stretch = (self.at[self.moments] * (_FIRST_MOMENTS / (_STEP + 1))).astype(np.int64)
        return {
            int(max(self.moments[stretch == s], key=lambda place: self.load[place]))
            for s in np.unique(stretch)
        }

    def violated(self, result: SimResult, known: set[int]) -> list[int]:
        """Moments at which a simulated plan is over the budget, the fullest first, apart."""
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


class _Program:
    """A MILP under construction. Rows are a little wider than asked for: a bound must be safe."""

    def __init__(self) -> None:
        self._integer: list[int] = []
        self._high: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._rows: list[tuple[float, float]] = []

    def variable(self, high: float = 1.0, integer: bool = False) -> int:
        """A variable from 0 on."""
        self._integer.append(integer)
        self._high.append(high)
        return len(self._high) - 1

    def row(self, terms: Terms, low: float = -np.inf, high: float = np.inf) -> None:
        """``low <= sum of coefficient * variable <= high``."""
        self._entries += [(len(self._rows), variable, factor) for variable, factor in terms]
        self._rows.append((low - _SLACK, high + _SLACK))

    def ascending(self, variables: list[int]) -> None:
        for before, after in zip(variables, variables[1:], strict=False):
            if before != after:
                self.row([(before, 1.0), (after, -1.0)], high=0.0)

    def solve(self, time_limit_s: float) -> tuple[bool, Floats | None]:
        """Whether it is proven that there is no solution; and a solution."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        if not self._entries:
            impossible = any(low > 0 or high < 0 for low, high in self._rows)
            return impossible, None if impossible else np.zeros(len(self._high))
        row, column, factor = zip(*self._entries, strict=True)
        matrix = csr_matrix((factor, (row, column)), shape=(len(self._rows), len(self._high)))
        low, high = zip(*self._rows, strict=True)
        outcome = milp(
            np.zeros(len(self._high)),
            integrality=np.array(self._integer),
            bounds=Bounds(0.0, np.array(self._high)),
            constraints=LinearConstraint(matrix, low, high),
            options={"time_limit": time_limit_s},
        )
        infeasible = 2
        return outcome.status == infeasible, outcome.x


@dataclass(frozen=True, eq=False)
class _Choice:
    """A gap's variables: used, and by rank of moment x in its tail and y in its head."""

    gap: _Gap
    used: int
    out: dict[int, int]
    back: dict[int, int]


@dataclass(frozen=True, eq=False)
class _CopyOut:
    """A copy-out that gaps of one far copy share: made, and by rank of moment over."""

    first: _Gap
    made: int
    over: dict[int, int]


class _Schedule:
    """The MILP of schedules that wait ``wait`` at most."""

    def __init__(self, step: _Step, moments: set[int], wait: float) -> None:
        self._step, self._wait = step, wait + _SLACK
        self._moments = sorted(moments)
        self._program = _Program()
        places = np.array(self._moments, dtype=np.int64)
        self._at = step.at[places]
        # Where each moment is over.
        self._over = step.changes[np.searchsorted(step.changes, places, side="right")]
        self._over_at = np.append(step.at, _STEP)[self._over]
        used_far = {g.far_copy[:2] for g in step.gaps if g.crosses}
        # What came back from the step before, and leaves again without a copy.
        self._read_again = {g.far_copy[:2] for g in step.gaps if g.far_copy[2] and not g.crosses}
        choices = [self._choose(gap, gap.far_copy[:2] in used_far) for gap in step.gaps]
        self.choices = [choice for choice in choices if choice is not None]
        self._copies_out = self._share_copies()
        self._set_stalls()
        self._limit_memory()
        self._queue_out()
        self._limit_link_out()
        self._limit_link_in()

    def solve(self, time_limit_s: float) -> tuple[bool, Floats | None]:
        """Whether there is none; and one."""
        return self._program.solve(time_limit_s)

    def stalls(self, solution: Floats) -> tuple[Ints, Floats]:
        """(number of ops that have started, stall up to then) where the latter may change."""
        counts = np.array(list(self._stall), dtype=np.int64)
        return counts, np.maximum.accumulate(solution[list(self._stall.values())])

    def absent(self, choice: _Choice, solution: Floats) -> tuple[int | None, int | None]:
        """The first moment at which a used gap has left; the place from which it may come back."""
        gap = choice.gap
        out = [r for r, x in choice.out.items() if solution[x] > 0.5]
        back = [r for r, y in choice.back.items() if solution[y] > 0.5]
        if not gap.crosses:
            out, back = [r for r in out if r in back], [r for r in back if r in out]
        first = self._moments[out[0]] if out else None
        return first, int(self._over[back[-1]]) if back else None

    def _choose(self, gap: _Gap, may_be_far: bool) -> _Choice | None:
        """Its variables where they are not known to be 0; None: it cannot be used."""
        program, late = self._program, self._wait
        free = gap.far_copy[2] and may_be_far
        tail = [r for r, place in enumerate(self._moments) if gap.in_tail(place)]
        head = [r for r, place in enumerate(self._moments) if gap.in_head(place)]
        in_time = [
            r
            for r in tail
            if free
            or self._moments[r] > gap.made
            and self._at[r] + late >= gap.made_at + gap.out_time
        ]
        can_wait = [
            r
            for r in head
            if self._over[r] <= gap.ends and self._over_at[r] + gap.in_time <= gap.due + late
        ]
        if gap.crosses:
            useful = bool(in_time or can_wait) or gap.far_copy[:2] in self._read_again
        else:
            useful = bool(set(in_time) & set(can_wait))
        if not useful:
            return None
        used = program.variable(integer=True)
        if gap.stays_far:
            out = dict.fromkeys(in_time, used)
        else:
            out = {r: program.variable(integer=True) for r in in_time}
        back = {r: program.variable(integer=True) for r in can_wait}
        if not gap.crosses and can_wait[0] == head[0]:
            back[head[0]] = used
        program.ascending([*out.values(), used])
        program.ascending([*reversed(back.values()), used])
        if not gap.crosses:
            for r in head:
                either = [(v[r], 1.0) for v in (out, back) if r in v]
                program.row(_sum([*either, (used, -1.0)]), low=0.0)
        return _Choice(gap, used, out, back)

    def _share_copies(self) -> list[_CopyOut]:
        program = self._program
        sharing: dict[tuple[int, str, bool], list[_Choice]] = {}
        back_from_before: dict[tuple[int, str], list[_Choice]] = {}
        for choice in self.choices:
            if choice.gap.crosses:
                back_from_before.setdefault(choice.gap.far_copy[:2], []).append(choice)
            if not choice.gap.stays_far:
                sharing.setdefault(choice.gap.far_copy, []).append(choice)
        copies = []
        for far_copy, choices in sharing.items():
            far = back_from_before.get(far_copy[:2], []) if far_copy[2] else []
            ranks = sorted({r for choice in choices for r in choice.out})
            if len(choices) == 1 and not far:
                made, over = choices[0].used, choices[0].out
            else:
                # What is far since the step before needs no copy.
                spared = [(choice.used, -1.0) for choice in far]
                over = {r: program.variable() for r in ranks}
                made = program.variable()
                program.ascending([*over.values(), made])
                for choice in choices:
                    program.row([(choice.used, 1.0), (made, -1.0), *spared], high=0.0)
                    for r, x in choice.out.items():
                        program.row([(x, 1.0), (over[r], -1.0), *spared], high=0.0)
            copies.append(_CopyOut(choices[0].gap, made, over))
        return sorted(copies, key=lambda copy: (copy.first.made, copy.first.absence))

    def _set_stalls(self) -> None:
        step = self._step
        places = [*self._moments, *(self._over - 1).tolist()]
        places += [copy.first.made for copy in self._copies_out]
        places += [choice.gap.ends for choice in self.choices]
        counts = sorted({step.starts_up_to(place) for place in places})
        self._stall = {
            count: self._program.variable(self._wait if count else 0.0) for count in counts
        }
        self._program.ascending(list(self._stall.values()))

    def _stall_at(self, place: int) -> int:
        return self._stall[self._step.starts_up_to(place)]

    def _limit_memory(self) -> None:
        for r, place in enumerate(self._moments):
            terms = []
            for choice in self.choices:
                size, used = choice.gap.size, choice.used
                if choice.gap.crosses:
                    away = choice.out if choice.gap.in_tail(place) else choice.back
                    if r in away:
                        terms.append((away[r], size))
                elif r in choice.out and r in choice.back:
                    terms += [(choice.out[r], size), (choice.back[r], size), (used, -size)]
            self._program.row(_sum(terms), low=float(self._step.load[place]))

    def _queue_out(self) -> None:
        """First come, first served; what is made at one moment may go in any order."""
        program = self._program
        ended: list[int] = []
        group: list[tuple[int, float]] = []
        longest = self._wait
        for i, copy in enumerate(self._copies_out):
            gap, own = copy.first, (copy.made, -copy.first.out_time)
            made = (self._stall_at(gap.made), -1.0)
            longest += gap.out_time
            group.append(own)
            most = gap.made_at + longest
            end = self._end_of([own], made, gap.made_at, ended, most)
            for r, x in copy.over.items():
                at = float(self._at[r])
                if most > at:
                    stall = (self._stall_at(self._moments[r]), -1.0)
                    program.row([(end, 1.0), (x, most - at), stall], high=most)
            if i + 1 == len(self._copies_out) or self._copies_out[i + 1].first.made != gap.made:
                if len(group) > 1:
                    end = self._end_of(group, made, gap.made_at, ended, most)
                ended, group = [end], []

    def _end_of(
        self,
        copies: list[tuple[int, float]],
        made: tuple[int, float],
        made_at: float,
        ended: list[int],
        most: float,
    ) -> int:
        """When copies have ended that begin when they are made, and those before have ended."""
        end = self._program.variable(most)
        self._program.row(_sum([(end, 1.0), *copies, made]), low=made_at)
        for before in ended:
            self._program.row(_sum([(end, 1.0), *copies, (before, -1.0)]), low=0.0)
        return end

    def _limit_link_out(self) -> None:
        for r in range(len(self._moments)):
            due = self._stall_at(self._moments[r])
            carried: list[tuple[int, float]] = []
            total = 0.0
            for i in range(len(self._copies_out) - 1, -1, -1):
                copy = self._copies_out[i]
                known = [x for rank, x in copy.over.items() if rank <= r]
                if copy.first.made >= self._moments[r] or not known:
                    continue
                carried.append((known[-1], copy.first.out_time))
                total += copy.first.out_time
                time_left = float(self._at[r]) - copy.first.made_at
                if total > time_left:
                    made = self._stall_at(copy.first.made)
                    self._program.row(_sum([*carried, (due, -1.0), (made, 1.0)]), high=time_left)

    def _limit_link_in(self) -> None:
        by_need = sorted(self.choices, key=lambda choice: choice.gap.ends)
        for r in range(-1, len(self._moments)):
            place = -1 if r < 0 else int(self._over[r])
            begin_at = 0.0 if r < 0 else float(self._over_at[r])
            begin = [] if r < 0 else [(self._stall_at(place - 1), 1.0)]
            carried: list[tuple[int, float]] = []
            total = 0.0
            for choice in by_need:
                gap = choice.gap
                if r < 0 or (not gap.crosses and place <= gap.begins):
                    after = choice.used
                elif r in choice.back:
                    after = choice.back[r]
                else:
                    continue
                carried.append((after, gap.in_time))
                total += gap.in_time
                time_left = gap.due - begin_at
                if total > time_left:
                    due = (self._stall_at(gap.ends), -1.0)
                    self._program.row(_sum([*carried, due, *begin]), high=time_left)


def _sum(terms: Terms) -> list[tuple[int, float]]:
    """Each variable once."""
    total: dict[int, float] = {}
    for variable, factor in terms:
        total[variable] = total.get(variable, 0.0) + factor
    return list(total.items())


class _Search:
    """Larger and larger waits, and moments added as plans turn out to need them."""

    def __init__(self, step: _Step, found: list[Decision], time_limit_s: float) -> None:
        self._step = step
        self._deadline_s = time.monotonic() + time_limit_s
        self._repair_s = _REPAIR_SHARE * time_limit_s
        self._moments = step.first_moments()
        self.found = found
        self.least_ns = least_wait_ns(step.timeline, step.machine, step.budget_bytes)

    @property
    def _wait_ns(self) -> int:
        within = [d for d in self.found if d.result.peak_bytes <= self._step.budget_bytes]
        return min((d.result.stall_ns for d in within), default=self._step.timeline.step_ns)

    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def run(self) -> None:
        """Until the gap is small, or the time over."""
        wait_ns = untried_ns = self.least_ns
        while self._left_s() > _LEAST_S and self.least_ns < self._wait_ns:
            untried_ns = self.least_ns if self._solve(wait_ns) else wait_ns
            near_ns = max(_GAP * self._wait_ns, _GAP_OF_STEP * self._step.timeline.step_ns, 1)
            if self._wait_ns - untried_ns <= near_ns:
                break
            wait_ns = untried_ns + max(int((self._wait_ns - untried_ns) * _ADVANCE), 1)

    def _solve(self, wait_ns: int) -> bool:
        """Whether a plan was found that waits no longer; what is impossible raises the bound."""
        while self._left_s() > _LEAST_S:
            schedule = _Schedule(self._step, self._moments, wait_ns / self._step.unit_ns)
            impossible, solution = schedule.solve(max(_SHARE * self._left_s(), _LEAST_S))
            if impossible:
                # Waits are whole.
                self.least_ns = wait_ns + 1
            if solution is None:
                return False
            plan = self._step.plan(_wishes(self._step, schedule, solution))
            violated = self._step.violated(plan.result, self._moments)
            if self._repaired(plan) <= wait_ns:
                return True
            if not violated:
                return False
            self._moments.update(violated)
        return False

    def _repaired(self, plan: Decision) -> int:
        """What the plan waits when it has been made to fit; ns."""
        step = self._step
        plan = self._pruned(self._filled(plan))
        if plan.result.peak_bytes <= step.budget_bytes:
            until_s = min(self._deadline_s, time.monotonic() + self._repair_s)
            plan = improved(
                plan, step.timeline, step.machine, step.budget_bytes, until_s, None, step.min_bytes
            )
        self.found.append(replace(plan, policy=POLICY))
        return self._wait_ns

    def _filled(self, plan: Decision) -> Decision:
        """With more absences where the budget is broken, those with most time to spare first."""
        step = self._step
        while plan.result.peak_bytes > step.budget_bytes:
            violated = step.violated(plan.result, set())
            if not violated:
                break
            place = violated[0]
            used = {swap.absence for swap in plan.swaps}
            here = [
                gap
                for gap in step.gaps
                if gap.absence not in used and (gap.in_tail(place) or gap.in_head(place))
            ]
            if not here:
                break
            gap = max(here, key=step.time_to_spare)
            over = int(step.changes[np.searchsorted(step.changes, place, side="right")])
            gate, back = step.starts_up_to(place) - 1, step.starts_up_to(over)
            wish = Wish(
                gap.absence,
                int(step.start_op[gate]) if gap.in_tail(place) and gate >= 0 else None,
                int(step.start_op[back]) if back < len(step.starts) else None,
            )
            added = swaps_for(step.timeline, [wish])
            swaps = tuple(sorted((*plan.swaps, *added)))
            plan = Decision(POLICY, swaps, simulate(step.timeline, swaps, step.machine))
        return plan

    def _pruned(self, plan: Decision) -> Decision:
        """Without the swaps that the budget does not need."""
        step = self._step
        if plan.result.peak_bytes > step.budget_bytes:
            return plan
        for swap in plan.swaps:
            swaps = tuple(other for other in plan.swaps if other != swap)
            result = simulate(step.timeline, swaps, step.machine)
            if result.peak_bytes <= step.budget_bytes and (
                cost(result, step.machine) <= cost(plan.result, step.machine)
            ):
                plan = Decision(POLICY, swaps, result)
        return plan


def _wishes(step: _Step, schedule: _Schedule, solution: Floats) -> list[Wish]:
    """Gates where copies-out end, copies-in as late as they can in the order of their deadlines."""
    counts, stalls = schedule.stalls(solution)

    def stall_at(places: Ints) -> Floats:
        known = np.searchsorted(counts, np.searchsorted(step.starts, places, side="right"), "right")
        return np.where(known > 0, stalls[np.maximum(known, 1) - 1], 0.0)

    def real(place: int, at: float) -> float:
        return at + float(stall_at(np.array([place]))[0])

    start_at = step.start_at + stall_at(step.starts)
    end_at = step.end_at + stall_at(step.ends)
    absent = {c.gap.absence: schedule.absent(c, solution) for c in schedule.choices}
    used = [
        choice
        for choice in schedule.choices
        if solution[choice.used] > 0.5 and absent[choice.gap.absence] != (None, None)
    ]
    far = {choice.gap.far_copy[:2] for choice in used if choice.gap.crosses}

    first: dict[tuple[int, str, bool], _Gap] = {}
    for choice in used:
        if not (choice.gap.far_copy[2] and choice.gap.far_copy[:2] in far):
            first.setdefault(choice.gap.far_copy, choice.gap)
    queue = sorted(first.values(), key=lambda gap: (gap.made, gap.absence))
    end = 0.0
    out_end: dict[tuple[int, str, bool], float] = {}
    for _ in range(2):
        # Again with what the step before leaves behind.
        end = max(0.0, end - _STEP - float(stalls[-1]))
        for gap in queue:
            end = max(end, real(gap.made, gap.made_at)) + gap.out_time
            out_end[gap.far_copy] = end

    # In the order of deadlines among those that may begin, then as late as that order allows.
    may_begin = {}
    for choice in used:
        last = absent[choice.gap.absence][1]
        may_begin[choice.gap.absence] = 0 if last is None else int(np.searchsorted(step.ends, last))
    begin_at = {
        gap: 0.0 if place == 0 else float(end_at[min(place, len(end_at) - 1)])
        for gap, place in may_begin.items()
    }
    waiting = [choice.gap for choice in used]
    order: list[_Gap] = []
    now = 0.0
    while waiting:
        now = max(now, min(begin_at[gap.absence] for gap in waiting))
        ready = [gap for gap in waiting if begin_at[gap.absence] <= now]
        order.append(min(ready, key=lambda gap: (gap.ends, gap.absence)))
        waiting.remove(order[-1])
        now += order[-1].in_time
    triggers: dict[int, int] = {}
    next_at, next_end, next_absence = np.inf, len(step.ends), -1
    for gap in reversed(order):
        next_at = min(next_at, real(gap.ends, gap.due)) - gap.in_time
        trigger = int(np.searchsorted(end_at, next_at + _SLACK, side="right")) - 1
        # One trigger asks for several in the order of absences.
        trigger = min(trigger, next_end - (gap.absence > next_absence >= 0))
        trigger = max(trigger, may_begin[gap.absence] if absent[gap.absence][1] is not None else 0)
        triggers[gap.absence] = next_end = trigger
        next_absence = gap.absence

    wishes = []
    for choice in used:
        gap = choice.gap
        gate = None
        if gap.far_copy in out_end:
            place = int(np.searchsorted(start_at, out_end[gap.far_copy] - _SLACK))
            place = max(place, step.starts_up_to(gap.begins))
            left = absent[gap.absence][0]
            if left is not None:
                place = min(place, step.starts_up_to(left) - 1)
            if 0 <= place < len(step.starts) and gap.in_tail(int(step.starts[place])):
                gate = int(step.start_op[place])
        back = None
        if triggers[gap.absence] < len(step.ends):
            start = int(np.searchsorted(step.starts, step.ends[triggers[gap.absence]]))
            if start < len(step.starts) and step.starts[start] < gap.ends:
                back = int(step.start_op[start])
        wishes.append(Wish(gap.absence, gate, back))
    return wishes
