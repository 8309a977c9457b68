"""The machine's speeds: its link to far memory, and the device that computes."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfswap import _core

_COPY_BYTES = 64 << 20
_COPIES = 7

# From the end of the op that triggers a copy to its first byte: the copy thread wakes up.
_WAKE_UP_NS = 20_000


@dataclass(frozen=True)
class Device:
    """The compute device of a machine, for the cost model of steps that have not run.

    Attributes:
        memory_bytes: Size of its memory.
        ops_per_s: Peak of elementwise operations and reductions.
        product_ops_per_s: Peak of convolutions and matrix products; a multiply-add counts as two.
        bytes_per_s: Bandwidth of its memory.
        efficiency: The fraction of product_ops_per_s that convolutions reach; above 1 if their
            algorithms save operations.
        launch_ns: Shortest duration of an op.
    """

    memory_bytes: int
    ops_per_s: float
    product_ops_per_s: float
    bytes_per_s: float
    efficiency: float = 1.0
    launch_ns: int = 0

    def __post_init__(self) -> None:
        for field in (
            "memory_bytes",
            "ops_per_s",
            "product_ops_per_s",
            "bytes_per_s",
            "efficiency",
        ):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} must be above 0, not {getattr(self, field)!r}")
        if self.launch_ns < 0:
            raise ValueError(f"launch_ns must be 0 or more, not {self.launch_ns!r}")


@dataclass(frozen=True)
class Machine:
    """A link between device memory and far memory. A copy takes its latency plus bytes / speed.

    Attributes:
        name: The name in the report.
        out_bytes_per_s: Speed of copies off the device.
        in_bytes_per_s: Speed of copies to the device.
        out_latency_ns: Time before the first byte leaves the device.
        in_latency_ns: Time before the first byte arrives on the device.
        copy_bytes_per_s: Speed of one CPU core that copies; infinite where hardware copies.
        device: The compute device, if known (`tfswap.machine.presets` has some by name).
        in_sections: Whether large buffers move in sections that are freed and filled separately
            (tvDNN; ``tfswap/cc/core/memory/buffer_chunks.h`` defines how many).
    """

    name: str
    out_bytes_per_s: float
    in_bytes_per_s: float
    out_latency_ns: int = _WAKE_UP_NS
    in_latency_ns: int = _WAKE_UP_NS
    copy_bytes_per_s: float = math.inf
    device: Device | None = None
    in_sections: bool = False

    def __post_init__(self) -> None:
        for speed in (self.out_bytes_per_s, self.in_bytes_per_s, self.copy_bytes_per_s):
            if not speed > 0:
                raise ValueError(f"a link's speed must be above 0 bytes per second, not {speed!r}")
        for latency in (self.out_latency_ns, self.in_latency_ns):
            if latency < 0:
                raise ValueError(f"a link's latency must be 0 ns or more, not {latency!r}")

    @classmethod
    def measure(cls) -> Machine:
        """Measure the link to the host's own memory: the speed of large copies, one at a time.

        The first call takes about 0.1 s; later calls in the process return the same result.
        """
        bytes_per_s = _copy_bytes_per_s()
        return cls(
            "host memory",
            bytes_per_s,
            bytes_per_s,
            copy_bytes_per_s=bytes_per_s,
            in_sections=True,
        )

    @classmethod
    def here(cls, link_bandwidth: float | None = None) -> Machine:
        """Return `emulated` for a bandwidth, `measure` for None."""
        return cls.measure() if link_bandwidth is None else cls.emulated(link_bandwidth)

    @classmethod
    def emulated(cls, link_bandwidth: float, latency_ns: int = 0) -> Machine:
        """Return this host with copies slowed down to emulate another link.

        The copies are still made, so the link is at most as fast as the host's memory.

        Args:
            link_bandwidth: Bytes per second, each way.
            latency_ns: Time before the first byte, added to the host's own. Defaults to 0.

        Raises:
            ValueError: The bandwidth is not above zero.
        """
        if not link_bandwidth > 0:
            raise ValueError(f"link_bandwidth must be above 0 bytes/s, not {link_bandwidth!r}")
        copy_bytes_per_s = _copy_bytes_per_s()
        speed = min(float(link_bandwidth), copy_bytes_per_s)
        total_ns = _WAKE_UP_NS + latency_ns
        name = f"emulated link, {link_bandwidth / 1e9:.3g} GB/s"
        return cls(name, speed, speed, total_ns, total_ns, copy_bytes_per_s, in_sections=True)

    def part(self, share: float) -> Machine:
        """Return the link with a share of its speed, for when other processes use it too.

        Args:
            share: Above 0, at most 1.
        """
        if share == 1.0:
            return self
        return dataclasses.replace(
            self,
            name=f"{self.name}, {share:.0%} of it",
            out_bytes_per_s=self.out_bytes_per_s * share,
            in_bytes_per_s=self.in_bytes_per_s * share,
        )

    def copy_ns(self, bytes_out: int, bytes_in: int) -> int:
        """Return the time that copying on the step's own cores adds to a step.

        The work is spread over all cores, which are assumed to be busy otherwise. Waiting for a
        link costs no core time.
        """
        return round((bytes_out + bytes_in) * 1e9 / (self.copy_bytes_per_s * cores()))


def processor() -> str:
    """Return the processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@cache
def _copy_bytes_per_s() -> float:
    return _core.measure_copy_speed(_COPY_BYTES, _COPIES)
