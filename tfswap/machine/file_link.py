"""The link to a file on a disk, as a tier of far memory."""

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
# From the end of the op that a copy waits for to its first byte: a thread wakes up, and the disk.
_LATENCY_NS = 200_000
# Of one core: checksums, and what the kernel does for each request.
_CHECKED_BYTES_PER_S = 8e9
# A disk is given another speed when it is off by this factor, in so many bytes at least.
_FACTOR, _LEAST_BYTES = 2.0, 16 << 20
_COUNTS = tuple(
    f"far_file_{count}" for count in ("bytes_out", "busy_out_ns", "bytes_in", "busy_in_ns")
)


def measured_file(folder: str, limit_bytes: int | None) -> FarTier:
    """The file tier in a folder, at the speeds of its disk with both directions busy.

    The first call of a process writes and reads for about half a second; later ones for the same
    folder answer the same.

    Raises:
        OSError: There can be no file of that kind; the text says why.
    """
    speed = _measured(folder)
    return FarTier(
        FILE,
        speed.both_write_bytes_per_s,
        speed.both_read_bytes_per_s,
        _LATENCY_NS,
        _LATENCY_NS,
        NO_LIMIT if limit_bytes is None else limit_bytes,
        core_bytes_per_s=_CHECKED_BYTES_PER_S,
        in_sections=True,
    )


def behind_link(file: FarTier, machine: Machine) -> FarTier:
    """The file tier of a GPU, whose copies go through host memory, piece by piece.

    While the disk has one piece, the machine's link has the next: so it is as fast as the slower of
    both. The cores that check what is read compute nothing of a step.
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


class WatchedFile:
    """The file tier at the speeds that a training sees, which others' use of the disk changes.

    Args:
        measured: At the speeds before the training; those are never exceeded.
        stats: The library's, from when on copies are looked at.
    """

    def __init__(self, measured: FarTier, stats: Mapping[str, int]) -> None:
        self._measured = self.tier = measured
        self._before = dict(stats)

    def look(self, stats: Mapping[str, int]) -> str:
        """Goes by the copies since the last look.

        Returns:
            What the disk gave and where another speed was expected, as a clause; "" if it is about
            as fast as `tier` says, which then stays.
        """
        bytes_out, out_ns, bytes_in, in_ns = (stats[key] - self._before[key] for key in _COUNTS)
        self._before = dict(stats)
        out = self._seen(self._measured.out_bytes_per_s, bytes_out, out_ns)
        back = self._seen(self._measured.in_bytes_per_s, bytes_in, in_ns)
        expected = self.tier
        changes = [
            (seen / planned, doing, seen, planned)
            for doing, seen, planned in (
                ("writing", out, expected.out_bytes_per_s),
                ("reading", back, expected.in_bytes_per_s),
            )
            if seen is not None and not 1 / _FACTOR <= seen / planned <= _FACTOR
        ]
        if not changes:
            return ""
        self.tier = replace(
            expected,
            out_bytes_per_s=out or expected.out_bytes_per_s,
            in_bytes_per_s=back or expected.in_bytes_per_s,
        )
        _, doing, seen, planned = min(changes)
        return (
            f"the disk gave {seen / 1e6:.0f} MB/s {doing} where {planned / 1e6:.0f} were expected"
        )

    @staticmethod
    def _seen(most_bytes_per_s: float, moved_bytes: int, busy_ns: int) -> float | None:
        """In bytes per second; None where too little was moved to tell."""
        if moved_bytes < _LEAST_BYTES:
            return None
        return min(most_bytes_per_s, moved_bytes * 1e9 / max(busy_ns, 1))
