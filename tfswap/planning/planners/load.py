"""The load while each op is the latest one to have started: planners compare it with the budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap.step.timeline import Timeline, crosses_step_end

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OpLoad:
    """A step divided at op starts. Part 0 precedes the first op, part i + 1 is op i's.

    Attributes:
        start_ns: int64[n + 1]; start of each part.
        bytes: int64[n + 1]; maximal load in it.
        fullest_ns: int64[n + 1]; time at which that load is first reached.
        peak: the part with the peak load.
    """

    start_ns: Ints
    bytes: Ints
    fullest_ns: Ints
    peak: int

    @staticmethod
    def of(timeline: Timeline) -> OpLoad:
        event_ns, event_load = timeline.core.events()
        # Before the first event only resident bytes are allocated.
        event_ns = np.concatenate([[0], event_ns])
        event_load = np.concatenate([[timeline.resident_bytes], event_load])
        starts, _ = timeline.core.op_positions()
        borders = np.concatenate([[0], starts.astype(np.int64) + 1])
        load = np.maximum.reduceat(event_load, borders)
        part = np.repeat(np.arange(len(borders)), np.diff(np.append(borders, len(event_load))))
        _, first = np.unique(
            np.where(event_load == load[part], part, len(borders)), return_index=True
        )
        start_ns = np.concatenate([[0], timeline.op_start_ns]).astype(np.int64)
        fullest_ns = event_ns[first[: len(borders)]].astype(np.int64)
        return OpLoad(start_ns, load.astype(np.int64), fullest_ns, int(np.argmax(load)))


@dataclass(frozen=True, eq=False)
class Gaps:
    """Absences as ranges of parts of an `OpLoad`; arrays have one entry per absence.

    A gap within the step covers the parts ``gone <= part < back``; one that crosses the step's end
    covers ``part >= gone`` and ``part < back``.

    Attributes:
        absence: index into the timeline's absences.
        bytes: of the buffer.
        gone: the first part that begins after the buffer's last use.
        back: the part of the op that needs it again.
        crosses: whether it continues in the next step.
        made_ns: when the buffer is produced; 0 if it exists when the step begins.
        after_end_ns, before_start_ns: end and start of the ops around it.
        duration_ns: time between them, across two steps if it crosses.
    """

    absence: Ints
    bytes: Ints
    gone: Ints
    back: Ints
    crosses: NDArray[np.bool_]
    made_ns: Ints
    after_end_ns: Ints
    before_start_ns: Ints
    duration_ns: Ints

    def __len__(self) -> int:
        return len(self.absence)

    @staticmethod
    def of(timeline: Timeline, load: OpLoad, min_bytes: int) -> Gaps:
        rows = [
            (
                index,
                int(timeline.buffer_bytes[absence.buffer]),
                int(timeline.op_end_ns[absence.after_op]),
                absence.before_op,
                crosses_step_end(timeline, absence),
                0 if absence.producer_op < 0 else int(timeline.op_end_ns[absence.producer_op]),
            )
            for index, absence in enumerate(timeline.absences)
            if timeline.buffer_bytes[absence.buffer] >= min_bytes
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 6)
        after_end_ns, before = table[:, 2], table[:, 3]
        gone = np.searchsorted(load.start_ns[1:], after_end_ns, side="left") + 1
        crosses = table[:, 4].astype(bool)
        before_start_ns = timeline.op_start_ns[before]
        duration_ns = before_start_ns - after_end_ns + np.where(crosses, timeline.step_ns, 0)
        return Gaps(
            absence=table[:, 0],
            bytes=table[:, 1],
            gone=gone.astype(np.int64),
            back=before + 1,
            crosses=crosses,
            made_ns=table[:, 5],
            after_end_ns=after_end_ns,
            before_start_ns=before_start_ns,
            duration_ns=duration_ns.astype(np.int64),
        )

    def cover(self, part: int) -> NDArray[np.bool_]:
        """Return which gaps cover a part."""
        begun, not_ended = self.gone <= part, self.back > part
        return np.where(self.crosses, begun | not_ended, begun & not_ended)

    def take(self, chosen: Ints) -> Gaps:
        """Return some of the gaps, in the given order."""
        return Gaps(
            self.absence[chosen],
            self.bytes[chosen],
            self.gone[chosen],
            self.back[chosen],
            self.crosses[chosen],
            self.made_ns[chosen],
            self.after_end_ns[chosen],
            self.before_start_ns[chosen],
            self.duration_ns[chosen],
        )

    def parts(
        self, i: int, load: Ints, gone: int | None = None, back: int | None = None
    ) -> list[Ints]:
        """Return views of ``load`` over gap i: one, or two around the step's end."""
        begin = int(self.gone[i]) if gone is None else gone
        end = int(self.back[i]) if back is None else back
        return [load[begin:], load[:end]] if self.crosses[i] else [load[begin:end]]

    def subtract(
        self, i: int, load: Ints, gone: int | None = None, back: int | None = None
    ) -> None:
        """Subtract gap i's bytes from ``load``, in place."""
        for part in self.parts(i, load, gone, back):
            part -= self.bytes[i]

    def subtracted(self, load: Ints, gone: Ints) -> Ints:
        """Return ``load`` without the bytes of all gaps, which begin at ``gone``."""
        change = np.zeros(len(load) + 1, dtype=np.int64)
        useful = self.crosses | (self.back > gone)
        np.add.at(change, gone[useful], -self.bytes[useful])
        np.add.at(change, self.back[useful], self.bytes[useful])
        change[0] -= int(self.bytes[self.crosses].sum())
        without: Ints = load + np.cumsum(change[:-1])
        return without

    def areas(self, load: Ints | NDArray[np.bool_]) -> Ints:
        """Sum ``load`` over each gap, by parts as in the papers (not weighted by time)."""
        up_to = np.concatenate([[0], np.cumsum(load)])
        around = np.where(self.crosses, up_to[-1], 0)
        areas: Ints = up_to[self.back] - up_to[self.gone] + around
        return areas
