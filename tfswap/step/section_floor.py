"""SectionFloor: the least budget of a step whose batch is cut into a number of sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# What a step's figures are kept as, here and in C++.
_LARGEST = (1 << 63) - 1
# More numbers of sections than anybody looks at.
_MOST_FLOORS = 4096
_LONGEST_OP = 1 << 16


@dataclass(frozen=True)
class SectionFloor:
    """What no plan of swaps goes below with so many sections.

    Attributes:
        sections: the number of them; 1 is the whole batch.
        bytes: the least budget.
        op: name of the op that sets it, one section's.

    Raises:
        ValueError: one of them cannot be.
    """

    sections: int
    bytes: int
    op: str

    def __post_init__(self) -> None:
        for name, least in (("sections", 1), ("bytes", 0)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= _LARGEST:
                raise ValueError(
                    f"a least budget with sections has {name}={value!r}; it must be a whole "
                    f"number from {least} to 2^63 - 1"
                )
        if not isinstance(self.op, str) or not 0 < len(self.op) <= _LONGEST_OP:
            raise ValueError(
                f"the least budget with {self.sections} sections names no op, or one whose name "
                f"has more than {_LONGEST_OP} characters"
            )


def section_floors(records: Iterable[Mapping[str, Any]]) -> tuple[SectionFloor, ...]:
    """Floors from records such as ``{"sections": 4, "bytes": 1048576, "op": "conv/Conv2D"}``.

    Args:
        records: in any order; keys beside these are left out.

    Returns:
        Those with the fewest sections first.

    Raises:
        ValueError: a record lacks something or says what cannot be, there are two for one number
            of sections, or there are too many.
    """
    found: dict[int, SectionFloor] = {}
    for record in records:
        missing = [name for name in ("sections", "bytes", "op") if name not in record]
        if missing:
            raise ValueError(f"a least budget with sections lacks {', '.join(missing)}")
        floor = SectionFloor(record["sections"], record["bytes"], record["op"])
        if floor.sections in found:
            raise ValueError(f"there are two least budgets with {floor.sections} sections")
        if len(found) == _MOST_FLOORS:
            raise ValueError(f"least budgets of more than {_MOST_FLOORS} numbers of sections")
        found[floor.sections] = floor
    return tuple(found[sections] for sections in sorted(found))
