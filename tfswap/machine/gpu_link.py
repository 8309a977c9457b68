"""The link between a GPU and pinned host memory, as a `Machine`."""

from __future__ import annotations

from tfswap.machine.machine import Machine
from tfswap.ops.loaded_library import Library, LibraryError

_BLOCK_BYTES = (64 << 20, 8 << 20, 1 << 20)
_COPIES = 7
# From the end of the op that a copy waits for to the copy's first byte, on the GPU's streams.
_LATENCY_NS = 10_000


def measure_gpu_link(lib: Library, device: int) -> Machine:
    """Measure a GPU's link with copies of its own while nothing else runs.

    The speeds are those while both directions run, as in the middle of a step: on an H100, nine
    tenths of those of one direction alone.

    Args:
        lib: The library.
        device: The GPU's number.

    Raises:
        LibraryError: The GPU has no room even for copies of 1 MiB.
    """
    for block_bytes in _BLOCK_BYTES:
        try:
            link = lib.measure_link(device, block_bytes, _COPIES)
            break
        except LibraryError:  # the GPU has no room for two blocks
            if block_bytes == _BLOCK_BYTES[-1]:
                raise
        finally:
            lib.trim_host()
    return Machine(
        "pinned host memory",
        link["both_out_bytes_per_s"],
        link["both_in_bytes_per_s"],
        _LATENCY_NS,
        _LATENCY_NS,
    )
