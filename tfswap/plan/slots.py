"""Slots: the planned addresses of the allocations of a graph's ops, as data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

GRANULE_BYTES = 1024
"""Alignment of the slots' begins and ends (``Slab::kGranuleBytes``)."""

OUTSIDE = -2
"""The offset of an allocation without a planned address (``kOutside``)."""


class Key(NamedTuple):
    """Identifies an allocation of a graph across steps.

    Args:
        op: The op that allocates.
        kind: 0: output; 1: temporary; 2: other.
        ordinal: Index among the allocations of this kind in one run of the op.
    """

    op: str
    kind: int
    ordinal: int


class Slot(NamedTuple):
    """The planned address of an allocation.

    Args:
        op, kind, ordinal: As in `Key`.
        offset_bytes: Offset in the slab; -2 for an allocation that outlives its step (a variable's
            new value), which gets any free memory behind the slots.
        size_bytes: The size that the op requests.
    """

    op: str
    kind: int
    ordinal: int
    offset_bytes: int
    size_bytes: int


def slots_to_text(layouts: Iterable[Iterable[Slot]]) -> str:
    """Return the allocator's text format: one line for each slot, "#" lines between layouts."""
    texts = ("\n".join("\t".join(map(str, slot)) for slot in slots) for slots in layouts)
    return "\n#\n".join(texts)
