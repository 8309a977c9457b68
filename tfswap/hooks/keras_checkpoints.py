"""Hooks in Keras that leave weights in the file they were loaded from.

A variable that was assigned what a checkpoint stores, unchanged, is read from there again after its
value has left the device (`CheckpointValue`, cc/core/spill). Arrays remember the place they were
read from; the library compares their bytes with the file's, so a wrong place costs only time.

A file that is saved to is written anew, not over weights that are still read from it. And a
``.keras`` archive is extracted to the disk: Keras would read all of it into memory if the machine
has enough, whatever the limit of the container.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tfswap.ops import library

_MIN_BYTES = 64 << 10  # smaller variables do not leave (StreamedVariables::kMinBytes)


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


def _stored(value: Any, path: str, offset: int) -> Any:
    array = value.view(_StoredArray)
    array.place = _Place(path, offset)
    return array


def _read(read: Any, store: Any, key: str) -> Any:
    value = read(store, key)
    dataset = store._h5_entry_group[key]
    offset = dataset.id.get_offset()  # None unless contiguous
    path = dataset.file.filename
    if offset is None or value.nbytes < _MIN_BYTES or not os.path.isfile(path):
        return value
    return _stored(value, path, offset)


def _opened(open_file: Any, store: Any, path_or_io: Any, mode: str | None = None) -> Any:
    if (mode or store.mode) == "w" and not store.archive and os.path.exists(path_or_io):
        status = os.stat(path_or_io)
        if (status.st_dev, status.st_ino) in _read_in_place:
            os.unlink(os.path.realpath(path_or_io))
    return open_file(store, path_or_io, mode)


def _assigned(assign: Any, variable: Any, value: Any) -> Any:
    place = getattr(value, "place", None)
    if not isinstance(place, _Place):
        return assign(variable, value)
    runtime = library.load()
    runtime.defer_placing(True)
    try:
        result = assign(variable, value)
    finally:
        runtime.defer_placing(False)
    _place(variable._value, value, place)
    return result


def _place(variable: Any, value: Any, place: _Place) -> None:
    import tensorflow as tf
    from tensorflow.python.eager import context, execute

    handle = getattr(variable, "handle", None)
    if not isinstance(handle, tf.__internal__.EagerTensor):
        return
    number = 0
    if value.flags.c_contiguous and variable.dtype.as_numpy_dtype == value.dtype:
        number = library.load().find_in_checkpoint(
            place.path, place.offset, value.ctypes.data, value.nbytes
        )
    if number != 0:
        status = os.stat(place.path)
        _read_in_place.add((status.st_dev, status.st_ino))
    with tf.device(handle.device):
        inputs = [handle, tf.constant(number, tf.int64)]
        execute.execute(b"_VariableInCheckpoint", 0, inputs, None, context.context())


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
        return _stored(value, self._path, self._begin + self._header[name]["data_offsets"][0])


def _opened_tensors(open_file: Any, path: Any, framework: str, *rest: Any, **named: Any) -> Any:
    opened = open_file(path, framework, *rest, **named)
    return _Tensors(opened, os.fspath(path)) if framework in ("np", "numpy") else opened
