"""GraphWatch: find further graphs of a training that deserve plans of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_GRAPHS = 8
"""Maximum number of planned graphs: each plan makes TensorFlow optimise all of them again."""

# A graph deserves a plan after this many observed steps, if they are this fraction of all observed
# steps and on-demand swaps moved something in this fraction of them.
OFTEN, _SHARE, _MOVED = 8, 0.125, 0.5
# A graph is profiled again for larger tensors at most this many times.
_MAX_PROFILES = 4
# Number of steps to observe; and of steps between observations, at first and at most.
LOOKS, FIRST_PAUSE, _LONGEST_PAUSE = 32, 32, 1024


@dataclass(frozen=True)
class GraphWatch:
    """Count the steps of graphs without a plan.

    Attributes:
        has_unplanned: Whether there are graphs that train and have no plan, or steps that needed
            more than planned.
        beyond: Number of steps that needed more than planned, since the last look.
    """

    has_unplanned: bool = False
    beyond: int = 0
    _pause: int = field(default_factory=lambda: FIRST_PAUSE)
    _left: int = field(default_factory=lambda: FIRST_PAUSE)
    _looks: int = 0
    _seen: int = 0
    _ran: Mapping[str, int] = field(default_factory=dict)
    _moved: Mapping[str, int] = field(default_factory=dict)
    _refused: frozenset[str] = frozenset()
    _larger: Mapping[str, int] = field(default_factory=dict)

    @property
    def observes(self) -> bool:
        """Whether to record the next step, to see which graph it runs."""
        return self.has_unplanned and self._looks > 0

    def step_ended(self, needed_more: bool) -> tuple[GraphWatch, bool]:
        """Count a step; return also whether it is time to look for new graphs.

        Args:
            needed_more: Whether on-demand swaps had to make room in it.
        """
        beyond, left = self.beyond + needed_more, self._left - 1
        if left > 0:
            return dataclasses.replace(self, beyond=beyond, _left=left), False
        pause = min(2 * self._pause, _LONGEST_PAUSE)
        watch = dataclasses.replace(self, beyond=beyond, _looks=LOOKS, _pause=pause, _left=pause)
        return watch, True

    def looked(self, has_unplanned: bool) -> GraphWatch:
        """Note whether there are graphs that train and have no plan."""
        found = has_unplanned or self.beyond >= OFTEN
        return dataclasses.replace(self, has_unplanned=found, beyond=0)

    def ran(self, fingerprint: str, moved: bool, is_planned: bool) -> GraphWatch:
        """Count an observed step.

        Args:
            fingerprint: Its graph's.
            moved: Whether anything was swapped out in it.
            is_planned: Whether the graph has a plan for tensors of that size.
        """
        looks, seen = max(self._looks - 1, 0), self._seen + 1
        if is_planned:
            return dataclasses.replace(self, _looks=looks, _seen=seen)
        ran = {**self._ran, fingerprint: self._ran.get(fingerprint, 0) + 1}
        moves = {**self._moved, fingerprint: self._moved.get(fingerprint, 0) + moved}
        return dataclasses.replace(self, _looks=looks, _seen=seen, _ran=ran, _moved=moves)

    def is_due(self, fingerprint: str) -> bool:
        """Return whether a graph deserves a plan."""
        steps = self._ran.get(fingerprint, 0)
        return (
            fingerprint not in self._refused
            and steps >= max(OFTEN, _SHARE * self._seen)
            and self._moved[fingerprint] >= _MOVED * steps
        )

    def profiled_larger(self, fingerprint: str) -> GraphWatch:
        """Note that a planned graph is profiled again, for larger tensors."""
        count = self._larger.get(fingerprint, 0) + 1
        watch = dataclasses.replace(self, _larger={**self._larger, fingerprint: count})
        return watch.refuse(fingerprint) if count >= _MAX_PROFILES else watch.restart()

    def refuse(self, fingerprint: str) -> GraphWatch:
        """Note that a graph gets no plan."""
        return dataclasses.replace(self.restart(), _refused=self._refused | {fingerprint})

    def restart(self) -> GraphWatch:
        """Forget the counts."""
        return dataclasses.replace(self, _seen=0, _ran={}, _moved={})
