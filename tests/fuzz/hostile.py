"""Values that parsers do not expect, and mutations that keep most of a JSON value."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    2,
    255,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**31),
    -(2**63),
    10**30,
    0.5,
    -0.0,
    1e308,
    5e-324,
)
TEXTS = (
    "",
    ":",
    ":0",
    "^",
    "^a",
    "a:-1",
    "a:4294967295",
    "a:18446744073709551615",
    "a\tb",
    "a\nb",
    "a\0b",
    "\ud800",
    "\u202e",
    "../../../etc/passwd",
    "/etc/passwd",
    "%s%n",
    "tfswap/in/a_0/0",
    "tfswap/out/" * 20,
    "a/again/0" + "/again/1" * 50,
    "PartitionedCall" * 40,
    "x" * 9000,
)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [[[[[[]]]]]], {"": {}}, [None] * 40)

Path = tuple[Any, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all values in a JSON value, including itself."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))


def at(value: Any, path: Path) -> Any:
    """Return the value at a path."""
    for key in path:
        value = value[key]
    return value


def changed(value: Any, dice: random.Random, times: int = 1) -> Any:
    """Return a copy of a JSON value with a few random changes."""
    value = copy.deepcopy(value)
    for _ in range(times):
        path = dice.choice(list(places(value)))
        if not path:
            continue
        holder, key = at(value, path[:-1]), path[-1]
        if type(holder[key]) is int and dice.random() < 0.7:
            others = (
                [each for each in holder if type(each) is int] if isinstance(holder, list) else []
            )
            near = (holder[key] - 1, holder[key] + 1, 2 * holder[key], -holder[key], *others)
            holder[key] = dice.choice(near)
            continue
        what = dice.randrange(8)
        if what == 0:
            del holder[key]
        elif what == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[dice.randrange(len(holder))]))
        elif what == 2 and isinstance(holder, dict):
            holder[dice.choice((*TEXTS, "surprise"))] = holder[key]
        elif what == 3:  # a copy of another value in it
            holder[key] = copy.deepcopy(at(value, dice.choice(list(places(value)))))
        elif what == 4 and isinstance(holder[key], list):
            dice.shuffle(holder[key])
        elif what == 5 and isinstance(holder[key], list):
            holder[key] = holder[key] * dice.choice((2, 3, 50))
        else:
            holder[key] = dice.choice((NUMBERS, TEXTS, OTHERS)[dice.randrange(3)])
        value = copy.deepcopy(value)
    return value


def damaged(data: bytes, dice: random.Random, times: int = 1) -> bytes:
    """Return the bytes with some of them changed, deleted or repeated."""
    for _ in range(times):
        where = dice.randrange(len(data) + 1)
        length = dice.choice((1, 1, 2, 4, 8, 64))
        what = dice.randrange(5)
        if what == 0:
            data = data[:where] + data[where + length :]
        elif what == 1:
            data = data[:where] + dice.randbytes(length) + data[where:]
        elif what == 2:
            data = data[:where] + dice.randbytes(length) + data[where + length :]
        elif what == 3:
            other = dice.randrange(len(data) + 1)
            data = data[:where] + data[other : other + length] + data[where:]
        else:
            number = dice.choice((0, 1, -1, 2**31 - 1, 2**32 - 1, 2**63 - 1, -(2**63)))
            size = dice.choice((4, 8))
            packed = (number % 2 ** (8 * size)).to_bytes(size, "little")
            data = data[:where] + packed + data[where + size :]
    return data
