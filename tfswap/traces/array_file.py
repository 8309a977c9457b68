"""Named arrays in a zip, as ``numpy.savez_compressed`` writes them, from anywhere.

Nothing in such a file is executed, and no size that it claims is believed: what is read is bounded
before it is unpacked, and an array's header is one of the few that numpy writes for plain numbers.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tfswap.io import private_files

_MOST_PACKED_BYTES = 64 << 20
_MOST_BYTES = 128 << 20
_MOST_ENTRIES, _MOST_DIRECTORY_BYTES = 64, 64 << 10
# Of its directory's end: nothing stands behind it.
_END = struct.Struct("<4s4H2LH")
_END_64_BYTES = 20

_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<|][a-zA-Z?][0-9]{0,3})', 'fortran_order': False, "
    rb"'shape': \(([0-9]{1,18}),(?: ([0-9]{1,18}))?\), \} *\n"
)


def write_arrays(
    arrays: Mapping[str, NDArray[Any]], path: str | os.PathLike[str], mode: int = 0o666
) -> None:
    """Writes arrays to a file, all of it or nothing.

    Args:
        arrays: by name.
        path: of the file.
        mode: as of `private_files.write_bytes`.

    Raises:
        OSError: The file cannot be written.
    """
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict[str, Any](arrays))
    private_files.write_bytes(path, buffer.getvalue(), mode)


def read_arrays(
    path: str | os.PathLike[str],
    needed: Mapping[str, DTypeLike],
    optional: Mapping[str, DTypeLike],
) -> dict[str, NDArray[Any]]:
    """Reads arrays of known names and types; others in the file are passed over.

    Args:
        path: of the file.
        needed: types by name, of arrays that there must be.
        optional: likewise, of arrays that are empty where there are none.

    Raises:
        ValueError: There is something else in it, or too much.
        OSError: The file cannot be read.
    """
    data = private_files.read_bytes(path, _MOST_PACKED_BYTES)
    try:
        _check_directory(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _unpacked(archive, {**needed, **optional}, set(needed))
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        OSError,
        OverflowError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise ValueError(f"it is damaged: {error}") from error


def _check_directory(data: bytes) -> None:
    """Refuses archives whose directory is not what numpy writes: a few entries, then nothing."""
    end = data[-_END.size :]
    if len(end) < _END.size or not end.startswith(b"PK\x05\x06"):
        raise zipfile.BadZipFile("File is not a zip file")
    _, _, _, _, entries, size_bytes, offset, comment = _END.unpack(end)
    is_64 = data[-_END.size - _END_64_BYTES :].startswith(b"PK\x06\x07")
    if is_64 or comment or entries > _MOST_ENTRIES or size_bytes > _MOST_DIRECTORY_BYTES:
        raise ValueError(f"it has {entries} arrays in a directory of {size_bytes} bytes")
    if offset + size_bytes + _END.size != len(data):
        raise ValueError("its directory does not end where it says")


def _unpacked(
    archive: zipfile.ZipFile, types: Mapping[str, DTypeLike], needed: set[str]
) -> dict[str, NDArray[Any]]:
    entries = {entry.filename: entry for entry in archive.infolist()}
    left_bytes = _MOST_BYTES
    arrays = {}
    for name, dtype in types.items():
        entry = entries.get(f"{name}.npy")
        if entry is None:
            if name in needed:
                raise ValueError(f"it has no {name}")
            arrays[name] = np.empty(0, dtype)
            continue
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is packed in another way than numpy packs")
        with archive.open(entry) as file:
            packed = file.read(left_bytes + 1)
        if len(packed) > left_bytes:
            raise ValueError(f"its arrays have more than {_MOST_BYTES} bytes")
        left_bytes -= len(packed)
        arrays[name] = _array(name, packed, np.dtype(dtype))
    return arrays


def _array(name: str, data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    begin = len(_MAGIC) + 2
    if not data.startswith(_MAGIC) or len(data) < begin:
        raise ValueError(f"{name} is no array")
    begin += int.from_bytes(data[begin - 2 : begin], "little")
    header = _HEADER.fullmatch(data[len(_MAGIC) + 2 : begin])
    if header is None:
        raise ValueError(f"{name} has a header that is not of a plain array of numbers")
    if header[1].startswith(b"|O"):
        raise ValueError(f"Object arrays such as {name} are not read: they could hold code")
    if header[1].decode() != dtype.str:
        raise ValueError(f"{name} has type {header[1].decode()}, not {dtype.str}")
    shape = tuple(int(size) for size in header.groups()[1:] if size is not None)
    count = 1
    for size in shape:
        count *= size
    if count * dtype.itemsize != len(data) - begin:
        raise ValueError(f"{name} has {len(data) - begin} bytes, and another shape: {shape}")
    if dtype == np.bool_ and np.frombuffer(data, np.uint8, count, begin).max(initial=0) > 1:
        raise ValueError(f"{name} holds what is neither true nor false")
    array: NDArray[Any] = np.frombuffer(data, dtype, count, begin).reshape(shape).copy()
    return array
