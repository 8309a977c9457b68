"""The ops of a step, together with the clones that recompute tensors.

::

    given    A------  B--  C----           ops 0, 1, 2; the clones D and E, ops 3 and 4, take no
    clones   A------  DE B--  C----        time here: order 0 3 4 1 2
    shifted  A------  D--E-  B--  C----    all later ops move by the duration of the clones
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfswap.plan.node_names import clone_name
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline


class ClonedOps:
    """Ops by number: the ops of the given step in their order, then the clones.

    Attributes:
        names: of each op.
        op_of: op number by name; if several ops share a name, the first.
        original: for each op, the op of the given step that it is or repeats.
        start_ns, end_ns: times in the given step, in which clones take no time.
        duration_ns: of each op.
        order: op numbers in the order of the step.
        rank: position of each op number in ``order``.

    Args:
        timeline: the given step.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._given = timeline
        self.names = list(timeline.op_names)
        self.op_of = {name: op for op, name in reversed(list(enumerate(self.names)))}
        self.original = list(range(len(self.names)))
        self.start_ns: list[int] = timeline.op_start_ns.tolist()
        self.end_ns: list[int] = timeline.op_end_ns.tolist()
        self.duration_ns: list[int] = (timeline.op_end_ns - timeline.op_start_ns).tolist()
        self.order = list(range(len(self.names)))
        self.rank = list(self.order)
        self._triggers = np.flatnonzero(timeline.op_gateable)

    def trigger(self, absence: Absence) -> int | None:
        """Return the last possible trigger that has ended when the absence's before_op starts."""
        given, before = self._given, absence.before_op
        count = bisect_left(self._triggers, self.rank[before], key=self.rank.__getitem__)
        usable = self._triggers[:count]
        usable = usable[given.op_end_ns[usable] <= self.start_ns[before]]
        usable = usable[given.op_context[usable] == absence.context]
        return int(usable[np.argmax(given.op_end_ns[usable])]) if len(usable) else None

    def insert(self, nodes: Sequence[str], before_op: int, ordinal: int) -> dict[str, int]:
        """Insert clones of nodes before an op; return the clones' op numbers by node name.

        Args:
            nodes: nodes that are not ops of the step get no clone.
            before_op: op number.
            ordinal: number of the recomputation, part of the clones' names.
        """
        clones = {}
        at_ns = self.start_ns[before_op]
        for name in nodes:
            op = self.op_of.get(name)
            if op is None:
                continue
            clone = clones[name] = len(self.names)
            self.names.append(clone_name(name, ordinal))
            self.op_of[self.names[-1]] = clone
            self.original.append(self.original[op])
            self.start_ns.append(at_ns)
            self.end_ns.append(at_ns)
            self.duration_ns.append(self.duration_ns[op])
            self.rank.append(0)
        place = self.rank[before_op]
        self.order[place:place] = clones.values()
        for rank in range(place, len(self.order)):
            self.rank[self.order[rank]] = rank
        return clones

    def shifted(self) -> ShiftedTimes:
        """Return the step in which clones take their time."""
        return ShiftedTimes(self, len(self._given.op_names))


class ShiftedTimes:
    """Times of a step that is delayed by its clones.

    Attributes:
        names, original, start_ns, end_ns: of the ops, in the order of the step.
        inserted_ns: total duration of all clones.

    Args:
        ops: with clones.
        given: number of ops without clones.
    """

    def __init__(self, ops: ClonedOps, given: int) -> None:
        order = np.array(ops.order)
        given_start_ns = np.array(ops.start_ns, dtype=np.int64)
        duration_ns = np.array(ops.duration_ns, dtype=np.int64)
        inserted_ns = np.where(np.arange(len(duration_ns)) >= given, duration_ns, 0)
        clones = order[inserted_ns[order] > 0]
        self._at_ns = np.sort(given_start_ns[clones])
        by_start = clones[np.argsort(given_start_ns[clones], kind="stable")]
        self._later_ns = np.concatenate([[0], np.cumsum(inserted_ns[by_start])]).astype(np.int64)

        self.names = tuple(ops.names[op] for op in ops.order)
        self.original: NDArray[np.int64] = np.array(ops.original)[order]
        self.inserted_ns = int(inserted_ns.sum())
        inserted_before_ns = np.cumsum(inserted_ns[order]) - inserted_ns[order]
        self.start_ns: NDArray[np.int64] = given_start_ns[order] + inserted_before_ns
        end_ns = self.start_ns + duration_ns[order]
        later_ns = self.shift_frees(np.array(ops.end_ns, dtype=np.int64)[order])
        self.end_ns = np.where(order >= given, end_ns, np.maximum(end_ns, later_ns))

    def shift_frees(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shift times of ends and frees: those at the start of a clone come before the clone."""
        return self._shift(times_ns, "left")

    def shift_allocations(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shift times of allocations: those at the start of a clone come after the clone."""
        return self._shift(times_ns, "right")

    def _shift(self, times_ns: NDArray[np.int64], side: str) -> NDArray[np.int64]:
        later_ns = self._later_ns[np.searchsorted(self._at_ns, times_ns, side=side)]  # type: ignore[call-overload]
        return np.where(times_ns == OUTLIVES_STEP_NS, times_ns, times_ns + later_ns)
