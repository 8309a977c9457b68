r"""The order of ops that keeps a step's load what was simulated.

Planners see one recorded step. What its ops leave open is up to the executor, which may start an op
long before it did then; where the budget is nearly full, there is no room for what that op makes,
and ops that wait for memory may hold all of it. So ops that make or read large buffers keep the
recorded order around full moments, beside whose load there is no room for the two largest buffers
that are made later::

    recorded   --A--  --B--           budget ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
                 ----C----  --D--     load   __/▔▔▔▔▔▔▔▔\__      A → D, B → D, C → D
               ------------------> t             full            (D started behind all of them)

Ops that ran beside each other still may.
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

# A load of more than this share of the budget leaves no room for ops that come too early; nor does
# one beside which the two largest buffers that are made later do not fit.
_FULL = 0.75


def memory_order_edges(
    profile: Profile,
    graph: StepGraph,
    function: FunctionPlan,
    swaps: Iterable[Swap],
    budget_bytes: int,
) -> tuple[tuple[str, str], ...]:
    """The edges (before, after) that are missing for that.

    Args:
        profile: The recorded step.
        graph: Its graph.
        function: The plan so far, with other order edges.
        swaps: The same as the planner chose them.
        budget_bytes: What the load may reach.
    """
    timeline = profile.timeline
    chosen = tuple(swaps)
    room = np.minimum(_FULL * budget_bytes, budget_bytes - _two_largest_later(timeline))
    full = held_bytes(timeline, chosen) > room
    ordered = np.zeros(len(timeline.op_names), dtype=bool)
    ordered[list(profile.large_ops)] = True
    ordered[[op for swap in chosen for op in (swap.gate_op, swap.trigger_op) if op >= 0]] = True
    start_ns = dict(
        zip(reversed(timeline.op_names), reversed(timeline.op_start_ns.tolist()), strict=True)
    )
    wanted = {
        timeline.op_names[after]: [timeline.op_names[before] for before in those]
        for after, those in _just_before(timeline, np.flatnonzero(ordered), full)
    }
    return StepOrder(graph, function).enforce(wanted, start_ns)


def held_bytes(timeline: Timeline, swaps: Iterable[Swap]) -> NDArray[np.int64]:
    """The load while each op is the one that started last, however fast copies-in are.

    What a swap moves is away from its gate's start to its trigger's end.
    """
    load = OpLoad.of(timeline).bytes[1:].copy()
    start_ns, end_ns = timeline.op_start_ns, timeline.op_end_ns
    for swap in swaps:
        if swap.gate_op < 0 or swap.trigger_op < 0:
            continue
        absence = timeline.absences[swap.absence]
        gone = start_ns >= start_ns[swap.gate_op]
        not_back = start_ns < end_ns[swap.trigger_op]
        away = gone | not_back if crosses_step_end(timeline, absence) else gone & not_back
        load[away] -= timeline.buffer_bytes[absence.buffer]
    return load


def _two_largest_later(timeline: Timeline) -> NDArray[np.int64]:
    """Bytes of the two largest buffers that are made after each op has started."""
    made = np.flatnonzero(timeline.buffer_alloc_ns >= 0)
    made = made[np.argsort(timeline.buffer_alloc_ns[made], kind="stable")]
    sums = np.zeros(len(made) + 1, dtype=np.int64)
    first = second = 0
    for place in reversed(range(len(made))):
        _, second, first = sorted((first, second, int(timeline.buffer_bytes[made[place]])))
        sums[place] = first + second
    alloc_ns = timeline.buffer_alloc_ns[made]
    return sums[np.searchsorted(alloc_ns, timeline.op_start_ns, side="right")]


def _just_before(
    timeline: Timeline, ops: NDArray[np.intp], full: NDArray[np.bool_]
) -> Iterable[tuple[int, list[int]]]:
    """For each op those that had ended when it started, or at the last full moment before that.

    Without those that one of the others comes behind.
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
