"""Slots: planned addresses of what a graph's ops allocate, as data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

GRANULE_BYTES = 1024
"""Slots begin and end at its multiples (``Slab::kGranuleBytes``)."""

OUTSIDE = -2
"""The offset of what has no place of its own (``kOutside``)."""


class Key(NamedTuple):
    """An allocation of a graph's: the same one in each step.

    Args:
        op: The op that allocates.
        kind: 0 an output, 1 a temporary, 2 other.
        ordinal: The how-manieth of that kind in one run of the op.
    """

    op: str
    kind: int
    ordinal: int


class Slot(NamedTuple):
    """A planned place.

    Args:
        op, kind, ordinal: As in `Key`.
        offset_bytes: From the slab's begin; -2 for what outlives its step (a variable's new value):
            it is put wherever there is room behind the planned places.
        size_bytes: That the op asks for.
    """

    op: str
    kind: int
    ordinal: int
    offset_bytes: int
    size_bytes: int


def slots_to_text(layouts: Iterable[Iterable[Slot]]) -> str:
    """What the device's allocator reads: a line a slot, and "#" between the layouts."""
    texts = ("\n".join("\t".join(map(str, slot)) for slot in slots) for slots in layouts)
    return "\n#\n".join(texts)
