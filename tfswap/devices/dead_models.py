"""Collect unreachable models, which still hold device memory."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from tfswap.ops.loaded_library import Library

_MIB = 1 << 20
# Bytes in use by device after the last collection, or fewer that were seen since.
_left_bytes: dict[int, int] = {}


def free(library: Library, devices: Sequence[int]) -> None:
    """Free unreachable models before a budget counts the memory in use.

    Keras models refer to themselves, so a replaced model keeps its weights until Python collects
    old cycles, which may be many steps later. A collection takes some tenths of a second, so it is
    skipped where no more memory is in use than after the last one.
    """
    in_use_bytes = _in_use_bytes(library, devices)
    left_bytes = {each: min(_left_bytes.get(each, 0), in_use_bytes[each]) for each in devices}
    if any(in_use_bytes[each] > left_bytes[each] + _MIB for each in devices):
        gc.collect()
        left_bytes = _in_use_bytes(library, devices)
    _left_bytes.update(left_bytes)


def _in_use_bytes(library: Library, devices: Sequence[int]) -> dict[int, int]:
    return {each: library.step_counts(each)["bytes_in_use"] for each in devices}
