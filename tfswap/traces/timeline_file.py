"""Timelines in files: what planners see of a step, to be planned elsewhere or by others.

The format is a zip of numpy arrays (``numpy.savez_compressed``; no pickles), about 20 bytes an op:

===================  =================  ===========================================================
array                type               meaning
===================  =================  ===========================================================
format               uint8[]            ``tfswap timeline 1`` as UTF-8
op_start_ns          int64[n]           differences from op to op
op_duration_ns       int64[n]
op_gateable          bool[n]            may take a control edge
op_context           int32[n]           control-flow context
op_names, op_types   uint8[]            UTF-8, one a line; no types: empty
buffer_bytes         int64[m]
buffer_alloc_ns      int64[m]
buffer_free_ns       int64[m]           2^63 - 1: the step does not free it
absences             int32[k, 5]        buffer, producer_op, after_op, before_op, context
tensors              uint8[]            UTF-8, one a line: each absence's tensor
consumers            uint8[]            UTF-8, one a line: each absence's consumers, by tabs
scalars              int64[2]           resident_bytes, step_ns
graph                uint8[]            profiles only; UTF-8, one a line: the fingerprint; the peak
                                        of the unswapped step, and that in the worst order of ops,
                                        in bytes; order edges, two names with a tab between them
===================  =================  ===========================================================
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfswap.profile import Profile
from tfswap.timeline import Absence, Timeline

FORMAT = "tfswap timeline 1"

# More than any step has; a larger file is not read into memory.
_LARGEST_BYTES = 1 << 30

_ARRAYS = {
    "format": np.uint8,
    "op_start_ns": np.int64,
    "op_duration_ns": np.int64,
    "op_gateable": np.bool_,
    "op_context": np.int32,
    "op_names": np.uint8,
    "op_types": np.uint8,
    "buffer_bytes": np.int64,
    "buffer_alloc_ns": np.int64,
    "buffer_free_ns": np.int64,
    "absences": np.int32,
    "tensors": np.uint8,
    "consumers": np.uint8,
    "scalars": np.int64,
}


def save_timeline(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Writes a timeline to a file, all of it or nothing."""
    _save(_arrays(timeline), path)


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes a profile to a file, all of it or nothing; `load_timeline` reads it too."""
    peaks = (profile.unswapped_peak_bytes, profile.worst_peak_bytes)
    graph = [profile.fingerprint, *map(str, peaks)]
    graph += [f"{before}\t{after}" for before, after in profile.order]
    _save({**_arrays(profile.timeline), "graph": _lines(graph)}, path)


def _arrays(timeline: Timeline) -> dict[str, Any]:
    absences = timeline.absences
    rows = [(a.buffer, a.producer_op, a.after_op, a.before_op, a.context) for a in absences]
    return {
        "format": _lines([FORMAT]),
        "op_start_ns": np.diff(timeline.op_start_ns, prepend=0),
        "op_duration_ns": timeline.op_end_ns - timeline.op_start_ns,
        "op_gateable": timeline.op_gateable,
        "op_context": timeline.op_context,
        "op_names": _lines(timeline.op_names),
        "op_types": _lines(timeline.op_types),
        "buffer_bytes": timeline.buffer_bytes,
        "buffer_alloc_ns": timeline.buffer_alloc_ns,
        "buffer_free_ns": timeline.buffer_free_ns,
        "absences": np.array(rows, dtype=np.int32).reshape(-1, 5),
        "tensors": _lines([a.tensor for a in absences]),
        "consumers": _lines(["\t".join(a.consumers) for a in absences]),
        "scalars": np.array([timeline.resident_bytes, timeline.step_ns], dtype=np.int64),
    }


def _save(arrays: dict[str, Any], path: str | os.PathLike[str]) -> None:
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(partial, target)


def load_timeline(path: str | os.PathLike[str]) -> Timeline:
    """Reads a timeline that `save_timeline` or `save_profile` wrote, and checks it.

    Raises:
        ValueError: The file is not a timeline, or what it says cannot be.
        OSError: The file cannot be read.
    """
    return _load(path)[0]


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Reads a profile that `save_profile` wrote, and checks it.

    Raises:
        ValueError: The file is not a profile, or what it says cannot be.
        OSError: The file cannot be read.
    """
    timeline, graph = _load(path)
    if len(graph) < 3 or not all(line.isdecimal() for line in graph[1:3]):
        raise ValueError(
            f"{os.fspath(path)} holds a timeline without its graph, which no plan can be made for: "
            "write a profile with tfswap profile, or AutoSwap(save_profile=...)"
        )
    order = [line.split("\t") for line in graph[3:]]
    if any(len(edge) != 2 for edge in order):
        raise ValueError(f"{os.fspath(path)}: an order edge joins two nodes")
    edges = tuple((before, after) for before, after in order)
    return Profile(timeline, graph[0], edges, int(graph[1]), int(graph[2]))


def _load(path: str | os.PathLike[str]) -> tuple[Timeline, tuple[str, ...]]:
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as archive:
            whole_bytes = sum(entry.file_size for entry in archive.infolist())
        if whole_bytes > _LARGEST_BYTES:
            raise ValueError(f"its arrays would take {whole_bytes} bytes")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in _ARRAYS}
            arrays["graph"] = archive["graph"] if "graph" in archive else _lines([])
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise ValueError(f"{name} is not a timeline of tfswap: {error}") from error
    for key, dtype in {**_ARRAYS, "graph": np.uint8}.items():
        if arrays[key].dtype != dtype:
            raise ValueError(f"{name}: {key} has type {arrays[key].dtype}, not {np.dtype(dtype)}")
    if _texts(arrays["format"]) != (FORMAT,):
        raise ValueError(f"{name} has another format than {FORMAT!r}: write it again")
    try:
        timeline = _timeline(arrays)
        timeline.core  # noqa: B018  checks it
        graph = _texts(arrays["graph"])
    except (ValueError, IndexError) as error:
        raise ValueError(f"{name}: {error}") from error
    return timeline, graph


def _timeline(arrays: dict[str, Any]) -> Timeline:
    rows = arrays["absences"].reshape(-1, 5).tolist()
    tensors, consumers = _texts(arrays["tensors"]), _texts(arrays["consumers"])
    if not len(rows) == len(tensors) == len(consumers):
        raise ValueError("absences, tensors and consumers differ in length")
    start_ns = np.cumsum(arrays["op_start_ns"]).astype(np.int64)
    resident_bytes, step_ns = arrays["scalars"].tolist()
    return Timeline(
        op_names=_texts(arrays["op_names"]),
        op_start_ns=start_ns,
        op_end_ns=start_ns + arrays["op_duration_ns"],
        op_gateable=arrays["op_gateable"],
        op_context=arrays["op_context"],
        resident_bytes=resident_bytes,
        buffer_bytes=arrays["buffer_bytes"],
        buffer_alloc_ns=arrays["buffer_alloc_ns"],
        buffer_free_ns=arrays["buffer_free_ns"],
        absences=tuple(
            Absence(
                buffer,
                tensor,
                producer,
                after,
                before,
                tuple(readers.split("\t")) if readers else (),
                context,
            )
            for (buffer, producer, after, before, context), tensor, readers in zip(
                rows, tensors, consumers, strict=True
            )
        ),
        step_ns=step_ns,
        op_types=_texts(arrays["op_types"]),
    )


def _lines(texts: Sequence[str]) -> NDArray[np.uint8]:
    for text in texts:
        if "\n" in text:
            raise ValueError(f"a name with a line break cannot be written: {text!r}")
    return np.frombuffer("".join(f"{text}\n" for text in texts).encode(), dtype=np.uint8)


def _texts(array: NDArray[Any]) -> tuple[str, ...]:
    return tuple(array.tobytes().decode("utf-8").split("\n")[:-1])
