"""The time axis of a recorded step, without waits.

::

    recorded   --A--  ..waits for memory..  --B--  -copy-  --C--
    here       --A----B----C--

Ops wait for memory, for copies, and for what comes from outside of the step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# The executor needs some microseconds between two ops; a longer gap was a wait.
_MAX_GAP_NS = 20_000

# Ops that wait for something outside the step. A planned copy op ends when its copy has ended.
WAITING_TYPES = frozenset(
    {
        "IteratorGetNext",
        "IteratorGetNextAsOptional",
        "_CopyFromHost",
        "_CopyToHost",
        "_HostRecv",
        "_Recv",
        "_VariableFromHost",
        "_VariableToHost",
    }
)


class StepClock:
    """Maps recorded times to the axis on which waits take no time."""

    def __init__(self, ops: NDArray[np.void], names: tuple[str, ...]) -> None:
        waiting = np.fromiter((name in WAITING_TYPES for name in names), bool, len(names))
        working = ops[~waiting[ops["type"]]]
        start_ns = working["start_ns"] + working["wait_ns"]
        order = np.argsort(start_ns, kind="stable")
        start_ns = start_ns[order]
        busy_until = np.maximum.accumulate(working["end_ns"][order])
        gap_ns = np.maximum(start_ns[1:] - busy_until[:-1], 0)
        cut_ns = np.maximum(gap_ns - _MAX_GAP_NS, 0)
        long = np.flatnonzero(cut_ns)
        # The map is piecewise linear, and constant over the part of each gap that is removed.
        after_ns = start_ns[1:][long]
        cuts = np.ravel(np.stack([after_ns - cut_ns[long], after_ns], 1))
        self._recorded = np.concatenate([[start_ns[0]], cuts])
        removed = np.concatenate([[0], np.cumsum(cut_ns[long])])
        removed_at = np.concatenate([[0], np.ravel(np.stack([removed[:-1], removed[1:]], 1))])
        self._moved = self._recorded - removed_at - start_ns[0]

    def __call__(self, recorded_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        recorded_ns = np.asarray(recorded_ns, dtype=np.int64)
        place = np.searchsorted(self._recorded, recorded_ns, side="right") - 1
        before = np.maximum(place, 0)
        moved = self._moved[before] + (recorded_ns - self._recorded[before])
        # Within a removed part, the time stays constant.
        after = np.minimum(before + 1, len(self._recorded) - 1)
        moved = np.where(after > before, np.minimum(moved, self._moved[after]), moved)
        return np.maximum(np.where(place < 0, 0, moved), 0).astype(np.int64)
