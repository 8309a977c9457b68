"""A lower bound on the time that any plan must wait.

What exceeds the budget at a moment t must have left by then, and must come back after it. Copies
are taken to be divisible and to start at once, the link to serve nothing else, so

* the bytes above the budget at t, taken from the absences that hold t in the order in which they
  are ready, are out at some moment f(t) at the earliest: the step waits f(t) - t or more before t;
* read backwards from the step's end, the bytes above the budget at u, those that are needed last
  first, must begin to come back at some moment g(u) at the latest: the step waits u - g(u) or more
  after u.

Both hold at any moment: of long steps, some hundred of the fullest are looked at.

The two waits are apart where t <= u, and add up: there, what crosses the step's end is taken to be
free (it may have left long before, and come back long after). Each alone is a bound too, and then
what crosses the end must have left since it was made, in the step before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.link import Link
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.step.timeline import Timeline

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


_MOST_MOMENTS = 400


def least_wait_ns(timeline: Timeline, machine: Link, budget_bytes: int) -> int:
    """No plan of swaps waits less than this; ns.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: what the load may not exceed.

    Returns:
        The bound; the step itself where no plan of swaps can meet the budget.
    """
    load = OpLoad.of(timeline)
    gaps = Gaps.of(timeline, load, 1)
    over = np.flatnonzero(load.bytes > budget_bytes)
    if not len(over):
        return 0
    over = _fullest(load, over)
    crossing = _bounds(timeline, machine, budget_bytes, load, gaps, over, free=False)
    if crossing is None:
        return timeline.step_ns
    least = max(float(crossing[0].max()), float(crossing[1].max()))
    # Waits before t and after u are apart within one step only.
    apart = _bounds(timeline, machine, budget_bytes, load, gaps, over, free=True)
    if apart is not None:
        before = np.maximum.accumulate(apart[0])
        least = max(least, float((before + apart[1]).max()))
    return int(least)


def _fullest(load: OpLoad, over: Ints) -> Ints:
    """The fullest part of each of some stretches."""
    if len(over) <= _MOST_MOMENTS:
        return over
    fullest = [part[np.argmax(load.bytes[part])] for part in np.array_split(over, _MOST_MOMENTS)]
    return np.array(fullest, dtype=np.int64)


def _bounds(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    load: OpLoad,
    gaps: Gaps,
    over: Ints,
    free: bool,
) -> tuple[Floats, Floats] | None:
    """Waits before and after each part; what crosses the step's end is free, or takes its time."""
    step_ns = float(timeline.step_ns)
    made_ns = gaps.made_ns.astype(np.float64)
    made_ns[_maybe_far(timeline, gaps)] = -np.inf
    need_ns = gaps.before_start_ns.astype(np.float64)
    # In the step's tail it is needed a step later, in its head it was made a step before.
    made_before_ns = np.where(gaps.made_ns > 0, made_ns - step_ns, -np.inf)
    tail = (made_ns, np.where(gaps.crosses, np.inf if free else need_ns + step_ns, need_ns))
    head = (np.where(gaps.crosses, -np.inf if free else made_before_ns, made_ns), need_ns)
    due_ns = load.fullest_ns[over].astype(np.float64)
    missing = (load.bytes[over] - budget_bytes).astype(np.float64)
    out_ns, in_ns = 1e9 / machine.out_bytes_per_s, 1e9 / machine.in_bytes_per_s
    forwards = np.zeros(len(over))
    backwards = np.zeros(len(over))
    for i in range(len(over)):
        # By time: within a part, a gap may have begun when the part is fullest.
        begun, not_over = gaps.after_end_ns <= due_ns[i], gaps.before_start_ns >= due_ns[i]
        here = np.where(gaps.crosses, begun | not_over, begun & not_over)
        in_tail = begun[here]
        size = gaps.bytes[here].astype(np.float64)
        ready = np.where(in_tail, tail[0][here], head[0][here])
        need = np.where(in_tail, tail[1][here], head[1][here])
        if float(size.sum()) < missing[i]:
            return None
        forwards[i] = _late_by(size, ready, float(missing[i]), float(due_ns[i]), out_ns)
        backwards[i] = _late_by(size, -need, float(missing[i]), -float(due_ns[i]), in_ns)
    return forwards, backwards


def _maybe_far(timeline: Timeline, gaps: Gaps) -> NDArray[np.bool_]:
    """Which buffers may have a far copy of the step before, so that they leave without a copy."""
    tensors = [(a.buffer, a.tensor) for a in (timeline.absences[i] for i in gaps.absence.tolist())]
    crossing = {tensor for tensor, crosses in zip(tensors, gaps.crosses, strict=True) if crosses}
    crosses_too = np.array([tensor in crossing for tensor in tensors], dtype=np.bool_)
    far: NDArray[np.bool_] = crosses_too & (gaps.made_ns == 0)
    return far


def _late_by(
    size: Floats, ready_ns: Floats, missing: float, due_ns: float, ns_per_byte: float
) -> float:
    """By how much so many bytes miss the moment at which they are due, in order of readiness."""
    order = np.argsort(ready_ns, kind="stable")
    ready = ready_ns[order]
    gone = np.cumsum(size[order])
    last = int(np.searchsorted(gone, missing))
    # What was ready long ago has taken its time on the link long ago.
    copy_ns = np.where(np.isinf(ready), 0.0, size[order] * ns_per_byte)[: last + 1]
    copied = np.cumsum(copy_ns)
    end = copied[-1] + (ready[: last + 1] - (copied - copy_ns)).max()
    # The last buffer need not go as a whole, but not before it is ready either.
    spared = copy_ns[-1] * (gone[last] - missing) / size[order][last]
    return float(max(end - spared, ready[last], due_ns) - due_ns)
