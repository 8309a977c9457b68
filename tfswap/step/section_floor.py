"""SectionFloor: the smallest budget of a step whose batch is split into sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_INT64 = (1 << 63) - 1
_MAX_FLOORS = 4096
_MAX_OP_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class SectionFloor:
    """A lower bound on the peak of every swap plan with this number of sections.

    Attributes:
        sections: Number of sections; 1 is the whole batch.
        bytes: The smallest budget.
        op: Name of the op that determines it, for one section.

    Raises:
        ValueError: A field is invalid.
    """

    sections: int
    bytes: int
    op: str

    def __post_init__(self) -> None:
        for name, least in (("sections", 1), ("bytes", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= _MAX_INT64:
                raise ValueError(
                    f"a smallest budget with sections has {name}={value!r}; it must be an integer "
                    f"from {least} to 2^63 - 1"
                )
        if not isinstance(self.op, str) or not 0 < len(self.op) <= _MAX_OP_CHARACTERS:
            raise ValueError(
                f"the smallest budget with {self.sections} sections has no op, or an op whose name "
                f"has more than {_MAX_OP_CHARACTERS} characters"
            )


def section_floors(records: Iterable[Mapping[str, Any]]) -> tuple[SectionFloor, ...]:
    """Parse records such as ``{"sections": 4, "bytes": 1048576, "op": "conv/Conv2D"}``.

    Args:
        records: Records in any order; other keys are ignored.

    Returns:
        The floors, sorted by the number of sections.

    Raises:
        ValueError: A record lacks a key or has an invalid value, two records have the same number
            of sections, or there are too many records.
    """
    found: dict[int, SectionFloor] = {}
    for record in records:
        missing = [name for name in ("sections", "bytes", "op") if name not in record]
        if missing:
            raise ValueError(f"a smallest budget with sections lacks {', '.join(missing)}")
        floor = SectionFloor(record["sections"], record["bytes"], record["op"])
        if floor.sections in found:
            raise ValueError(f"there are two smallest budgets with {floor.sections} sections")
        if len(found) == _MAX_FLOORS:
            raise ValueError(f"smallest budgets of more than {_MAX_FLOORS} numbers of sections")
        found[floor.sections] = floor
    return tuple(found[sections] for sections in sorted(found))
