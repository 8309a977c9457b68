"""Share: what a job asks for of a device that it has not for itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tfswap.machine.budget import Budget, parse_bytes

WAIT_S = 600.0
"""How long a job waits for its first share, unless it says otherwise."""

STEP_WAIT_S = 60.0
"""How long its first step waits for what it is foretold to need."""

MOST_WEIGHT = 1000.0
"""Of a job: a weight says how much it counts beside others, and none counts for all of them."""


@dataclass(frozen=True)
class Share:
    """What a job asks for, beside others on the same device: of a broker.

    Args:
        weight: How much its slowdown counts beside that of others; where shares go by weights, its
            part of what is above the minima. Above 0, at most 1000. Defaults to 1.
        minimum: What it needs in any case, as an int or text of bytes; it does not begin with less,
            and never has less. None: what it holds when it joins. Defaults to None.
        wait_s: How long it waits for its first share, in seconds. Defaults to 600.
        name: By which the broker speaks of it. None: the script's. Defaults to None.

    Raises:
        ValueError: A value is none of these.
    """

    weight: float = 1.0
    minimum: int | str | None = None
    wait_s: float = WAIT_S
    name: str | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.weight) or not 0 < self.weight <= MOST_WEIGHT:
            raise ValueError(
                f"share: weight is {self.weight!r}; it must be above 0 and at most {MOST_WEIGHT:g}"
            )
        if not _is_number(self.wait_s) or not 0 <= self.wait_s < math.inf:
            raise ValueError(f"share: wait_s is {self.wait_s!r}; it must be 0 s or more")
        if self.name is not None and not isinstance(self.name, str):
            raise ValueError(f"share: name is {self.name!r}; it must be a text, or None")
        try:
            _ = self.minimum_bytes
        except ValueError as error:
            raise ValueError(f"share: minimum: {error}") from None

    @property
    def minimum_bytes(self) -> int:
        """The minimum; 0 if there is none."""
        minimum: Budget | None = self.minimum
        return 0 if minimum is None else parse_bytes(minimum)

    @staticmethod
    def parse(share: Share | str | None) -> Share | None:
        """A share from a text such as ``"weight=2,minimum=1GiB,wait_s=60"``.

        Raises:
            ValueError: It is no such text, or a value is none of what is allowed.
        """
        if share is None or isinstance(share, Share):
            return share
        if not isinstance(share, str):
            raise ValueError(f"share is {share!r}; it must be a tfswap.Share. {_HOW}")
        values: dict[str, Any] = {}
        for part in share.split(","):
            name, equals, text = (piece.strip() for piece in part.partition("="))
            if not equals or name not in _FIELDS or name in values:
                raise ValueError(f"share is {share!r}. {_HOW}")
            values[name] = text if name in ("minimum", "name") else _number(name, text)
        return Share(**values)


_FIELDS = ("weight", "minimum", "wait_s", "name")
_HOW = 'As a text it is one or more of weight=, minimum=, wait_s=, name=: "weight=2,minimum=1GiB"'


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"share: {name} is {text!r}; it must be a number") from None
