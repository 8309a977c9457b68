"""The MILP of schedules that wait no longer than a given time, as described in `tvdnn_ilp`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfswap.planning.planners.ilp.program import SLACK, Floats, Program, summed
from tfswap.planning.planners.ilp.step import STEP, Gap, Ints, Step


@dataclass(frozen=True, eq=False)
class Choice:
    """A gap's variables: used, and by rank of the moment x in its tail and y in its head."""

    gap: Gap
    used: int
    out: dict[int, int]
    back: dict[int, int]


@dataclass(frozen=True, eq=False)
class CopyOut:
    """A copy-out that gaps of one far copy share: made, and by rank of the moment ended."""

    first: Gap
    made: int
    over: dict[int, int]


class Schedule:
    """The MILP of schedules that wait at most ``wait``."""

    def __init__(self, step: Step, moments: set[int], wait: float) -> None:
        self._step, self._wait = step, wait + SLACK
        self._moments = sorted(moments)
        self._program = Program()
        places = np.array(self._moments, dtype=np.int64)
        self._at = step.at[places]
        # Where each moment ends.
        self._over = step.changes[np.searchsorted(step.changes, places, side="right")]
        self._over_at = np.append(step.at, STEP)[self._over]
        used_far = {g.far_copy[:2] for g in step.gaps if g.crosses}
        # Copied in for this step, and absent again without a copy-out.
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
        """Return whether there is provably no schedule, and a solution if one was found."""
        return self._program.solve(time_limit_s)

    def stalls(self, solution: Floats) -> tuple[Ints, Floats]:
        """Return (number of started ops, stall up to then) wherever the stall may change."""
        counts = np.array(list(self._stall), dtype=np.int64)
        return counts, np.maximum.accumulate(solution[list(self._stall.values())])

    def absent(self, choice: Choice, solution: Floats) -> tuple[int | None, int | None]:
        """Return the first moment of a used gap's absence, and the place where it may end."""
        gap = choice.gap
        out = [r for r, x in choice.out.items() if solution[x] > 0.5]
        back = [r for r, y in choice.back.items() if solution[y] > 0.5]
        if not gap.crosses:
            out, back = [r for r in out if r in back], [r for r in back if r in out]
        first = self._moments[out[0]] if out else None
        return first, int(self._over[back[-1]]) if back else None

    def _choose(self, gap: Gap, may_be_far: bool) -> Choice | None:
        """Add the variables of a gap that are not known to be 0; None: the gap cannot be used."""
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
                program.row(summed([*either, (used, -1.0)]), low=0.0)
        return Choice(gap, used, out, back)

    def _share_copies(self) -> list[CopyOut]:
        program = self._program
        sharing: dict[tuple[int, str, bool], list[Choice]] = {}
        back_from_before: dict[tuple[int, str], list[Choice]] = {}
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
                # Buffers with a far copy from the previous step need no copy-out.
                spared = [(choice.used, -1.0) for choice in far]
                over = {r: program.variable() for r in ranks}
                made = program.variable()
                program.ascending([*over.values(), made])
                for choice in choices:
                    program.row([(choice.used, 1.0), (made, -1.0), *spared], high=0.0)
                    for r, x in choice.out.items():
                        program.row([(x, 1.0), (over[r], -1.0), *spared], high=0.0)
            copies.append(CopyOut(choices[0].gap, made, over))
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
            self._program.row(summed(terms), low=float(self._step.load[place]))

    def _queue_out(self) -> None:
        """First come, first served; copies that are ready at the same time may run in any order."""
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
        """Return the variable for the end of copies after their producer and earlier copies."""
        end = self._program.variable(most)
        self._program.row(summed([(end, 1.0), *copies, made]), low=made_at)
        for before in ended:
            self._program.row(summed([(end, 1.0), *copies, (before, -1.0)]), low=0.0)
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
                    self._program.row(summed([*carried, (due, -1.0), (made, 1.0)]), high=time_left)

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
                    self._program.row(summed([*carried, due, *begin]), high=time_left)
