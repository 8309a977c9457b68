"""A lower bound on the time that any plan must wait.

Bytes in excess of the budget at a time t must have been copied out by t, and must be copied in
after t. The bound assumes that copies are divisible and start at once, and that the link serves
nothing else:

* take the bytes above the budget at t from the absences that contain t, in the order in which they
  are ready. They are copied out at f(t) at the earliest, so the step waits at least f(t) - t
  before t;
* backwards from the step's end: the bytes above the budget at u, those needed last first, must
  start to be copied in at g(u) at the latest, so the step waits at least u - g(u) after u.

Both hold at any time. In long steps only some hundred of the fullest times are evaluated.

The two waits do not overlap where t <= u, so they add up. In that sum, absences that cross the
step's end count as free (they may be copied out long before and in long after). Each wait alone is
a bound too; there, absences that cross the end must have been copied out since the buffer was made
in the previous step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.link import Link
from tfswap.planning.planners.load import Gaps, OpLoad
from tfswap.step.timeline import Timeline

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


_MAX_MOMENTS = 400


def least_wait_ns(timeline: Timeline, machine: Link, budget_bytes: int) -> int:
    """Return a lower bound in ns on the wait of any plan of swaps.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: upper limit of the load.

    Returns:
        The bound; the duration of the step if no plan of swaps can meet the budget.
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
    # Waits before t and after u are disjoint within one step only.
    apart = _bounds(timeline, machine, budget_bytes, load, gaps, over, free=True)
    if apart is not None:
        before = np.maximum.accumulate(apart[0])
        least = max(least, float((before + apart[1]).max()))
    return int(least)


def _fullest(load: OpLoad, over: Ints) -> Ints:
    """Return the fullest part of each of up to ``_MAX_MOMENTS`` stretches."""
    if len(over) <= _MAX_MOMENTS:
        return over
    fullest = [part[np.argmax(load.bytes[part])] for part in np.array_split(over, _MAX_MOMENTS)]
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
    """Return waits before and after each part; None if a part cannot meet the budget.

    With ``free``, absences that cross the step's end cost nothing.
    """
    step_ns = float(timeline.step_ns)
    made_ns = gaps.made_ns.astype(np.float64)
    made_ns[_has_earlier_far_copy(timeline, gaps)] = -np.inf
    need_ns = gaps.before_start_ns.astype(np.float64)
    # In the step's tail it is needed one step later, in its head it was made one step before.
    made_before_ns = np.where(gaps.made_ns > 0, made_ns - step_ns, -np.inf)
    tail = (made_ns, np.where(gaps.crosses, np.inf if free else need_ns + step_ns, need_ns))
    head = (np.where(gaps.crosses, -np.inf if free else made_before_ns, made_ns), need_ns)
    due_ns = load.fullest_ns[over].astype(np.float64)
    missing = (load.bytes[over] - budget_bytes).astype(np.float64)
    out_ns, in_ns = 1e9 / machine.out_bytes_per_s, 1e9 / machine.in_bytes_per_s
    forwards = np.zeros(len(over))
    backwards = np.zeros(len(over))
    for i in range(len(over)):
        # Compare times: within a part, a gap may begin before the part is fullest.
        begun, not_over = gaps.after_end_ns <= due_ns[i], gaps.before_start_ns >= due_ns[i]
        here = np.where(gaps.crosses, begun | not_over, begun & not_over)
        in_tail = begun[here]
        size = gaps.bytes[here].astype(np.float64)
        ready = np.where(in_tail, tail[0][here], head[0][here])
        need = np.where(in_tail, tail[1][here], head[1][here])
        if float(size.sum()) < missing[i]:
            return None
        forwards[i] = _lateness_ns(size, ready, float(missing[i]), float(due_ns[i]), out_ns)
        backwards[i] = _lateness_ns(size, -need, float(missing[i]), -float(due_ns[i]), in_ns)
    return forwards, backwards


def _has_earlier_far_copy(timeline: Timeline, gaps: Gaps) -> NDArray[np.bool_]:
    """Return which buffers may have a far copy from the previous step."""
    tensors = [(a.buffer, a.tensor) for a in (timeline.absences[i] for i in gaps.absence.tolist())]
    crossing = {tensor for tensor, crosses in zip(tensors, gaps.crosses, strict=True) if crosses}
    crosses_too = np.array([tensor in crossing for tensor in tensors], dtype=np.bool_)
    far: NDArray[np.bool_] = crosses_too & (gaps.made_ns == 0)
    return far


def _lateness_ns(
    size: Floats, ready_ns: Floats, missing: float, due_ns: float, ns_per_byte: float
) -> float:
    """Return how late the missing bytes are copied, in order of readiness."""
    order = np.argsort(ready_ns, kind="stable")
    ready = ready_ns[order]
    gone = np.cumsum(size[order])
    last = int(np.searchsorted(gone, missing))
    # Buffers that were ready long ago do not need the link any more.
    copy_ns = np.where(np.isinf(ready), 0.0, size[order] * ns_per_byte)[: last + 1]
    copied = np.cumsum(copy_ns)
    end = copied[-1] + (ready[: last + 1] - (copied - copy_ns)).max()
    # Only a part of the last buffer has to be copied, but not before the buffer is ready.
    spared = copy_ns[-1] * (gone[last] - missing) / size[order][last]
    return float(max(end - spared, ready[last], due_ns) - due_ns)
