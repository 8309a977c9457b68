"""The model of far memory for planners: its tiers, and the codecs of the compressed tier."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfswap.machine.machine import Machine, cores

TIERS = HOST, COMPRESSED, FILE = ("host", "compressed", "file")
"""The tiers of far memory, nearest first, as plans name them."""


@dataclass(frozen=True)
class FarTier:
    """A tier with its own link. A copy takes the link's latency plus bytes / speed.

    Attributes:
        name: The name in the report.
        out_bytes_per_s: Speed of copies off the device.
        in_bytes_per_s: Speed of copies to the device.
        out_latency_ns: Time before the first byte leaves the device.
        in_latency_ns: Time before the first byte arrives on the device.
        capacity_bytes: The tier's size.
        core_bytes_per_s: Speed of one CPU core that processes each byte (copies it or computes its
            checksum); infinite where no core does.
        in_sections: Whether large buffers move in sections, see `tfswap.machine.Machine`.
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
        """Return the tier of host memory behind a machine's link."""
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
        """Return the time that processing the bytes adds to a step, spread over all cores."""
        return round((bytes_out + bytes_in) * 1e9 / (self.core_bytes_per_s * cores()))


@dataclass(frozen=True)
class CodecTime:
    """Time of one direction: ``begin_ns + bytes * byte_ns + encoded bytes * kept_byte_ns``.

    This is CSWAP's linear regression on size and compression ratio (Chen et al., CLUSTER 2021,
    section IV-C), in terms of the bytes read and written.
    """

    begin_ns: float
    byte_ns: float
    kept_byte_ns: float

    def ns(self, size_bytes: int, ratio: float) -> int:
        """Return the time for a buffer that shrinks to `ratio` of its size."""
        each_ns = self.byte_ns + self.kept_byte_ns * ratio
        return max(0, round(self.begin_ns + size_bytes * each_ns))


@dataclass(frozen=True)
class CodecSpeed:
    """A codec's cost on this machine.

    Attributes:
        name: The codec's name.
        threads: Number of host threads that encode or decode one buffer; 0 for a GPU's codec.
        encode: Time to encode one buffer.
        decode: Time to decode one buffer.
        device_part: Fraction of the device that the codec occupies while it runs.
    """

    name: str
    threads: int
    encode: CodecTime
    decode: CodecTime
    device_part: float = 0.0
