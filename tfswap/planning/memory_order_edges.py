r"""Order edges that keep a step's load as simulated.

Planners see one recorded step. The executor is free to start an op much earlier than it did in
that step. Where the budget is nearly full there is no memory for such an op's outputs, and ops
that wait for memory can hold all of it. Therefore ops that produce or read large buffers keep their
recorded order around full moments: moments where the load leaves no room for the two largest
buffers that are allocated, or come back, later::

    recorded   --A--  --B--           budget ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
                 ----C----  --D--     load   __/▔▔▔▔▔▔▔▔\__      A → D, B → D, C → D
               ------------------> t             full            (D started after all of them)

Ops that overlapped in the recorded step may still overlap.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tfswap.addresses.order import StepOrder
from tfswap.plan.schema import FunctionPlan
from tfswap.planning.planners.load import OpLoad
from tfswap.planning.simulator import Swap
from tfswap.step.graph import StepGraph
from tfswap.step.profile import Profile
from tfswap.step.timeline import Timeline, crosses_step_end


def memory_order_edges(
    profile: Profile,
    graph: StepGraph,
    function: FunctionPlan,
    swaps: Iterable[Swap],
    budget_bytes: int,
) -> tuple[tuple[str, str], ...]:
    """Return the missing edges (before, after).

    Args:
        profile: The recorded step.
        graph: Its graph.
        function: The plan so far, with its other order edges.
        swaps: The planner's swaps of that plan.
        budget_bytes: Upper limit of the load.
    """
    timeline = profile.timeline
    chosen = tuple(swaps)
    full = held_bytes(timeline, chosen) > budget_bytes - _two_largest_later(timeline, chosen)
    ordered = np.zeros(len(timeline.op_names), dtype=bool)
    ordered[list(profile.large_ops)] = True
    ordered[[op for swap in chosen for op in (swap.gate_op, swap.trigger_op) if op >= 0]] = True
    start_ns = dict(
        zip(reversed(timeline.op_names), reversed(timeline.op_start_ns.tolist()), strict=True)
    )
    order = {
        timeline.op_names[after]: [timeline.op_names[before] for before in predecessors]
        for after, predecessors in _just_before(timeline, np.flatnonzero(ordered), full)
    }
    return StepOrder(graph, function).enforce(order, start_ns)


def held_bytes(timeline: Timeline, swaps: Iterable[Swap]) -> NDArray[np.int64]:
    """Return the load while each op is the latest one to have started, for a link of any speed.

    A swapped buffer is absent from the start of its gate to the end of its trigger.
    """
    load = OpLoad.of(timeline).bytes[1:].copy()
    start_ns, end_ns = timeline.op_start_ns, timeline.op_end_ns
    for swap in swaps:
        if swap.gate_op < 0 or swap.trigger_op < 0:
            continue
        absence = timeline.absences[swap.absence]
        copied_out = start_ns >= start_ns[swap.gate_op]
        not_back = start_ns < end_ns[swap.trigger_op]
        absent = (
            copied_out | not_back if crosses_step_end(timeline, absence) else copied_out & not_back
        )
        load[absent] -= timeline.buffer_bytes[absence.buffer]
    return load


def _two_largest_later(timeline: Timeline, swaps: Iterable[Swap]) -> NDArray[np.int64]:
    """Return the total size of the two largest allocations after each op's start.

    A swapped buffer is allocated again when its trigger ends.
    """
    made = np.flatnonzero(timeline.buffer_alloc_ns >= 0)
    back = [swap for swap in swaps if swap.trigger_op >= 0]
    triggers = [swap.trigger_op for swap in back]
    buffers = [timeline.absences[swap.absence].buffer for swap in back]
    alloc_ns = np.concatenate([timeline.buffer_alloc_ns[made], timeline.op_end_ns[triggers]])
    sizes = timeline.buffer_bytes[np.concatenate([made, buffers]).astype(np.intp)]
    order = np.argsort(alloc_ns, kind="stable")
    sums = np.zeros(len(order) + 1, dtype=np.int64)
    first = second = 0
    for place in reversed(range(len(order))):
        _, second, first = sorted((first, second, int(sizes[order[place]])))
        sums[place] = first + second
    return sums[np.searchsorted(alloc_ns[order], timeline.op_start_ns, side="right")]


def _just_before(
    timeline: Timeline, ops: NDArray[np.intp], full: NDArray[np.bool_]
) -> Iterable[tuple[int, list[int]]]:
    """Yield each op with those that ended before it started, or before the last full moment.

    Ops that another one of the predecessors already follows are left out.
    """
    by_end = ops[np.argsort(timeline.op_end_ns[ops], kind="stable")]
    ends = timeline.op_end_ns[by_end]
    latest_start = np.maximum.accumulate(timeline.op_start_ns[by_end])
    full_until = np.maximum.accumulate(np.where(full, timeline.op_end_ns, -1))
    for op in ops.tolist():
        start_ns = int(timeline.op_start_ns[op])
        until_ns = start_ns if full[op] else min(start_ns, int(full_until[op]))
        count = int(np.searchsorted(ends, until_ns, side="right"))
        if count:
            first = int(np.searchsorted(ends, latest_start[count - 1], side="right"))
            yield op, by_end[first:count].tolist()
