"""The tiers of far memory, and the place of each far copy in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfswap.machine.far_tier import CodecSpeed, FarTier
from tfswap.machine.link import Link
from tfswap.planning.simulator import SimResult, Swap

AUTO, CSWAP = "auto", "cswap"

Ratios = Mapping[str, Mapping[str, float]]
"""Compression ratios by tensor and codec: encoded bytes / bytes."""

MAX_ENCODED_RATIO = 0.97
"""Maximal ratio at which a far copy is encoded."""


@dataclass(frozen=True)
class Place:
    """Where a far copy is kept.

    Attributes:
        tier: "host", "compressed" or "file".
        codec: of the compressed tier.
        ratio: encoded bytes / bytes.
        threads: number of host threads that encode and decode it.
    """

    tier: str
    codec: str = ""
    ratio: float = 1.0
    threads: int = 1


@dataclass(frozen=True)
class FarMemory:
    """The available tiers.

    Attributes:
        host: host memory; encoded buffers use the same link and share its capacity.
        file: the spill file; None: there is none.
        codecs: allowed codecs, with one entry per number of threads.
        whole_blocks: whether encoded buffers occupy their full size in host memory, because their
            encoded size is known too late.
    """

    host: FarTier
    file: FarTier | None = None
    codecs: tuple[CodecSpeed, ...] = ()
    whole_blocks: bool = False

    @property
    def links(self) -> Sequence[Link]:
        """Links by the simulator's index of the tier."""
        return (self.host,) if self.file is None else (self.host, self.file)


@dataclass(frozen=True)
class Assignment:
    """Swaps with their places.

    Attributes:
        swaps: by absence, for the simulator.
        places: of each far copy, by tensor.
        result: simulated without a budget.
        cost_ns: the step time plus the time that ops lose to copies and codecs.
    """

    swaps: tuple[Swap, ...]
    places: dict[str, Place]
    result: SimResult
    cost_ns: int


class FarMemoryTooSmall(ValueError):
    """Far memory cannot hold what is swapped out.

    Attributes:
        needed_bytes: what far memory must hold at once.
        capacity_bytes: what it can hold.
    """

    def __init__(self, message: str, needed_bytes: int, capacity_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.capacity_bytes = capacity_bytes
