"""What nobody can reach any more and is still on a device: models of before, mostly."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from tfswap.ops.loaded_library import Library

_MIB = 1 << 20
_left_bytes: dict[int, int] = {}


def let_go(library: Library, devices: Sequence[int]) -> None:
    """Frees it before a budget counts what is there.

    Keras's models refer to themselves, so each that is replaced keeps its weights until Python
    looks for cycles among old objects, which may be many steps later. Looking takes some tenths of
    a second, so it is left out where no more is in use than after the last look.

    Args:
        library: Knows what is in use.
        devices: Their numbers.
    """
    if not any(_in_use_bytes(library, each) > _most_bytes(library, each) for each in devices):
        return
    gc.collect()
    for device in devices:
        _left_bytes[device] = _in_use_bytes(library, device)


def _most_bytes(library: Library, device: int) -> int:
    """What may be in use without a look: as after the last one, or less was seen since."""
    left_bytes = min(_left_bytes.get(device, 0), _in_use_bytes(library, device))
    _left_bytes[device] = left_bytes
    return left_bytes + _MIB


def _in_use_bytes(library: Library, device: int) -> int:
    return library.step_counts(device)["bytes_in_use"]
