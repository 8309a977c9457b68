"""RateLimit: limits how many messages a job may send."""

from __future__ import annotations


class RateLimit:
    """A token bucket.

    Args:
        burst: Initial and maximum number of tokens.
        per_s: Tokens added per second.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._tokens = burst
        self._updated_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Take a token; return whether there was one.

        Args:
            now_s: Time on a monotonic clock.
        """
        if self._updated_s is not None:
            self._tokens = min(self._tokens + (now_s - self._updated_s) * self._per_s, self._burst)
        self._updated_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def return_token(self) -> None:
        """Return a token, for an answer to a request of the broker."""
        self._tokens = min(self._tokens + 1, self._burst)
