"""The ops of a step, with the clones that make tensors again among them.

::

    given   A------  B--  C----            numbered 0, 1, 2; D and E are clones, 3 and 4, which take
    with    A------  DE B--  C----         no time here: order 0 3 4 1 2
    later   A------  D--E-  B--  C----     all that comes behind them moves by what they take
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tfswap.plan.node_names import again_name
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline


class ClonedOps:
    """Ops by number: those of the given step as there, clones behind them.

    Attributes:
        names: of each.
        op_of: the numbers of the names; of a name that several have, the first.
        like: the op of the given step that each one is, or repeats.
        start_ns, end_ns: in the given step, in which clones take no time.
        takes_ns: how long each one runs.
        order: numbers, in the order of the step.
        rank: the place of each number in it.

    Args:
        timeline: the given step.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._given = timeline
        self.names = list(timeline.op_names)
        self.op_of = {name: op for op, name in reversed(list(enumerate(self.names)))}
        self.like = list(range(len(self.names)))
        self.start_ns: list[int] = timeline.op_start_ns.tolist()
        self.end_ns: list[int] = timeline.op_end_ns.tolist()
        self.takes_ns: list[int] = (timeline.op_end_ns - timeline.op_start_ns).tolist()
        self.order = list(range(len(self.names)))
        self.rank = list(self.order)
        self._triggers = np.flatnonzero(timeline.op_gateable)

    def trigger(self, absence: Absence) -> int | None:
        """The last op of those that have ended when the first late reader begins."""
        given, before = self._given, absence.before_op
        count = bisect_left(self._triggers, self.rank[before], key=self.rank.__getitem__)
        usable = self._triggers[:count]
        usable = usable[given.op_end_ns[usable] <= self.start_ns[before]]
        usable = usable[given.op_context[usable] == absence.context]
        return int(usable[np.argmax(given.op_end_ns[usable])]) if len(usable) else None

    def insert(self, nodes: Sequence[str], before_op: int, ordinal: int) -> dict[str, int]:
        """Clones nodes right before an op; answers the clones' numbers, by the nodes' names.

        Args:
            nodes: those that are no ops of the step have no clones.
            before_op: its number.
            ordinal: of the recomputation, by which clones are named.
        """
        clones = {}
        at_ns = self.start_ns[before_op]
        for name in nodes:
            op = self.op_of.get(name)
            if op is None:
                continue
            clone = clones[name] = len(self.names)
            self.names.append(again_name(name, ordinal))
            self.op_of[self.names[-1]] = clone
            self.like.append(self.like[op])
            self.start_ns.append(at_ns)
            self.end_ns.append(at_ns)
            self.takes_ns.append(self.takes_ns[op])
            self.rank.append(0)
        place = self.rank[before_op]
        self.order[place:place] = clones.values()
        for rank in range(place, len(self.order)):
            self.rank[self.order[rank]] = rank
        return clones

    def later(self) -> LaterTimes:
        """The step in which clones take their time."""
        return LaterTimes(self, len(self._given.op_names))


class LaterTimes:
    """How much later than in the given step things are.

    Attributes:
        names, like, start_ns, end_ns: of ops, in the order of the step.
        inserted_ns: what clones take, all in all.

    Args:
        ops: with clones.
        given: how many there are without.
    """

    def __init__(self, ops: ClonedOps, given: int) -> None:
        order = np.array(ops.order)
        given_start_ns = np.array(ops.start_ns, dtype=np.int64)
        takes_ns = np.array(ops.takes_ns, dtype=np.int64)
        inserted_ns = np.where(np.arange(len(takes_ns)) >= given, takes_ns, 0)
        clones = order[inserted_ns[order] > 0]
        self._at_ns = np.sort(given_start_ns[clones])
        by_start = clones[np.argsort(given_start_ns[clones], kind="stable")]
        self._later_ns = np.concatenate([[0], np.cumsum(inserted_ns[by_start])]).astype(np.int64)

        self.names = tuple(ops.names[op] for op in ops.order)
        self.like: NDArray[np.int64] = np.array(ops.like)[order]
        self.inserted_ns = int(inserted_ns.sum())
        behind_ns = np.cumsum(inserted_ns[order]) - inserted_ns[order]
        self.start_ns: NDArray[np.int64] = given_start_ns[order] + behind_ns
        end_ns = self.start_ns + takes_ns[order]
        later_ns = self.before(np.array(ops.end_ns, dtype=np.int64)[order])
        self.end_ns = np.where(order >= given, end_ns, np.maximum(end_ns, later_ns))

    def before(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ends and frees: what clones begin at still comes before them."""
        return self._moved(times_ns, "left")

    def at(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Allocations: those come behind the clones that begin then."""
        return self._moved(times_ns, "right")

    def _moved(self, times_ns: NDArray[np.int64], side: str) -> NDArray[np.int64]:
        later_ns = self._later_ns[np.searchsorted(self._at_ns, times_ns, side=side)]  # type: ignore[call-overload]
        return np.where(times_ns == OUTLIVES_STEP_NS, times_ns, times_ns + later_ns)
