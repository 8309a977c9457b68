"""Read and write zips of named arrays (``numpy.savez_compressed``), which are untrusted input.

Nothing in such a file is executed, and the sizes in it are not trusted: the compressed and the
unpacked bytes are bounded, and only the headers that numpy writes for plain numbers are accepted.
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

_MAX_PACKED_BYTES = 64 << 20
_MAX_UNPACKED_BYTES = 128 << 20
_MAX_ENTRIES, _MAX_DIRECTORY_BYTES = 64, 64 << 10
# The end of central directory record, the last one of the file; and the size of a zip64 locator.
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
    """Write arrays to a file atomically.

    Args:
        arrays: Arrays by name.
        path: The file's path.
        mode: As for `private_files.write_bytes`.

    Raises:
        OSError: The file cannot be written.
    """
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict[str, Any](arrays))
    private_files.write_bytes(path, buffer.getvalue(), mode)


def read_arrays(
    path: str | os.PathLike[str],
    required: Mapping[str, DTypeLike],
    optional: Mapping[str, DTypeLike],
) -> dict[str, NDArray[Any]]:
    """Read arrays of known names and types, and ignore others in the file.

    Args:
        path: The file's path.
        required: Types of the required arrays by name.
        optional: Types of the optional arrays by name; a missing one is returned empty.

    Raises:
        ValueError: The file is damaged, too large, lacks an array or has one of another type.
        OSError: The file cannot be read.
    """
    data = private_files.read_bytes(path, _MAX_PACKED_BYTES)
    try:
        _check_directory(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _unpack(archive, {**required, **optional}, set(required))
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
    """Reject archives whose directory is large or does not end the file, unlike those of numpy."""
    end = data[-_END.size :]
    if len(end) < _END.size or not end.startswith(b"PK\x05\x06"):
        raise zipfile.BadZipFile("File is not a zip file")
    _, _, _, _, entries, size_bytes, offset, comment = _END.unpack(end)
    is_64 = data[-_END.size - _END_64_BYTES :].startswith(b"PK\x06\x07")
    if is_64 or comment or entries > _MAX_ENTRIES or size_bytes > _MAX_DIRECTORY_BYTES:
        raise ValueError(f"it has {entries} arrays in a directory of {size_bytes} bytes")
    if offset + size_bytes + _END.size != len(data):
        raise ValueError("its directory has another size than its end record says")


def _unpack(
    archive: zipfile.ZipFile, types: Mapping[str, DTypeLike], required: set[str]
) -> dict[str, NDArray[Any]]:
    entries = {entry.filename: entry for entry in archive.infolist()}
    left_bytes = _MAX_UNPACKED_BYTES
    arrays = {}
    for name, dtype in types.items():
        entry = entries.get(f"{name}.npy")
        if entry is None:
            if name in required:
                raise ValueError(f"it has no {name}")
            arrays[name] = np.empty(0, dtype)
            continue
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} has a compression that numpy does not use")
        with archive.open(entry) as file:
            unpacked = file.read(left_bytes + 1)
        if len(unpacked) > left_bytes:
            raise ValueError(f"its arrays have more than {_MAX_UNPACKED_BYTES} bytes")
        left_bytes -= len(unpacked)
        arrays[name] = _array(name, unpacked, np.dtype(dtype))
    return arrays


def _array(name: str, data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    begin = len(_MAGIC) + 2
    if not data.startswith(_MAGIC) or len(data) < begin:
        raise ValueError(f"{name} is not an array")
    begin += int.from_bytes(data[begin - 2 : begin], "little")
    header = _HEADER.fullmatch(data[len(_MAGIC) + 2 : begin])
    if header is None:
        raise ValueError(f"{name} does not have the header of a plain array of numbers")
    if header[1].startswith(b"|O"):
        raise ValueError(f"Object arrays such as {name} are not read: they could hold code")
    if header[1].decode() != dtype.str:
        raise ValueError(f"{name} has type {header[1].decode()}, not {dtype.str}")
    shape = tuple(int(size) for size in header.groups()[1:] if size is not None)
    count = 1
    for size in shape:
        count *= size
    if count * dtype.itemsize != len(data) - begin:
        raise ValueError(f"{name} has {len(data) - begin} bytes, which do not match shape {shape}")
    if dtype == np.bool_ and np.frombuffer(data, np.uint8, count, begin).max(initial=0) > 1:
        raise ValueError(f"{name} holds values other than 0 and 1")
    array: NDArray[Any] = np.frombuffer(data, dtype, count, begin).reshape(shape).copy()
    return array
