"""RateLimit: how many messages somebody may send."""

from __future__ import annotations


class RateLimit:
    """A bucket of tokens that fills with time.

    Args:
        burst: How many there are at first, and at most.
        per_s: How many come back in a second.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._tokens = burst
        self._at_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Whether one more is within the limit.

        Args:
            now_s: On a clock that never goes back.
        """
        if self._at_s is not None:
            self._tokens = min(self._tokens + (now_s - self._at_s) * self._per_s, self._burst)
        self._at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def give_back(self) -> None:
        """The last one does not count: it was asked for."""
        self._tokens = min(self._tokens + 1, self._burst)
