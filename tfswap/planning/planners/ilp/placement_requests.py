"""Convert a solution of the MILP to gates and triggers.

Gates are placed where copies-out end. Copies-in run in the order of their deadlines, as late as
possible.
"""

from __future__ import annotations

import numpy as np

from tfswap.planning.planners.anchors import PlacementRequest
from tfswap.planning.planners.ilp.program import SLACK, Floats
from tfswap.planning.planners.ilp.schedule import Choice, Schedule
from tfswap.planning.planners.ilp.step import STEP, Gap, Ints, Step


def placement_requests(step: Step, schedule: Schedule, solution: Floats) -> list[PlacementRequest]:
    """Return the requested gate and trigger of each gap that the solution uses."""
    solved = _Solved(step, schedule, solution)
    out_end = solved.copies_out()
    triggers = solved.triggers(solved.order_in())
    return [
        PlacementRequest(
            choice.gap.absence,
            solved.gate(choice.gap, out_end),
            solved.trigger(choice.gap, triggers),
        )
        for choice in solved.used
    ]


class _Solved:
    """A solution with its real times: those of the recorded step plus the stalls before them."""

    def __init__(self, step: Step, schedule: Schedule, solution: Floats) -> None:
        self._step = step
        self._counts, self._stalls = schedule.stalls(solution)
        self._start_at = step.start_at + self._stall_at(step.starts)
        self._end_at = step.end_at + self._stall_at(step.ends)
        absent = {c.gap.absence: schedule.absent(c, solution) for c in schedule.choices}
        self.used: list[Choice] = [
            choice
            for choice in schedule.choices
            if solution[choice.used] > 0.5 and absent[choice.gap.absence] != (None, None)
        ]
        self._left = {gap: left for gap, (left, _) in absent.items()}
        # Index into the ends: the first end after which a gap may come back.
        self._may_begin = {
            gap: 0 if over is None else int(np.searchsorted(step.ends, over))
            for gap, (_, over) in absent.items()
        }

    def _stall_at(self, places: Ints) -> Floats:
        started = np.searchsorted(self._step.starts, places, side="right")
        known = np.searchsorted(self._counts, started, "right")
        return np.where(known > 0, self._stalls[np.maximum(known, 1) - 1], 0.0)

    def _real(self, place: int, at: float) -> float:
        return at + float(self._stall_at(np.array([place]))[0])

    def copies_out(self) -> dict[tuple[int, str, bool], float]:
        """Return when each copy-out has ended."""
        far = {choice.gap.far_copy[:2] for choice in self.used if choice.gap.crosses}
        first: dict[tuple[int, str, bool], Gap] = {}
        for choice in self.used:
            if not (choice.gap.far_copy[2] and choice.gap.far_copy[:2] in far):
                first.setdefault(choice.gap.far_copy, choice.gap)
        queue = sorted(first.values(), key=lambda gap: (gap.made, gap.absence))
        end = 0.0
        out_end: dict[tuple[int, str, bool], float] = {}
        for _ in range(2):
            # Again with the copies that the previous step leaves in the queue.
            end = max(0.0, end - STEP - float(self._stalls[-1]))
            for gap in queue:
                end = max(end, self._real(gap.made, gap.made_at)) + gap.out_time
                out_end[gap.far_copy] = end
        return out_end

    def order_in(self) -> list[Gap]:
        """Return copies-in in the order of their deadlines, among those that may start."""
        begin_at = {
            gap: 0.0 if place == 0 else float(self._end_at[min(place, len(self._end_at) - 1)])
            for gap, place in self._may_begin.items()
        }
        waiting = [choice.gap for choice in self.used]
        order: list[Gap] = []
        now = 0.0
        while waiting:
            now = max(now, min(begin_at[gap.absence] for gap in waiting))
            ready = [gap for gap in waiting if begin_at[gap.absence] <= now]
            order.append(min(ready, key=lambda gap: (gap.ends, gap.absence)))
            waiting.remove(order[-1])
            now += order[-1].in_time
        return order

    def triggers(self, order: list[Gap]) -> dict[int, int]:
        """Return by absence the index into the ends of the trigger of its copy-in."""
        triggers: dict[int, int] = {}
        next_at, next_end, next_absence = np.inf, len(self._end_at), -1
        for gap in reversed(order):
            next_at = min(next_at, self._real(gap.ends, gap.due)) - gap.in_time
            trigger = int(np.searchsorted(self._end_at, next_at + SLACK, side="right")) - 1
            # One trigger starts several copies in the order of absences.
            trigger = min(trigger, next_end - (gap.absence > next_absence >= 0))
            trigger = max(trigger, self._may_begin[gap.absence])
            triggers[gap.absence] = next_end = trigger
            next_absence = gap.absence
        return triggers

    def gate(self, gap: Gap, out_end: dict[tuple[int, str, bool], float]) -> int | None:
        """Return the first op after the copy-out; None if there is no copy-out or no such op."""
        if gap.far_copy not in out_end:
            return None
        step = self._step
        place = int(np.searchsorted(self._start_at, out_end[gap.far_copy] - SLACK))
        place = max(place, step.starts_up_to(gap.begins))
        left = self._left[gap.absence]
        if left is not None:
            place = min(place, step.starts_up_to(left) - 1)
        if 0 <= place < len(step.starts) and gap.in_tail(int(step.starts[place])):
            return int(step.start_op[place])
        return None

    def trigger(self, gap: Gap, triggers: dict[int, int]) -> int | None:
        """Return the first op after the end at which the copy-in starts; None if there is none."""
        step = self._step
        if triggers[gap.absence] == len(step.ends):
            return None
        start = int(np.searchsorted(step.starts, step.ends[triggers[gap.absence]]))
        if start < len(step.starts) and step.starts[start] < gap.ends:
            return int(step.start_op[start])
        return None
