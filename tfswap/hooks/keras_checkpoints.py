"""Hooks in Keras that leave weights in the file they were loaded from.

A variable that gets what a checkpoint stores, unchanged, is read from there when it is used, and
again whenever its value has left the device (`CheckpointValue`, cc/core/spill). Keras' own files
(HDF5) are not read while a model is loaded; arrays from safetensors are, and remember their place.

A file that is saved to is written anew, not over weights that are still read from it. And a
``.keras`` archive is extracted to the disk: Keras would read all of it into memory if the machine
has enough, whatever the limit of the container.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tfswap.ops import library

_MIN_BYTES = 16 << 10  # smaller variables do not leave (StreamedVariables::kMinBytes)

Replacement = tuple[Any, str, Callable[..., Any]]
"""An object, the name of its function, and a function that is called with the original first."""


class _Place(NamedTuple):
    path: str
    offset: int


class _StoredArray(np.ndarray[Any, Any]):
    """An array that was read from a file; views and results of the same size keep the place."""

    place: _Place | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.place = getattr(source, "place", None)


class _StoredValue(np.lib.mixins.NDArrayOperatorsMixin):
    """A value in a file, which becomes an array if it is used as one."""

    def __init__(self, place: _Place, dtype: Any, shape: tuple[int, ...], first: Any) -> None:
        self.place, self.dtype, self.shape = place, np.dtype(dtype), shape
        self.first = np.ascontiguousarray(first)  # its first row
        self.size = math.prod(shape)
        self.nbytes = self.size * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = np.empty(self.shape, self.dtype)
        with open(self.place.path, "rb") as file:
            file.seek(self.place.offset)
            if file.readinto(array.reshape(-1).view(np.uint8).data) < self.nbytes:
                raise OSError(f"{self.place.path} ends within a weight: it was truncated")
        return array if dtype is None else array.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        arrays = [np.asarray(each) if isinstance(each, _StoredValue) else each for each in inputs]
        return getattr(ufunc, method)(*arrays, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]


# Device and inode of each file from which weights may still be read.
_read_in_place: set[tuple[int, int]] = set()


def replacements() -> Iterator[Replacement]:
    """Return the functions to replace; Keras must be installed."""
    from keras.src import backend
    from keras.src.saving import saving_lib

    yield saving_lib.H5IOStore, "__getitem__", _read
    yield saving_lib.H5IOStore, "_get_h5_file", _opened
    yield saving_lib, "is_memory_sufficient", lambda original, model: False
    yield backend.Variable, "assign", _assigned
    if importlib.util.find_spec("safetensors") is not None:
        import safetensors

        yield safetensors, "safe_open", _opened_tensors


def _read(read: Any, store: Any, key: str) -> Any:
    dataset = store._h5_entry_group[key]
    path, offset = dataset.file.filename, dataset.id.get_offset()  # None unless contiguous
    is_raw = offset is not None and dataset.ndim > 0 and dataset.nbytes >= _MIN_BYTES
    is_raw = is_raw and dataset.id.get_storage_size() == dataset.nbytes and dataset.dtype.isnative
    if not is_raw or not library.load().shares_disk_with_spill_file(path):
        return read(store, key)
    import tensorflow as tf

    is_bfloat16 = dataset.attrs.get("dtype") == "bfloat16"
    dtype = tf.bfloat16.as_numpy_dtype if is_bfloat16 else dataset.dtype
    return _StoredValue(_Place(path, offset), dtype, dataset.shape, dataset[:1])


def _opened(open_file: Any, store: Any, path_or_io: Any, mode: str | None = None) -> Any:
    if (mode or store.mode) == "w" and not store.archive and os.path.exists(path_or_io):
        status = os.stat(path_or_io)
        if (status.st_dev, status.st_ino) in _read_in_place:
            os.unlink(os.path.realpath(path_or_io))
    return open_file(store, path_or_io, mode)


def _assigned(assign: Any, variable: Any, value: Any) -> Any:
    from keras.src.backend.common.stateless_scope import in_stateless_scope

    if isinstance(value, _StoredValue):
        known = (value.first.ctypes.data, value.first.nbytes)
        fits = value.shape == tuple(variable.shape) and not in_stateless_scope()
        if fits and _leave_in_file(variable._value, value, known, replaces=True):
            return value
        return assign(variable, np.asarray(value))
    if not isinstance(getattr(value, "place", None), _Place):
        return assign(variable, value)
    runtime = library.load()
    runtime.defer_placing(True)
    try:
        result = assign(variable, value)
    finally:
        runtime.defer_placing(False)
    known = (value.ctypes.data, value.nbytes if value.flags.c_contiguous else 0)
    _leave_in_file(variable._value, value, known, replaces=False)
    return result


def _leave_in_file(variable: Any, value: Any, known: tuple[int, int], replaces: bool) -> bool:
    """Let a variable be read from a file if it has the known bytes; return whether it will be."""
    import tensorflow as tf
    from tensorflow.python.eager import context, execute

    handle = getattr(variable, "handle", None)
    if not isinstance(handle, tf.__internal__.EagerTensor):
        return False
    number = 0
    if variable.dtype.as_numpy_dtype == value.dtype:
        path, offset = value.place
        number = library.load().find_in_checkpoint(path, offset, value.nbytes, known[0], known[1])
    if number != 0:
        status = os.stat(value.place.path)
        _read_in_place.add((status.st_dev, status.st_ino))
    with tf.device(handle.device):
        inputs = [handle, tf.constant(number, tf.int64)]
        attributes = ("replaces", replaces)
        (in_place,) = execute.execute(
            b"_VariableInCheckpoint", 1, inputs, attributes, context.context()
        )
    return bool(in_place)


class _Tensors:
    """A file of safetensors whose arrays know their places."""

    def __init__(self, inner: Any, path: str) -> None:
        self._inner, self._path = inner, path
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            self._header = json.loads(file.read(header_bytes))
        self._begin = 8 + header_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> _Tensors:
        self._inner.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._inner.__exit__(*exception)

    def get_tensor(self, name: str) -> Any:
        value = self._inner.get_tensor(name)
        array = value.view(_StoredArray)
        array.place = _Place(self._path, self._begin + self._header[name]["data_offsets"][0])
        return array


def _opened_tensors(open_file: Any, path: Any, framework: str, *rest: Any, **named: Any) -> Any:
    opened = open_file(path, framework, *rest, **named)
    is_near = library.load().shares_disk_with_spill_file(path)
    is_array = framework in ("np", "numpy")
    return _Tensors(opened, os.fspath(path)) if is_array and is_near else opened
