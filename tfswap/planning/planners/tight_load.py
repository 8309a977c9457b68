"""The load under a selection of absences, updated as absences are removed or added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from tfswap import _core
from tfswap.planning.planners.candidates import Candidates, Ints, Mask, leaders, load_under
from tfswap.planning.planners.placement import tight_windows


def tight_load(candidates: Candidates, selected: Mask) -> Ints:
    """Return each segment's load with selected absences at their enforceable length."""
    places = np.flatnonzero(selected)
    gone, back = tight_windows(candidates, places, leaders(candidates, selected)[places])
    return load_under(candidates, places, gone, back)


class TightLoad:
    """The maximum of `tight_load`, updated in logarithmic time when an absence is removed or added.

    Args:
        candidates: all candidates.
        selected: which of them are swapped.
    """

    def __init__(self, candidates: Candidates, selected: Mask) -> None:
        self._tree = _core.MaxTree(tight_load(candidates, selected))
        self._segments = len(candidates.segment_load)
        self._bytes = candidates.bytes.tolist()
        self._crosses = candidates.crosses.tolist()
        self._far_copy = candidates.far_copy.tolist()
        self._made_before = candidates.made_before.tolist()
        self._earliest_release = candidates.earliest_release.tolist()
        self._after_end = candidates.after_end.tolist()
        self._latest_trigger_end = candidates.latest_trigger_end.tolist()
        # Absences of one tensor share far copies: which one copies out depends on the others.
        self._of_tensor: dict[int, list[int]] = defaultdict(list)
        for place in np.flatnonzero(selected).tolist():
            self._of_tensor[self._far_copy[place] >> 1].append(place)

    @property
    def max_bytes(self) -> int:
        """The largest load."""
        return int(self._tree.max())

    def remove(self, candidate: int) -> None:
        """Remove a selected candidate."""
        self._change(candidate, lambda places: places.remove(candidate))

    def restore(self, candidate: int) -> None:
        """Add a removed candidate again."""

        def insert(places: list[int]) -> None:
            places.append(candidate)
            places.sort()

        self._change(candidate, insert)

    def _change(self, candidate: int, change: Callable[[list[int]], None]) -> None:
        places = self._of_tensor[self._far_copy[candidate] >> 1]
        self._add(places, +1)
        change(places)
        self._add(places, -1)

    def _add(self, places: list[int], sign: int) -> None:
        carried = {self._made_before[p] for p in places if self._crosses[p]}
        led: set[int] = set()
        for place in places:
            far_copy = self._far_copy[place]
            served = (
                not self._crosses[place]
                and self._made_before[place] >= 0
                and self._made_before[place] in carried
            )
            leads = far_copy not in led and not served
            led.add(far_copy)
            gone = self._earliest_release[place] if leads else self._after_end[place]
            back = self._latest_trigger_end[place]
            delta = sign * self._bytes[place]
            if self._crosses[place]:
                self._tree.add(gone, self._segments, delta)
                self._tree.add(0, back, delta)
            else:
                self._tree.add(gone, back, delta)
