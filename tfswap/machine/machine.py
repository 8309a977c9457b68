"""The machine's speeds: how fast its link to far memory moves bytes, each way."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tfswap import _core

_COPY_BYTES = 64 << 20
_COPIES = 7

# Of matrix products that say how fast the cores are.
_PRODUCT_SIZE, _PRODUCTS = 768, 4
# Of that, what elementwise ops reach, and convolutions; and what an op takes at the least.
_PRODUCT_TO_ELEMENTWISE, _EFFICIENCY, _LAUNCH_NS = 16, 0.6, 5_000

# Between the end of the op that starts a copy and its first byte: a sleeping copy thread wakes up.
_HAND_OFF_NS = 20_000


@dataclass(frozen=True)
class Device:
    """What computes at this end of the link, for steps that nobody has run.

    Attributes:
        memory_bytes: its memory.
        ops_per_s: elementwise operations and reductions, at best.
        product_ops_per_s: convolutions and matrix products, at best; a multiply-add is two.
        bytes_per_s: its memory's speed.
        efficiency: the part of product_ops_per_s that convolutions reach; above 1 if their
            algorithms save operations.
        launch_ns: least duration of an op.
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
    """A link between device memory and far memory. A copy takes its latency, then bytes / speed.

    Attributes:
        name: what the report calls it.
        out_bytes_per_s: speed off the device.
        in_bytes_per_s: speed back to it.
        out_latency_ns: time before the first byte, off the device.
        in_latency_ns: time before the first byte, back to it.
        copy_bytes_per_s: speed of one core that copies, where cores do; infinite where they do not.
        device: what computes, if it is known (`tfswap.machine.presets` has some by name).
        in_sections: whether large buffers move in sections, each freed and filled on its own
            (tvDNN; ``tfswap/cc/core/memory/buffer_chunks.h`` says in how many).
    """

    name: str
    out_bytes_per_s: float
    in_bytes_per_s: float
    out_latency_ns: int = _HAND_OFF_NS
    in_latency_ns: int = _HAND_OFF_NS
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
        """The host's own memory as far memory: the speed of large copies, one at a time.

        The first call of a process measures for about 0.1 s; later ones answer the same.
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
        """`emulated`, or `measure` where there is no bandwidth."""
        return cls.measure() if link_bandwidth is None else cls.emulated(link_bandwidth)

    @classmethod
    def emulated(cls, link_bandwidth: float, latency_ns: int = 0) -> Machine:
        """The host with copies slowed down to those of another link.

        A copy still has to be made: a link faster than the host's memory is as fast as that.

        Args:
            link_bandwidth: Bytes per second, each way.
            latency_ns: Time before the first byte, beside the host's own. Defaults to 0.

        Raises:
            ValueError: The bandwidth is not above zero.
        """
        if not link_bandwidth > 0:
            raise ValueError(f"link_bandwidth must be above 0 bytes/s, not {link_bandwidth!r}")
        copy_bytes_per_s = _copy_bytes_per_s()
        speed = min(float(link_bandwidth), copy_bytes_per_s)
        latency = _HAND_OFF_NS + latency_ns
        name = f"emulated link, {link_bandwidth / 1e9:.3g} GB/s"
        return cls(name, speed, speed, latency, latency, copy_bytes_per_s, in_sections=True)

    def part(self, share: float) -> Machine:
        """The link where others use it too, so that copies have a share of its speed.

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

    def times(self, out: float, back: float) -> Machine:
        """The link where copies were seen to be so many times as fast, each way."""
        if (out, back) == (1.0, 1.0):
            return self
        return dataclasses.replace(
            self,
            name=f"{self.name}, as seen in steps",
            out_bytes_per_s=self.out_bytes_per_s * out,
            in_bytes_per_s=self.in_bytes_per_s * back,
        )

    def copy_ns(self, bytes_out: int, bytes_in: int) -> int:
        """How much longer a step takes because its own cores do the copying.

        Spread over all cores, which are taken to be busy without it. Waiting for a link costs none.
        """
        return round((bytes_out + bytes_in) * 1e9 / (self.copy_bytes_per_s * cores()))


def host_device() -> Device:
    """What this process's cores reach, for steps that they have not run.

    The first call of a process measures for some 50 ms; later ones answer the same.
    """
    ops_per_s = _product_ops_per_s()
    return Device(
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        ops_per_s=ops_per_s / _PRODUCT_TO_ELEMENTWISE,
        product_ops_per_s=ops_per_s,
        bytes_per_s=2 * _copy_bytes_per_s(),  # a copy reads and writes
        efficiency=_EFFICIENCY,
        launch_ns=_LAUNCH_NS,
    )


def processor() -> str:
    """What it calls itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0))


@cache
def _product_ops_per_s() -> float:
    left = np.full((_PRODUCT_SIZE, _PRODUCT_SIZE), 0.5, dtype=np.float32)
    seconds = []
    for _ in range(_PRODUCTS):
        begun_s = time.perf_counter()
        left @ left
        seconds.append(time.perf_counter() - begun_s)
    return 2.0 * _PRODUCT_SIZE**3 / min(seconds)


@cache
def _copy_bytes_per_s() -> float:
    return _core.measure_copy_speed(_COPY_BYTES, _COPIES)
