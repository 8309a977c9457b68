"""Phase: where a training stands on the way to its plan."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What the next call of the training function is for."""

    IDLE = "idle"
    FIRST = "first"
    WARM = "warm"  # the second call of a function is still slow, and would be a bad profile
    PROFILE = "profile"
    SETTLE = "settle"
    MEASURE = "measure"
    LAYOUT = "addresses"  # what the plan's steps allocate is recorded, and packed; that is tried
    STEADY = "steady"
    LAZY = "lazy"  # what does not train has no plan: lazy swaps stay

    @property
    def is_settled(self) -> bool:
        """Whether the plan is one that will stay."""
        return self in (Phase.LAYOUT, Phase.STEADY)

    @property
    def has_planned(self) -> bool:
        """Whether there was a profile, or a plan that was given."""
        return self.is_settled or self in (Phase.SETTLE, Phase.MEASURE)
