"""JSON from anywhere: read within bounds, and taken apart field by field.

Plans, what is remembered on disk, and assets of models may come from anywhere. Text is bounded
before anything is built of it; each field is checked before it is used.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

MOST_BYTES = 64 << 20
"""Of a text."""

MOST_VALUES = 1 << 22
"""In a text: numbers, texts, lists, objects."""

LONGEST_NAME = 1 << 13
"""Characters of a name: of nodes, tensors, planners."""

T = TypeVar("T")


def parse_json(text: str | bytes, what: str) -> Any:
    """Reads JSON.

    Args:
        text: At most `MOST_BYTES` with at most `MOST_VALUES`.
        what: By which errors call it.

    Raises:
        ValueError: It is no JSON (an object says nothing twice, and each number is a number), or
            larger than anything of the kind.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"{what} has {len(text)} characters, more than {MOST_BYTES}")
    # Each value but the first follows one of these signs.
    if isinstance(text, bytes):
        values = text.count(b",") + text.count(b"[") + text.count(b"{")
    else:
        values = text.count(",") + text.count("[") + text.count("{")
    if values > MOST_VALUES:
        raise ValueError(f"{what} has {values} values, more than {MOST_VALUES}")
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise ValueError(f"{what} is not JSON that anybody writes: it is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object says {twice[:100]!r} twice")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:100]} is no number")
    return number


class Fields:
    """The fields of an object, taken out one after the other; `end` refuses what is left.

    Each method takes a field's name, and what to answer where there is none (by default there must
    be one).

    Args:
        data: What was read.
        what: By which errors call it.

    Raises:
        ValueError: It is no object; of all methods, that the field is missing or is none of what is
            allowed.
    """

    _NEEDED: Any = object()

    def __init__(self, data: object, what: str) -> None:
        if not isinstance(data, dict):
            raise ValueError(f"{what} is not an object")
        self._left = dict(data)
        self._what = what

    def any(self, name: str, otherwise: Any = _NEEDED) -> Any:
        """Whatever it is."""
        if name in self._left:
            return self._left.pop(name)
        if otherwise is self._NEEDED:
            raise ValueError(f"{self._what} has no {name!r}")
        return otherwise

    def name(self, name: str, otherwise: str = _NEEDED) -> str:
        """A text of at most `LONGEST_NAME` characters."""
        return self._name_of(name, self.any(name, otherwise))

    def flag(self, name: str, otherwise: bool = _NEEDED) -> bool:
        """True or false."""
        value = self.any(name, otherwise)
        if not isinstance(value, bool):
            raise self._misfit(name, value, "true or false")
        return value

    def integer(self, name: str, least: int, most: int, otherwise: int = _NEEDED) -> int:
        """An integer from `least` to `most`."""
        value = self.any(name, otherwise)
        if type(value) is not int or not least <= value <= most:
            raise self._misfit(name, value, f"an integer from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float, otherwise: float = _NEEDED) -> float:
        """A number from `least` to `most`."""
        value = self.any(name, otherwise)
        if type(value) not in (int, float) or not least <= value <= most:
            raise self._misfit(name, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def list(self, name: str, otherwise: Iterable[Any] = _NEEDED) -> list[Any]:
        """A list."""
        value = self.any(name, otherwise)
        if not isinstance(value, (list, tuple)):
            raise self._misfit(name, value, "a list")
        return list(value)

    def names(self, name: str, otherwise: Iterable[str] = _NEEDED) -> tuple[str, ...]:
        """A list of such texts as `name` answers."""
        return tuple(self._name_of(name, each) for each in self.list(name, otherwise))

    def each(
        self, name: str, read: Callable[[Any], T], otherwise: Iterable[Any] = _NEEDED
    ) -> tuple[T, ...]:
        """What `read` makes of each value in a list."""
        return tuple(read(value) for value in self.list(name, otherwise))

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """A list of pairs of such texts as `name` answers."""
        found = []
        for pair in self.list(name):
            if not isinstance(pair, list) or len(pair) != 2:
                raise self._misfit(name, pair, "a list of pairs of names")
            found.append((self._name_of(name, pair[0]), self._name_of(name, pair[1])))
        return tuple(found)

    def end(self) -> None:
        """Refuses fields that nobody has taken."""
        for name in self._left:
            raise ValueError(f"{self._what} has an unknown {name[:100]!r}")

    def _name_of(self, name: str, value: object) -> str:
        if not isinstance(value, str) or len(value) > LONGEST_NAME:
            raise self._misfit(name, value, f"a text of at most {LONGEST_NAME} characters")
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise self._misfit(name, value, "a text that has each character as a whole")
        return value

    def _misfit(self, name: str, value: object, wanted: str) -> ValueError:
        shown = reprlib.repr(value)
        return ValueError(f"{self._what}: {name!r} is or holds {shown}; it must be {wanted}")
