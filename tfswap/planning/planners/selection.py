"""Select absences greedily by the load that they remove.

The greedy half of AutoSwap's SWDOA (Zhang et al., arXiv 1903.06631, section IV), as in `greedy`:
the score is the area above the limit that an absence can remove, divided by the time of its copies;
the best absence is taken, and the rest is scored again. The first pass scores absences as long as
the link permits; the second pass scores the longest absences that gates and triggers can enforce,
until these keep the load within the limit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tfswap.planning.planners.candidates import Candidates, Ints, Mask, leaders, load_under
from tfswap.planning.planners.placement import link_windows, tight_windows
from tfswap.planning.planners.tight_load import tight_load
from tfswap.step.timeline import OUTLIVES_STEP_NS

Floats = NDArray[np.float64]

# Candidates are taken together if each score is at least this fraction of the best one, and their
# total bytes are at most this fraction of the excess.
_CLOSE_ENOUGH = 0.95
_BATCH_PART = 1 / 16
_LARGEST_BATCH = 16
_LARGEST_BATCH_PART = 1 / 128  # of all candidates, if that is more
_SIZE_CLASSES = 24


def select(candidates: Candidates, limit_bytes: int, link_factor: float) -> Mask:
    """Take absences greedily until gates and triggers can keep the load within the limit.

    Args:
        candidates: all usable absences.
        limit_bytes: target of the load; all candidates together must reach it.
        link_factor: factor on the duration of copies.
    """
    if link_factor > 0:
        selected = _select_within_windows(candidates, limit_bytes, link_factor)
    else:
        selected = np.zeros(len(candidates), dtype=np.bool_)
    return select_enforceable(candidates, limit_bytes, selected)


class _Areas:
    """Areas above the limit that absences can remove, for all candidates at once.

    Sizes are rounded to a few classes; a class's area is scaled to the candidate's own size.
    """

    def __init__(self, candidates: Candidates, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._crosses = candidates.crosses
        self._weight_ns = candidates.segment_weight_ns.astype(np.float64)
        sizes = np.unique(candidates.bytes)
        if len(sizes) > _SIZE_CLASSES:
            sizes = sizes[np.linspace(0, len(sizes) - 1, _SIZE_CLASSES).astype(np.int64)]
        self._class_bytes = sizes.astype(np.float64)
        self._class_of = np.searchsorted(sizes, candidates.bytes, side="right") - 1
        self._scale = candidates.bytes / np.maximum(self._class_bytes[self._class_of], 1.0)

    def removed(self, load: Ints, gone: Ints, back: Ints) -> Floats:
        """Return byte-nanoseconds per candidate for an absence from ``gone`` to ``back``."""
        crowded = load > self._limit_bytes
        place_of = np.concatenate([[0], np.cumsum(crowded)])
        excess = (load[crowded] - self._limit_bytes).astype(np.float64)
        weight_ns = self._weight_ns[crowded]
        total = np.zeros((len(self._class_bytes), len(excess) + 1))
        np.cumsum(
            np.minimum(excess, self._class_bytes[:, None]) * weight_ns, axis=1, out=total[:, 1:]
        )
        up_to_gone = total[self._class_of, place_of[gone]]
        end = np.where(self._crosses, back, np.maximum(back, gone))
        up_to_back = total[self._class_of, place_of[end]]
        around = np.where(self._crosses, total[self._class_of, -1], 0.0)
        removed: Floats = (up_to_back - up_to_gone + around) * self._scale
        return removed


def _best(candidates: Candidates, score: Floats, excess_bytes: int) -> Ints:
    """Return the best candidate and equally good ones that barely change the load."""
    largest = max(_LARGEST_BATCH, int(_LARGEST_BATCH_PART * len(candidates)))
    order = np.argsort(-score, kind="stable")[:largest]
    if not len(order) or score[order[0]] <= 0:
        return order[:0]
    near = score[order] >= score[order[0]] * _CLOSE_ENOUGH
    light = np.cumsum(candidates.bytes[order]) <= excess_bytes * _BATCH_PART
    light[0] = True
    best: Ints = order[near & light]
    return best


def _select_within_windows(candidates: Candidates, limit_bytes: int, link_factor: float) -> Mask:
    """Run greedy SWDOA on absences as long as the link permits, until no further one helps."""
    selected = np.zeros(len(candidates), dtype=np.bool_)
    areas = _Areas(candidates, limit_bytes)
    queue = _LinkQueue(candidates, link_factor)
    while True:
        gone, back, places = queue.update(selected)
        load = load_under(candidates, places, gone, back)
        excess_bytes = int(load.max()) - limit_bytes
        if excess_bytes <= 0:
            return selected
        gone, back, link_ns = queue.windows()
        score = areas.removed(load, gone, back) / link_ns
        score[selected] = 0.0
        taken = _best(candidates, score, excess_bytes)
        if not len(taken):
            return selected
        selected[taken] = True


class _LinkQueue:
    """Where an additional copy would be queued among the selected ones."""

    def __init__(self, candidates: Candidates, link_factor: float) -> None:
        ns = candidates.segment_ns
        self._candidates = replace(
            candidates,
            out_ns=(candidates.out_ns * link_factor).astype(np.int64),
            in_ns=(candidates.in_ns * link_factor).astype(np.int64),
        )
        self._ready_ns = ns[candidates.producer_end]
        self._need_ns = ns[candidates.before_start]
        self._out_end_of_far_copy = np.zeros(0, dtype=np.int64)
        self._outs_ready_ns = np.zeros(0, dtype=np.int64)
        self._outs_end_ns = np.zeros(0, dtype=np.int64)
        self._ins_need_ns = np.zeros(0, dtype=np.int64)
        self._ins_start_ns = np.zeros(0, dtype=np.int64)

    def update(self, selected: Mask) -> tuple[Ints, Ints, Ints]:
        """Queue the copies of the selected candidates again; return (gone, back, places)."""
        candidates = self._candidates
        places = np.flatnonzero(selected)
        leads = leaders(candidates, selected)[places]
        windows = link_windows(candidates, places, leads)
        outs, out_end = places[leads], windows.out_end_ns[leads]
        order = np.argsort(self._ready_ns[outs], kind="stable")
        self._outs_ready_ns = self._ready_ns[outs][order]
        self._outs_end_ns = out_end[order]
        self._out_end_of_far_copy = np.full(int(candidates.far_copy.max(initial=0)) + 2, -1)
        self._out_end_of_far_copy[candidates.far_copy[outs]] = out_end
        # Copied out in the previous step.
        carried = candidates.made_before[places[candidates.crosses[places]]]
        self._out_end_of_far_copy[2 * carried] = 0
        order = np.argsort(self._need_ns[places], kind="stable")
        self._ins_need_ns = self._need_ns[places][order]
        self._ins_start_ns = windows.in_start_ns[order]
        gone, back = self._segments(places, windows.out_end_ns, windows.in_start_ns)
        return gone, back, places

    def windows(self) -> tuple[Ints, Ints, Ints]:
        """Return (gone, back, ns of link time) of each candidate if it were selected too."""
        candidates = self._candidates
        ahead = np.searchsorted(self._outs_ready_ns, self._ready_ns, side="right")
        link_free = np.concatenate([[0], self._outs_end_ns])[ahead]
        out_end = np.maximum(self._ready_ns, link_free) + candidates.out_ns
        shared = self._out_end_of_far_copy[candidates.far_copy]
        out_end = np.where(shared >= 0, shared, out_end)

        ahead = np.searchsorted(self._ins_need_ns, self._need_ns, side="left")
        link_free = np.append(self._ins_start_ns, OUTLIVES_STEP_NS)[ahead]
        in_start = np.minimum(self._need_ns, link_free) - candidates.in_ns

        link_ns = np.where(shared >= 0, 0, candidates.out_ns) + candidates.in_ns
        gone, back = self._segments(np.arange(len(candidates)), out_end, in_start)
        return gone, back, np.maximum(link_ns, 1)

    def _segments(self, places: Ints, out_end_ns: Ints, in_start_ns: Ints) -> tuple[Ints, Ints]:
        candidates = self._candidates
        gone = np.searchsorted(candidates.segment_ns, out_end_ns, side="left")
        gone = np.maximum(gone, candidates.after_end[places])
        back = np.searchsorted(candidates.segment_ns, in_start_ns, side="right") - 1
        back = np.minimum(back, candidates.latest_trigger_end[places])
        return np.minimum(gone, len(candidates.segment_ns) - 1), np.maximum(back, 0)


def select_enforceable(
    candidates: Candidates, limit_bytes: int, selected: Mask, allowed: Mask | None = None
) -> Mask:
    """Take more absences, at their longest enforceable length, until the load is within the limit.

    Args:
        candidates: all usable absences.
        limit_bytes: target of the load.
        selected: absences that are already taken.
        allowed: absences that may be taken; None: all.
    """
    selected = selected.copy()
    if allowed is None:
        allowed = np.ones(len(candidates), dtype=np.bool_)
    areas = _Areas(candidates, limit_bytes)
    link_ns = np.maximum(candidates.out_ns + candidates.in_ns, 1)
    everything = np.arange(len(candidates))
    gone, back = tight_windows(candidates, everything, np.ones(len(candidates), dtype=np.bool_))
    while True:
        load = tight_load(candidates, selected)
        excess_bytes = int(load.max()) - limit_bytes
        if excess_bytes <= 0:
            return selected
        score = areas.removed(load, gone, back) / link_ns
        score[selected | ~allowed] = 0.0
        taken = _best(candidates, score, excess_bytes)
        if not len(taken):
            # The rest only works together with absences that share far copies: after an existing
            # far copy, a buffer is free as soon as it is unused, without a gate.
            return selected | allowed
        selected[taken] = True
