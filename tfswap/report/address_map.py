"""AddressMap: the planned addresses of a step's buffers over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tfswap.plan.slots import Slot


class Box(NamedTuple):
    """A slot and the time during which it is in use, in ns on the recording's clock."""

    slot: Slot
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class AddressMap:
    """The planned addresses of one graph's step, for one set of tensor shapes.

    Attributes:
        fingerprint: The graph's fingerprint.
        boxes: All slots.
        height_bytes: Size of the slab: the end of the highest slot.
        max_live_bytes: Peak load, a lower bound of the height of any layout.
    """

    fingerprint: str
    boxes: tuple[Box, ...]
    height_bytes: int
    max_live_bytes: int
