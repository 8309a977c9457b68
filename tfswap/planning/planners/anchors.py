"""Choose gates and triggers that the graph allows, for planners that work on an `OpLoad`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tfswap.planning.simulator import Swap
from tfswap.step.timeline import Timeline


@dataclass(frozen=True)
class PlacementRequest:
    """The gate and trigger that a planner wants for one absence.

    Attributes:
        absence: index into the timeline's absences.
        copied_out_before: index of an op that must not start before the copy-out has ended; None:
            no op waits.
        copy_in_before: index of an op before whose start the copy-in should start; None: as late as
            the op that needs the buffer allows.
    """

    absence: int
    copied_out_before: int | None
    copy_in_before: int | None


def swaps_for(timeline: Timeline, requests: Iterable[PlacementRequest]) -> tuple[Swap, ...]:
    """Return swaps with the gates and triggers that come closest to the requests.

    The gate is the last possible op up to the requested one (the first possible one if there is
    none that early); the trigger is the last possible op that ends before the requested one starts.
    """
    starts, ends = timeline.core.op_positions()
    usable_of: dict[int, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
    swaps = []
    for request in requests:
        absence = timeline.absences[request.absence]
        if absence.context not in usable_of:
            usable_of[absence.context] = timeline.op_gateable & (
                timeline.op_context == absence.context
            )
        usable = usable_of[absence.context]
        gate = -1
        if request.copied_out_before is not None:
            ready = -1 if absence.producer_op < 0 else int(ends[absence.producer_op])
            gates = np.flatnonzero(usable & (starts > ready))
            if len(gates):
                place = (
                    int(
                        np.searchsorted(
                            starts[gates], starts[request.copied_out_before], side="right"
                        )
                    )
                    - 1
                )
                gate = int(gates[max(place, 0)])
        before = starts[absence.before_op]
        wanted = (
            before
            if request.copy_in_before is None
            else min(before, starts[request.copy_in_before])
        )
        in_time = np.flatnonzero(usable & (ends < wanted))
        if len(in_time):
            trigger = int(in_time[np.argmax(ends[in_time])])
        else:
            # No op ends that early: copy in after the copy-out, or at the start of the step.
            trigger = -1
        swaps.append(Swap(request.absence, gate, trigger))
    return tuple(sorted(swaps))
