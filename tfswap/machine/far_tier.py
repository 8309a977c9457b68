"""Far memory as planners see it: its tiers, and the codecs that one of them is kept by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfswap.machine.machine import Machine, cores

TIERS = HOST, COMPRESSED, FILE = ("host", "compressed", "file")
"""The tiers of far memory, nearest first, as plans name them."""


@dataclass(frozen=True)
class FarTier:
    """A tier with a link of its own. A copy takes its latency, then bytes / speed.

    Attributes:
        name: What the report calls it.
        out_bytes_per_s: speed off the device.
        in_bytes_per_s: speed back to it.
        out_latency_ns: time before the first byte, off the device.
        in_latency_ns: time before the first byte, back to it.
        capacity_bytes: what it holds.
        core_bytes_per_s: speed of one core that has to do with each byte (copies it, checks it);
            infinite where none has.
        in_sections: whether large buffers move in sections, see `tfswap.machine.Machine`.
    """

    name: str
    out_bytes_per_s: float
    in_bytes_per_s: float
    out_latency_ns: int
    in_latency_ns: int
    capacity_bytes: int
    core_bytes_per_s: float = math.inf
    in_sections: bool = False

    @classmethod
    def of_host(cls, machine: Machine, capacity_bytes: int) -> FarTier:
        """Host memory behind a machine's link."""
        return cls(
            HOST,
            machine.out_bytes_per_s,
            machine.in_bytes_per_s,
            machine.out_latency_ns,
            machine.in_latency_ns,
            capacity_bytes,
            machine.copy_bytes_per_s,
            machine.in_sections,
        )

    def copy_ns(self, bytes_out: int, bytes_in: int) -> int:
        """How much longer a step takes because cores see to the bytes, spread over all of them."""
        return round((bytes_out + bytes_in) * 1e9 / (self.core_bytes_per_s * cores()))


@dataclass(frozen=True)
class CodecTime:
    """Time of one direction of a codec: ``begin_ns + bytes * byte_ns + kept bytes * kept_byte_ns``.

    CSWAP's linear regression on size and compression ratio (Chen et al., CLUSTER 2021, section
    IV-C), in the two amounts of bytes that memory sees.
    """

    begin_ns: float
    byte_ns: float
    kept_byte_ns: float

    def ns(self, size_bytes: int, ratio: float) -> int:
        """For a buffer of which `ratio` is kept."""
        each_ns = self.byte_ns + self.kept_byte_ns * ratio
        return max(0, round(self.begin_ns + size_bytes * each_ns))


@dataclass(frozen=True)
class CodecSpeed:
    """What a codec costs on this machine.

    Attributes:
        name: of the codec.
        threads: how many of the host work at a buffer.
        encode: time for one buffer.
        decode: time for one buffer.
        device_part: of the device, how much works at it rather than at ops.
    """

    name: str
    threads: int
    encode: CodecTime
    decode: CodecTime
    device_part: float = 0.0
