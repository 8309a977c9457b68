"""A timeline whose ops have come to take other times: the same step on a stretched time axis.

::

    before   |--A--|  |----B----|          A takes twice as long, B half as long
    after    |----A----|  |--B--|          between them time passes as it did

Between two neighbouring times of the step the same ops run, so there the axis is stretched by one
factor: the mean of those ops' ratios. Allocations and frees go through the same axis, and different
times stay different: the order of all events, on which the load depends, is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tfswap.plan.node_names import AGAIN
from tfswap.step.timeline import OUTLIVES_STEP_NS, Timeline


def retimed(timeline: Timeline, ratios: Mapping[str, float], other: float = 1.0) -> Timeline:
    """The step as it is when ops take so many times as long as in the timeline.

    Args:
        timeline: The step.
        ratios: By op, above 0; a clone that makes something again goes by the op that it is of.
        other: The ratio of ops that are not among them.

    Raises:
        ValueError: A ratio is not above 0.
    """
    of_op = np.array([_ratio(name, ratios, other) for name in timeline.op_names], dtype=float)
    if not (of_op > 0).all() or not np.isfinite(of_op).all():
        raise ValueError("ops' times can only be multiplied by finite numbers above 0")
    times = _times(timeline)
    moved = _stretched(times, _ratio_between(times, timeline, of_op))

    def at(time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        return moved[np.searchsorted(times, time_ns)]

    free_ns = timeline.buffer_free_ns.copy()
    freed = free_ns != OUTLIVES_STEP_NS
    free_ns[freed] = at(free_ns[freed])
    return replace(
        timeline,
        op_start_ns=at(timeline.op_start_ns),
        op_end_ns=at(timeline.op_end_ns),
        buffer_alloc_ns=at(timeline.buffer_alloc_ns),
        buffer_free_ns=free_ns,
        step_ns=int(at(np.array([timeline.step_ns]))[0]),
    )


def _ratio(name: str, ratios: Mapping[str, float], other: float) -> float:
    known = ratios.get(name)
    return ratios.get(name.partition(AGAIN)[0], other) if known is None else known


def _times(timeline: Timeline) -> NDArray[np.int64]:
    """All times at which something begins or ends, and the step's."""
    return np.unique(
        np.concatenate(
            [
                timeline.op_start_ns,
                timeline.op_end_ns,
                timeline.buffer_alloc_ns,
                timeline.buffer_free_ns[timeline.buffer_free_ns != OUTLIVES_STEP_NS],
                [0, timeline.step_ns],
            ]
        )
    ).astype(np.int64)


def _ratio_between(
    times: NDArray[np.int64], timeline: Timeline, of_op: NDArray[np.float64]
) -> NDArray[np.float64]:
    """From each time to the next, the mean ratio of the ops that run; 1 where none does."""
    first = np.searchsorted(times, timeline.op_start_ns)
    last = np.searchsorted(times, timeline.op_end_ns)
    running = np.zeros(len(times), dtype=np.int64)
    np.add.at(running, first, 1)
    np.subtract.at(running, last, 1)
    # What ops take more or less, so that rounding leaves nothing where none does.
    more = np.zeros(len(times))
    np.add.at(more, first, of_op - 1)
    np.subtract.at(more, last, of_op - 1)
    count = np.cumsum(running)[:-1]
    mean = 1 + np.cumsum(more)[:-1] / np.maximum(count, 1)
    return np.where(count > 0, np.clip(mean, of_op.min(initial=1), of_op.max(initial=1)), 1.0)


def _stretched(times: NDArray[np.int64], ratio: NDArray[np.float64]) -> NDArray[np.int64]:
    """The times on the new axis, on which 0 is where it was; each later than the one before."""
    lengths = np.diff(times) * ratio
    moved = np.concatenate([[0.0], np.cumsum(lengths)])
    moved -= moved[np.searchsorted(times, 0)]
    whole = np.rint(moved).astype(np.int64)
    steps = np.arange(len(whole))
    apart = np.maximum.accumulate(whole - steps) + steps
    return np.asarray(apart - apart[np.searchsorted(times, 0)])
