"""Gates and triggers that a graph allows, for planners that think in parts of an `OpLoad`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tfswap.planning.simulator import Swap
from tfswap.step.timeline import Timeline


@dataclass(frozen=True)
class Wish:
    """What a planner wants for one absence.

    Attributes:
        absence: index into the timeline's absences.
        gone_by: index of the op that should not start before the buffer has left; None: nobody
            waits.
        back_from: index of an op before whose start the copy-in should begin; None: as late as it
            can be foretold that the buffer is needed.
    """

    absence: int
    gone_by: int | None
    back_from: int | None


def swaps_for(timeline: Timeline, wishes: Iterable[Wish]) -> tuple[Swap, ...]:
    """Swaps with the gates and triggers that come closest to what is wanted.

    A gate becomes the last op up to the wanted one that can take an edge (the first possible one if
    there is none so early); a trigger the last op that ends before the wanted one starts.
    """
    starts, ends = timeline.core.op_positions()
    usable_of: dict[int, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
    swaps = []
    for wish in wishes:
        absence = timeline.absences[wish.absence]
        if absence.context not in usable_of:
            usable_of[absence.context] = timeline.op_gateable & (
                timeline.op_context == absence.context
            )
        usable = usable_of[absence.context]
        gate = -1
        if wish.gone_by is not None:
            ready = -1 if absence.producer_op < 0 else int(ends[absence.producer_op])
            gates = np.flatnonzero(usable & (starts > ready))
            if len(gates):
                place = int(np.searchsorted(starts[gates], starts[wish.gone_by], side="right")) - 1
                gate = int(gates[max(place, 0)])
        before = starts[absence.before_op]
        wanted = before if wish.back_from is None else min(before, starts[wish.back_from])
        in_time = np.flatnonzero(usable & (ends < wanted))
        if len(in_time):
            trigger = int(in_time[np.argmax(ends[in_time])])
        else:
            # Nothing ends so early: as soon as the buffer has left, or the step has begun.
            trigger = -1
        swaps.append(Swap(wish.absence, gate, trigger))
    return tuple(sorted(swaps))
