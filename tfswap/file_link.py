"""The link to a file on a disk, as a tier of far memory."""

from __future__ import annotations

from functools import cache

from tfswap import _core
from tfswap.far_tier import FILE, FarTier
from tfswap.simulator import NO_LIMIT

_MEASURED_BYTES = 128 << 20
# From the end of the op that a copy waits for to its first byte: a thread wakes up, and the disk.
_LATENCY_NS = 200_000
# Of one core: checksums, and what the kernel does for each request.
_CHECKED_BYTES_PER_S = 8e9


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
    )


@cache
def _measured(folder: str) -> _core.SpillSpeed:
    return _core.measure_spill(folder, _MEASURED_BYTES)
