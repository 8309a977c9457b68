"""DriftWatch: which steps of a settled training are recorded in passing, and when plans may change.

Recording a step costs little, planning one costs seconds and has the graph optimised again. So
there are pauses: between recordings as long as nothing changes, between plans always, each longer
than the one before.
"""

from __future__ import annotations

from tfswap.training.op_times import DRIFT

# Steps between two recordings: at first, and where nothing has changed for long.
FIRST_PAUSE, _LONGEST_PAUSE = 64, 1024
# So many steps are recorded one after the other where something seems to have changed: averages
# that follow with a quarter have come to within a tenth of a lasting change then.
_LOOKS = 8
# What a step takes: the mean of the first so many, and then an average that follows with so much.
_FIRST_STEPS, _WEIGHT = 16, 0.1
# Steps until there may be another plan, after the first one for drift.
_BETWEEN_PLANS = 256


class DriftWatch:
    """Looks at the time of each step."""

    def __init__(self) -> None:
        self._pause = self._left = FIRST_PAUSE
        self._looks = 0
        self._steps = 0
        self._sum_s = 0.0
        self._usual_s = 0.0
        self._average_s = 0.0
        self._between_plans = _BETWEEN_PLANS
        self._until_plan = 0

    @property
    def wants(self) -> bool:
        """Whether the next step should be recorded."""
        return self._left <= 0 or self._looks > 0

    @property
    def may_plan(self) -> bool:
        """Whether the last plan for drift is long enough ago."""
        return self._until_plan <= 0

    def look_on(self, steps: int = _LOOKS) -> None:
        """Has the next steps recorded, one after the other."""
        if not self._looks:
            self._looks = steps

    def step_ended(self, seconds: float, recorded: bool) -> None:
        """Takes a step's time."""
        self._until_plan -= 1
        self._left -= 1
        if recorded:
            self._recorded()
        self._steps += 1
        if self._steps <= _FIRST_STEPS:
            self._sum_s += seconds
            self._usual_s = self._average_s = self._sum_s / self._steps
            return
        self._average_s += _WEIGHT * (seconds - self._average_s)
        if not self._looks and abs(self._average_s - self._usual_s) > DRIFT * self._usual_s:
            self.look_on()
            self.begin_anew()

    def begin_anew(self) -> None:
        """What steps take from now on is what is usual."""
        self._steps, self._sum_s = 0, 0.0

    def _recorded(self) -> None:
        if self._looks:
            self._looks -= 1
            self._left = self._pause
            return
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._left = self._pause

    def planned(self) -> None:
        """There was a plan for what has drifted, be it that the old one stayed."""
        self._until_plan = self._between_plans
        self._between_plans *= 2
        self._looks = 0
        self._pause = self._left = FIRST_PAUSE
        self.begin_anew()
