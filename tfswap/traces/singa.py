"""Reader for the memory traces of Apache SINGA's SmartPool and AutoSwap.

Each line is an event, such as ``Malloc 0x7062c0000 6912 1512107406951``: operation (Malloc, Free,
Read, Mutable, Layer), address, bytes, time. In some traces, Free has no bytes and times are in
milliseconds.
"""

from __future__ import annotations

import os

import numpy as np

from tfswap.io import private_files
from tfswap.traces.events import Events, Kind

_KINDS = {
    "Malloc": Kind.MALLOC,
    "Free": Kind.FREE,
    "Read": Kind.READ,
    "Mutable": Kind.WRITE,
    "Layer": Kind.LAYER,
}
# Times since 1970 have 19 digits in nanoseconds and 13 in milliseconds.
_MIN_NS = 10**17
_NS_PER_MS = 1_000_000
_MAX_BYTES, _MAX_TIME = 1 << 50, 1 << 62
# Bounds of a file; a parsed line takes about a hundred bytes of memory.
_MAX_FILE_BYTES, _MAX_LINES = 256 << 20, 1 << 22


def read_singa(path: str | os.PathLike[str]) -> Events:
    """Read a trace.

    A block that existed before the trace gets the size of its first event that has one.

    Raises:
        ValueError: A line is not an event; the message names the line.
        OSError: The file cannot be read.
    """
    kinds: list[int] = []
    blocks: list[int] = []
    times: list[int] = []
    block_at: dict[str, int] = {}
    size_of: list[int] = []
    for number, line in enumerate(_text_of(path).splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        try:
            kind = _KINDS[fields[0]]
            address, size, time = fields[1], fields[2:-1], int(fields[-1])
            event_bytes = int(size[0]) if size else -1
            if len(fields) > 4 or event_bytes < (-1 if kind is Kind.FREE else 0):
                raise ValueError
            if event_bytes > _MAX_BYTES or not 0 <= time <= _MAX_TIME:
                raise ValueError
        except (KeyError, IndexError, ValueError):
            raise ValueError(
                f"{os.fspath(path)}, line {number}: {line[:80]!r} is not an event. Expected: one "
                f"of {', '.join(_KINDS)}, an address, bytes, a time"
            ) from None
        if kind is Kind.MALLOC or address not in block_at:
            block_at[address] = len(size_of)
            size_of.append(event_bytes)
        block = block_at[address]
        if size_of[block] < 0:
            size_of[block] = event_bytes
        if kind is Kind.FREE:
            del block_at[address]
        kinds.append(kind)
        blocks.append(block)
        times.append(time)
    block_array = np.array(blocks, dtype=np.int64)
    size_array = np.maximum(np.array(size_of, dtype=np.int64), 0)
    time_array = np.array(times, dtype=np.int64)
    if len(time_array) and int(time_array[0]) < _MIN_NS:
        if int(time_array.max()) > _MAX_TIME // _NS_PER_MS:
            raise ValueError(f"{os.fspath(path)}: some times are in milliseconds, others are not")
        time_array = time_array * _NS_PER_MS
    kind_array = np.array(kinds, dtype=np.int8)
    return Events(kind_array, block_array, size_array[block_array], time_array)


def _text_of(path: str | os.PathLike[str]) -> str:
    try:
        text = private_files.read_bytes(path, _MAX_FILE_BYTES).decode()
        if text.count("\n") > _MAX_LINES:
            raise ValueError(f"it has more than {_MAX_LINES} lines")
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from error
    return text
