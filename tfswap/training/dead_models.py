"""What nobody can reach any more and is still on a device: models of before, mostly."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from tfswap.ops.loaded_library import Library

_MIB = 1 << 20
# Of devices, after the last look, or less that was seen since.
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
    in_use_bytes = _in_use_bytes(library, devices)
    left_bytes = {each: min(_left_bytes.get(each, 0), in_use_bytes[each]) for each in devices}
    if any(in_use_bytes[each] > left_bytes[each] + _MIB for each in devices):
        gc.collect()
        left_bytes = _in_use_bytes(library, devices)
    _left_bytes.update(left_bytes)


def _in_use_bytes(library: Library, devices: Sequence[int]) -> dict[int, int]:
    return {each: library.step_counts(each)["bytes_in_use"] for each in devices}
