"""OpTimes: what the ops of a step take, as moving averages, beside what its plan goes by."""

from __future__ import annotations

from collections.abc import Mapping

WEIGHT = 0.25
"""Of a new time in an average. TENSILE's is 0.9, so its averages follow each disturbed step. With a
quarter, one that takes twice as long as usual stays within `DRIFT`, and a second one does not.
"""

DRIFT = 0.3
"""Beyond this part of what a plan goes by, times are others: TENSILE's figure."""

# Of the time that is planned with, ops in a recording must account for: else it is of a part.
_LEAST_KNOWN = 0.9


class OpTimes:
    """Averages by op. Ops that the plan does not know are of no interest.

    Args:
        planned_ns: What the plan goes by.
    """

    def __init__(self, planned_ns: Mapping[str, int]) -> None:
        self._planned_ns: dict[str, float] = dict(planned_ns)
        self._average_ns = dict(self._planned_ns)

    def add(self, durations_ns: Mapping[str, int]) -> float | None:
        """Takes the times of a recorded step.

        Returns:
            How much longer those ops took than planned with, as a part of that; below 0 if they
            took less. None: too few of them were there, and it was not taken.
        """
        known = self._planned_ns.keys() & durations_ns.keys()
        planned_ns = sum(self._planned_ns[op] for op in known)
        if not planned_ns or planned_ns < _LEAST_KNOWN * self.planned_ns:
            return None
        for op in known:
            self._average_ns[op] += WEIGHT * (durations_ns[op] - self._average_ns[op])
        return sum(durations_ns[op] for op in known) / planned_ns - 1

    @property
    def planned_ns(self) -> float:
        """Of all ops."""
        return sum(self._planned_ns.values())

    @property
    def average_ns(self) -> float:
        """Likewise, now."""
        return sum(self._average_ns.values())

    @property
    def drift(self) -> float:
        """How much longer ops take than planned with, as a part of that; below 0 if less."""
        return self.average_ns / self.planned_ns - 1 if self.planned_ns else 0.0

    @property
    def has_drifted(self) -> bool:
        """Whether a plan for the averages may be another one."""
        return abs(self.drift) > DRIFT

    def ratios(self) -> dict[str, float]:
        """By op, how many times as long as planned with it takes."""
        return {
            op: max(self._average_ns[op], 1.0) / max(planned_ns, 1.0)
            for op, planned_ns in self._planned_ns.items()
        }

    def plan_with_averages(self) -> None:
        """Plans go by the averages from now on; drift begins anew."""
        self._planned_ns = dict(self._average_ns)
