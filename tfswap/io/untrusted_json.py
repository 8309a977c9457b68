"""Parse untrusted JSON within bounds, and check it field by field.

Plans, cached files and assets of models are untrusted input. The size of the text is checked before
it is parsed, and each field is checked before it is used.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

MAX_BYTES = 64 << 20
"""Maximum size of a JSON text."""

MAX_VALUES = 1 << 22
"""Maximum number of values (numbers, strings, lists, objects) in a JSON text."""

MAX_NAME_LENGTH = 1 << 13
"""Maximum number of characters of a name (of a node, tensor or planner)."""

T = TypeVar("T")


def parse_json(text: str | bytes, what: str) -> Any:
    """Parse JSON.

    Args:
        text: At most `MAX_BYTES` with at most `MAX_VALUES`.
        what: The name of the text in error messages.

    Raises:
        ValueError: The text is too large, or not JSON without duplicate keys and with finite
            numbers.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"{what} has {len(text)} characters, more than {MAX_BYTES}")
    # Every value but the first follows one of these characters.
    if isinstance(text, bytes):
        values = text.count(b",") + text.count(b"[") + text.count(b"{")
    else:
        values = text.count(",") + text.count("[") + text.count("{")
    if values > MAX_VALUES:
        raise ValueError(f"{what} has {values} values, more than {MAX_VALUES}")
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{what} is not JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {twice[:100]!r} twice")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:100]} is not a finite number")
    return number


class Fields:
    """The fields of an object, removed one after the other; `end` rejects the remaining ones.

    Each method takes a field's name, and the default for a missing field; without a default, the
    field is required.

    Args:
        data: The parsed object.
        what: The object's name in error messages.

    Raises:
        ValueError: `data` is not an object. All methods raise it for a missing required field and
            for a value that is not allowed.
    """

    _REQUIRED: Any = object()

    def __init__(self, data: object, what: str) -> None:
        if not isinstance(data, dict):
            raise ValueError(f"{what} is not an object")
        self._left = dict(data)
        self._what = what

    def any(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return a value of any type."""
        if name in self._left:
            return self._left.pop(name)
        if default is self._REQUIRED:
            raise ValueError(f"{self._what} has no {name!r}")
        return default

    def name(self, name: str, default: str = _REQUIRED) -> str:
        """Return a string of at most `MAX_NAME_LENGTH` characters."""
        return self._name_of(name, self.any(name, default))

    def flag(self, name: str, default: bool = _REQUIRED) -> bool:
        """Return a Boolean."""
        value = self.any(name, default)
        if not isinstance(value, bool):
            raise self._invalid(name, value, "true or false")
        return value

    def integer(self, name: str, least: int, most: int, default: int = _REQUIRED) -> int:
        """Return an integer from `least` to `most`."""
        value = self.any(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self._invalid(name, value, f"an integer from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float, default: float = _REQUIRED) -> float:
        """Return a number from `least` to `most`."""
        value = self.any(name, default)
        if type(value) not in (int, float) or not least <= value <= most:
            raise self._invalid(name, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def list(self, name: str, default: Iterable[Any] = _REQUIRED) -> list[Any]:
        """Return a list."""
        value = self.any(name, default)
        if not isinstance(value, (list, tuple)):
            raise self._invalid(name, value, "a list")
        return list(value)

    def names(self, name: str, default: Iterable[str] = _REQUIRED) -> tuple[str, ...]:
        """Return a list of strings, each as for `name`."""
        return tuple(self._name_of(name, each) for each in self.list(name, default))

    def each(
        self, name: str, read: Callable[[Any], T], default: Iterable[Any] = _REQUIRED
    ) -> tuple[T, ...]:
        """Return the results of `read` for the values of a list."""
        return tuple(read(value) for value in self.list(name, default))

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return a list of pairs of strings, each as for `name`."""
        found = []
        for pair in self.list(name):
            if not isinstance(pair, list) or len(pair) != 2:
                raise self._invalid(name, pair, "a list of pairs of names")
            found.append((self._name_of(name, pair[0]), self._name_of(name, pair[1])))
        return tuple(found)

    def end(self) -> None:
        """Reject the fields that no method has removed."""
        for name in self._left:
            raise ValueError(f"{self._what} has an unknown {name[:100]!r}")

    def _name_of(self, name: str, value: object) -> str:
        if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH:
            raise self._invalid(name, value, f"a string of at most {MAX_NAME_LENGTH} characters")
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise self._invalid(name, value, "a string without surrogates")
        return value

    def _invalid(self, name: str, value: object, wanted: str) -> ValueError:
        shown = reprlib.repr(value)
        return ValueError(f"{self._what}: {name!r} is or holds {shown}; it must be {wanted}")
