"""The file tier of far memory: its speed, as measured before and during a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from tfswap import _core
from tfswap.machine.far_tier import FILE, FarTier
from tfswap.machine.link import NO_LIMIT
from tfswap.machine.machine import Machine

_MEASURED_BYTES = 128 << 20
# From the end of the op that a copy waits for to its first byte: a thread and the disk wake up.
_LATENCY_NS = 200_000
# One core's throughput for checksums and the kernel's work for each request.
_CHECKSUM_BYTES_PER_S = 8e9
# The tier's speed changes when it is off by this factor, measured over at least this many bytes.
_CHANGE_FACTOR, _MIN_BYTES = 2.0, 16 << 20
_COUNTERS = tuple(
    f"far_file_{count}" for count in ("bytes_out", "busy_out_ns", "bytes_in", "busy_in_ns")
)


def measure_file_tier(folder: str, limit_bytes: int | None) -> FarTier:
    """Measure the file tier in a folder: its disk's speeds with both directions busy.

    The first call for a folder writes and reads for about half a second; later calls in the
    process return the same result.

    Raises:
        OSError: The folder cannot hold a spill file; the message says why.
    """
    speed = _measured(folder)
    return FarTier(
        FILE,
        speed.both_write_bytes_per_s,
        speed.both_read_bytes_per_s,
        _LATENCY_NS,
        _LATENCY_NS,
        NO_LIMIT if limit_bytes is None else limit_bytes,
        core_bytes_per_s=_CHECKSUM_BYTES_PER_S,
        in_sections=True,
    )


def file_tier_behind_link(file: FarTier, machine: Machine) -> FarTier:
    """Return the file tier of a GPU, whose copies go through host memory in pieces.

    The disk transfers one piece while the machine's link transfers the next, so the tier is as fast
    as the slower of the two. A GPU's step does not use the cores that compute checksums.
    """
    return replace(
        file,
        out_bytes_per_s=min(file.out_bytes_per_s, machine.out_bytes_per_s),
        in_bytes_per_s=min(file.in_bytes_per_s, machine.in_bytes_per_s),
        out_latency_ns=file.out_latency_ns + machine.out_latency_ns,
        in_latency_ns=file.in_latency_ns + machine.in_latency_ns,
        core_bytes_per_s=math.inf,
        in_sections=False,
    )


@cache
def _measured(folder: str) -> _core.SpillSpeed:
    return _core.measure_spill(folder, _MEASURED_BYTES)


class MonitoredFileTier:
    """The file tier at the speed observed in a training, which other users of the disk change.

    Args:
        measured: The tier with the speeds measured on an idle disk, which are upper bounds.
        before: The library's statistics at the start of the training.
        stats: Those of now: `tier` has the speeds of the steps so far.
    """

    def __init__(
        self, measured: FarTier, before: Mapping[str, int], stats: Mapping[str, int]
    ) -> None:
        self._measured = self.tier = measured
        self._before = dict(before)
        self.tier = self._with_observed(stats)

    def observe(self, stats: Mapping[str, int]) -> str:
        """Update `tier` from the copies since the last call.

        Returns:
            A clause with the observed and the expected speed; "" if the speed has not changed by
            more than a factor of two, in which case `tier` stays the same.
        """
        observed = self._with_observed(stats)
        expected = self.tier
        changes = [
            (now / planned, direction, now, planned)
            for direction, now, planned in (
                ("writing", observed.out_bytes_per_s, expected.out_bytes_per_s),
                ("reading", observed.in_bytes_per_s, expected.in_bytes_per_s),
            )
            if not 1 / _CHANGE_FACTOR <= now / planned <= _CHANGE_FACTOR
        ]
        if not changes:
            return ""
        self.tier = observed
        _, direction, now, planned = min(changes)
        return (
            f"the disk gave {now / 1e6:.0f} MB/s {direction} where {planned / 1e6:.0f} were "
            "expected"
        )

    def _with_observed(self, stats: Mapping[str, int]) -> FarTier:
        """Return the tier with the speeds of the copies since the last call, where enough moved."""
        bytes_out, out_ns, bytes_in, in_ns = (stats[key] - self._before[key] for key in _COUNTERS)
        self._before = dict(stats)
        out = self._observed(self._measured.out_bytes_per_s, bytes_out, out_ns)
        back = self._observed(self._measured.in_bytes_per_s, bytes_in, in_ns)
        return replace(
            self.tier,
            out_bytes_per_s=out or self.tier.out_bytes_per_s,
            in_bytes_per_s=back or self.tier.in_bytes_per_s,
        )

    @staticmethod
    def _observed(max_bytes_per_s: float, moved_bytes: int, busy_ns: int) -> float | None:
        """Return bytes per second; None if too few bytes moved."""
        if moved_bytes < _MIN_BYTES:
            return None
        return min(max_bytes_per_s, moved_bytes * 1e9 / max(busy_ns, 1))
