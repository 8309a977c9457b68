"""Share: what a job requests from a broker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tfswap.machine.budget import Budget, parse_bytes

WAIT_S = 600.0
"""Default time that a job waits for its first share."""

MAX_WEIGHT = 1000.0
"""Maximum weight, so that no job can starve all others."""


@dataclass(frozen=True)
class Share:
    """A job's request to a broker that divides a device among several jobs.

    Args:
        weight: Weight of the job's slowdown in the sum that the broker minimises; under
            ``--divide weights``, its part of the memory above the minima. Above 0, at most 1000.
            Defaults to 1.
        minimum: Least budget, as an int or a string such as "1GiB": the job starts with at least
            that much and never gets less. None stands for the memory in use when it joins.
            Defaults to None.
        wait_s: Maximum wait for the first share, in seconds. Defaults to 600.
        name: The job's name in the broker's log and options. None uses the script's name.
            Defaults to None.

    Raises:
        ValueError: A value is invalid.
    """

    weight: float = 1.0
    minimum: int | str | None = None
    wait_s: float = WAIT_S
    name: str | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.weight) or not 0 < self.weight <= MAX_WEIGHT:
            raise ValueError(
                f"share: weight is {self.weight!r}; it must be above 0 and at most {MAX_WEIGHT:g}"
            )
        if not _is_number(self.wait_s) or not 0 <= self.wait_s < math.inf:
            raise ValueError(f"share: wait_s is {self.wait_s!r}; it must be 0 or more")
        if self.name is not None and not isinstance(self.name, str):
            raise ValueError(f"share: name is {self.name!r}; it must be a string or None")
        try:
            _ = self.minimum_bytes
        except ValueError as error:
            raise ValueError(f"share: minimum: {error}") from None

    @property
    def minimum_bytes(self) -> int:
        """The minimum in bytes; 0 without one."""
        minimum: Budget | None = self.minimum
        return 0 if minimum is None else parse_bytes(minimum)

    @staticmethod
    def parse(share: Share | str | None) -> Share | None:
        """Parse a string such as ``"weight=2,minimum=1GiB,wait_s=60"``.

        Raises:
            ValueError: The string cannot be parsed, or a value is invalid.
        """
        if share is None or isinstance(share, Share):
            return share
        if not isinstance(share, str):
            raise ValueError(f"share is {share!r}; it must be a tfswap.Share or a string")
        values: dict[str, Any] = {}
        for part in share.split(","):
            name, equals, text = (piece.strip() for piece in part.partition("="))
            if not equals or name not in _FIELDS or name in values:
                raise ValueError(f"share is {share!r}. {_FORMAT}")
            values[name] = text if name in ("minimum", "name") else _number(name, text)
        return Share(**values)


_FIELDS = ("weight", "minimum", "wait_s", "name")
_FORMAT = (
    "A string must have one or more of weight=, minimum=, wait_s= and name=, such as "
    '"weight=2,minimum=1GiB"'
)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"share: {name} is {text!r}; it must be a number") from None
