"""GraphWatch: find further graphs of a training that deserve plans of their own."""

from __future__ import annotations

from collections import Counter

MOST_GRAPHS = 8
"""Graphs with plans, at most: each further plan makes TensorFlow optimise all of them again."""

# A graph deserves a plan after this many steps, if they are this part of the observed steps and
# on-demand swaps moved something in this part of them.
OFTEN, _SHARE, _MOVED = 8, 0.125, 0.5
# A graph is profiled again for larger tensors at most this many times.
_MOST_PROFILES = 4
# Steps observed in a row; and steps between observations, at first and at most.
LOOKS, FIRST_PAUSE, _LONGEST_PAUSE = 32, 32, 1024


class GraphWatch:
    """Count steps by graph.

    Attributes:
        has_unplanned: Whether there are graphs that train and have no plan.
    """

    def __init__(self) -> None:
        self.has_unplanned = False
        self._pause = self._left = FIRST_PAUSE
        self._looks = 0
        self._seen = 0
        self._ran: Counter[str] = Counter()
        self._moved: Counter[str] = Counter()
        self._refused: set[str] = set()
        self._larger: Counter[str] = Counter()

    @property
    def wants(self) -> bool:
        """Whether to observe which graph the next step runs."""
        return self.has_unplanned and self._looks > 0

    def step_ended(self) -> bool:
        """Count a step of any graph; return whether it is time to look for new graphs."""
        self._left -= 1
        if self._left > 0:
            return False
        self._looks = LOOKS
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._left = self._pause
        return True

    def ran(self, fingerprint: str, moved: bool, planned: bool) -> None:
        """Count an observed step.

        Args:
            fingerprint: Its graph's.
            moved: Whether anything left the device in it.
            planned: Whether the graph has a plan for tensors of that size.
        """
        self._looks = max(self._looks - 1, 0)
        self._seen += 1
        if not planned:
            self._ran[fingerprint] += 1
            self._moved[fingerprint] += moved

    def due(self) -> str | None:
        """Return a graph that deserves a plan, if there is one."""
        for fingerprint, steps in self._ran.most_common():
            if fingerprint in self._refused:
                continue
            moved = self._moved[fingerprint]
            if steps >= max(OFTEN, _SHARE * self._seen) and moved >= _MOVED * steps:
                return fingerprint
        return None

    def began_larger(self, fingerprint: str) -> None:
        """Note that a planned graph is profiled again."""
        self._larger[fingerprint] += 1
        if self._larger[fingerprint] >= _MOST_PROFILES:
            self._refused.add(fingerprint)
        self.begin_anew()

    def refuse(self, fingerprint: str) -> None:
        """Never plan this graph."""
        self._refused.add(fingerprint)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the counts."""
        self._seen = 0
        self._ran.clear()
        self._moved.clear()
