"""Local search around a plan, by the native `LocalSearch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tfswap import _core
from tfswap.machine.link import Link
from tfswap.planning.planners.decision import MIN_SWAP_BYTES, Decision, copying_ns, cost
from tfswap.planning.simulator import Swap, core_tiers, simulate, swap_rows
from tfswap.step.timeline import Timeline

_NO_LIMIT = 1 << 62
_IMPROVED = ", improved"
NEGLIGIBLE_WAIT = 0.002
"""Waits below this fraction of the step do not justify a search of a second."""

_PROGRESS_EVERY_S = 1.0
_SLOW = 16.0
# Fraction of the budget that stays free if the first plan leaves it free.
_MARGIN = 0.01


def improve_plan(
    decision: Decision,
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    deadline_s: float,
    log: Callable[[str], None] | None = None,
    min_bytes: int = MIN_SWAP_BYTES,
    tries: int = _NO_LIMIT,
    seed: int = 1,
    forms: NDArray[np.int64] | None = None,
) -> Decision:
    """Return the decision, or a better one if the search finds one in time.

    More time never gives a worse plan: the search tries the same plans in the same order.

    Args:
        decision: start of the search; within the budget.
        timeline: the unswapped step.
        machine: speeds of the link.
        budget_bytes: the load must never exceed it.
        deadline_s: when to stop, in ``time.monotonic()``'s time.
        log: called with a progress line about every second.
        min_bytes: smaller buffers are not swapped.
        tries: maximal number of plans to try.
        seed: of the random choice of plans.
        forms: int64[absences, 3]; `Swap`'s far_bytes, encode_ns and decode_ns for swaps that the
            search adds. None: buffers are not encoded.
    """
    enough_ns = int(timeline.step_ns * NEGLIGIBLE_WAIT)
    begun_s = time.monotonic()
    if not decision.swaps or decision.result.stall_ns <= enough_ns or begun_s >= deadline_s:
        return decision
    limit_bytes = max(decision.result.peak_bytes, int(budget_bytes * (1 - _MARGIN)))
    needs_gates = keeps_budget_on_slow_link(decision.swaps, timeline, machine, limit_bytes)
    search = _core.LocalSearch(
        timeline.core,
        swap_rows(decision.swaps),
        usable=timeline.op_gateable,
        op_context=timeline.op_context,
        absence_context=np.array([a.context for a in timeline.absences], dtype=np.int32),
        forms=np.empty(0, dtype=np.int64) if forms is None else forms.ravel(),
        min_bytes=min_bytes,
        tier=core_tiers(machine)[0],
        limit_bytes=limit_bytes,
        slow=_slow_tier(machine) if needs_gates else None,
        copying_ns_per_byte=copying_ns(machine, 1 << 40, 0) / (1 << 40),
        enough_ns=enough_ns,
        seed=seed,
    )
    while (left_s := deadline_s - time.monotonic()) > 0:
        if not search.run(min(left_s, _PROGRESS_EVERY_S), tries):
            break
        if log is not None and (now_s := time.monotonic()) < deadline_s:
            log(f"planning: waits of {search.stall_ns / 1e6:.1f} ms after {now_s - begun_s:.0f} s")
    swaps = tuple(Swap(*row) for row in search.swaps())
    result = simulate(timeline, swaps, machine)
    if cost(result, machine) >= cost(decision.result, machine):
        return decision
    policy = f"{decision.policy.removesuffix(_IMPROVED)}{_IMPROVED}"
    return replace(decision, policy=policy, swaps=swaps, result=result)


def keeps_budget_on_slow_link(
    swaps: Sequence[Swap], timeline: Timeline, machine: Link, budget_bytes: int
) -> bool:
    """Return whether gates and triggers keep the budget even if copies are much slower.

    Gates cannot act across the step's end, so plans with such swaps hold on their own link only.
    """
    result = _core.simulate(timeline.core, swap_rows(sorted(swaps)), [_slow_tier(machine)])
    return result.peak_bytes <= budget_bytes


def _slow_tier(machine: Link) -> _core.Tier:
    return _core.Tier(
        machine.out_bytes_per_s / _SLOW, machine.in_bytes_per_s / _SLOW, machine.out_latency_ns
    )
