"""GraphWatch: which graphs of a training, beside the planned one, are worth plans of their own."""

from __future__ import annotations

from collections import Counter

MOST_GRAPHS = 8
"""That have plans: each further one has all of them optimised again."""

# So many steps of a graph, and this part of those that were looked at, make it worth a plan, if
# lazy swaps had to move something in so many of them.
OFTEN, _SHARE, _MOVED = 8, 0.125, 0.5
# So often may a graph be profiled once more, for larger tensors.
_MOST_PROFILES = 4
# Steps that are looked at one after the other, and between that: at first, and in the end.
LOOKS, FIRST_PAUSE, _LONGEST_PAUSE = 32, 32, 1024


class GraphWatch:
    """Counts steps by graph.

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
        """Whether it is to be seen which graph the next step runs."""
        return self.has_unplanned and self._looks > 0

    def step_ended(self) -> bool:
        """One of any graph; says whether it is time to ask which graphs there are."""
        self._left -= 1
        if self._left > 0:
            return False
        self._looks = LOOKS
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._left = self._pause
        return True

    def ran(self, fingerprint: str, moved: bool, planned: bool) -> None:
        """A step that was looked at.

        Args:
            fingerprint: Of its graph.
            moved: Whether anything left the device in it.
            planned: Whether the graph has a plan, for tensors of that size.
        """
        self._looks = max(self._looks - 1, 0)
        self._seen += 1
        if not planned:
            self._ran[fingerprint] += 1
            self._moved[fingerprint] += moved

    def due(self) -> str | None:
        """A graph that is worth a plan, if there is one."""
        for fingerprint, steps in self._ran.most_common():
            if fingerprint in self._refused:
                continue
            moved = self._moved[fingerprint]
            if steps >= max(OFTEN, _SHARE * self._seen) and moved >= _MOVED * steps:
                return fingerprint
        return None

    def began_larger(self, fingerprint: str) -> None:
        """A graph that has a plan is profiled once more."""
        self._larger[fingerprint] += 1
        if self._larger[fingerprint] >= _MOST_PROFILES:
            self._refused.add(fingerprint)
        self.begin_anew()

    def refuse(self, fingerprint: str) -> None:
        """It will have no plan."""
        self._refused.add(fingerprint)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets what was counted."""
        self._seen = 0
        self._ran.clear()
        self._moved.clear()
