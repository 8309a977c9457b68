"""AddressMap: who is where in a slab, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tfswap.plan.slots import Slot


class Box(NamedTuple):
    """A slot, and when it is in use (on the recording's clock, in ns)."""

    slot: Slot
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class AddressMap:
    """The addresses that one graph's step uses, for tensors of one shape.

    Attributes:
        fingerprint: The graph's.
        boxes: What has a place.
        height_bytes: The end of the highest.
        max_live_bytes: The largest load: no layout is lower.
    """

    fingerprint: str
    boxes: tuple[Box, ...]
    height_bytes: int
    max_live_bytes: int
