"""Read and write timelines and profiles, so that a step can be planned elsewhere.

The format is a zip of numpy arrays (``numpy.savez_compressed``; no pickles), about 20 bytes an op:

===================  =================  ===========================================================
array                type               meaning
===================  =================  ===========================================================
format               uint8[]            ``tfswap timeline 1`` as UTF-8
op_start_ns          int64[n]           differences between consecutive starts
op_duration_ns       int64[n]
op_gateable          bool[n]            may take a control edge
op_context           int32[n]           control-flow context
op_names, op_types   uint8[]            UTF-8, one per line; op_types may be empty
buffer_bytes         int64[m]
buffer_alloc_ns      int64[m]
buffer_free_ns       int64[m]           2^63 - 1: the step does not free it
absences             int32[k, 5]        buffer, producer_op, after_op, before_op, context
tensors              uint8[]            UTF-8, one line per absence: its tensor
consumers            uint8[]            UTF-8, one line per absence: its consumers, tab-separated
users                uint8[]            optional; UTF-8, one line per absence: the users of a
                                        variable's value, tab-separated
scalars              int64[2]           resident_bytes, step_ns
graph                uint8[]            profiles only; UTF-8 lines: the fingerprint; the peak of the
                                        unswapped step in bytes; the same for the worst order of
                                        ops; order edges, two tab-separated names each
dataflow             uint8[]            optional; UTF-8 lines, tab-separated: size of the smallest
                                        tensor that is swapped, in bytes; buffers that no clone may
                                        read; for each tensor its node, port and buffer; for each
                                        op with scratch memory its name and the bytes; an empty
                                        line; the graph as the pass describes it
large_ops            int32[]            profiles only, optional: ops that access buffers large
                                        enough to be swapped
sections             uint8[]            profiles only, optional; UTF-8 lines, tab-separated: a
                                        number of sections, the smallest budget with them in bytes,
                                        the op that determines it
floor                uint8[]            profiles only, optional; UTF-8 lines, tab-separated, with
                                        weights staying and with weights streamed: bytes of weights,
                                        inputs, outputs, temporary memory, and of what cannot leave;
                                        the largest op's type and name
===================  =================  ===========================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfswap.step.op_floor import OpFloor, StepFloor
from tfswap.step.profile import Profile
from tfswap.step.section_floor import SectionFloor, section_floors
from tfswap.step.timeline import MAX_BYTES, Absence, Timeline
from tfswap.traces.array_file import read_arrays, write_arrays
from tfswap.traces.dataflow_text import dataflow_lines, dataflow_of_lines

FORMAT = "tfswap timeline 1"

# Bounds: lines of one array, and lines and names of all arrays together.
_MAX_LINES, _MAX_NAMES = 1 << 19, 1 << 21
_MAX_PEAK_DIGITS = 19

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
_OPTIONAL = {
    "graph": np.uint8,
    "sections": np.uint8,
    "floor": np.uint8,
    "users": np.uint8,
    "dataflow": np.uint8,
    "large_ops": np.int32,
}

_OP_FLOOR = re.compile(r"([0-9]{1,19})\t" * 5 + r"([^\t]*)\t(.*)")
_SECTION_FLOOR = re.compile(r"([0-9]{1,19})\t([0-9]{1,19})\t(.+)")


def save_timeline(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write a timeline to a file atomically."""
    write_arrays(_arrays(timeline), path)


def save_profile(profile: Profile, path: str | os.PathLike[str], mode: int = 0o666) -> None:
    """Write a profile to a file atomically; `load_timeline` can read it too.

    Args:
        profile: The profile.
        path: The file's path.
        mode: The file's mode, to which the umask applies.

    Raises:
        OSError: The file cannot be written.
    """
    peaks = (profile.unswapped_peak_bytes, profile.worst_peak_bytes)
    graph = [profile.fingerprint, *map(str, peaks)]
    graph += [f"{before}\t{after}" for before, after in profile.order]
    arrays = {**_arrays(profile.timeline), "graph": _lines(graph)}
    arrays["large_ops"] = np.array(profile.large_ops, dtype=np.int32)
    floors = [f"{floor.sections}\t{floor.bytes}\t{floor.op}" for floor in profile.section_floors]
    if floors:
        arrays["sections"] = _lines(floors)
    if profile.floor is not None:
        arrays["floor"] = _lines([_floor_line(each) for _, each in profile.floor.modes])
    write_arrays(arrays, path, mode)


def _arrays(timeline: Timeline) -> dict[str, Any]:
    absences = timeline.absences
    rows = [(a.buffer, a.producer_op, a.after_op, a.before_op, a.context) for a in absences]
    arrays = {
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
    if timeline.dataflow is not None and not timeline.recomputes:
        arrays["dataflow"] = _lines(dataflow_lines(timeline.dataflow))
    if any(a.of_variable for a in absences):
        arrays["users"] = _lines(["\t".join(a.users) for a in absences])
    return arrays


def load_timeline(path: str | os.PathLike[str]) -> Timeline:
    """Read and check a timeline that `save_timeline` or `save_profile` wrote.

    Raises:
        ValueError: The file is not a valid timeline.
        OSError: The file cannot be read.
    """
    return _load(path).timeline


def load_section_floors(path: str | os.PathLike[str]) -> tuple[SectionFloor, ...]:
    """Read the smallest budgets with sections from a profile; empty if it has none.

    Raises:
        ValueError: The file is not a valid timeline.
        OSError: The file cannot be read.
    """
    return _load(path).section_floors


def load_floor(path: str | os.PathLike[str]) -> StepFloor | None:
    """Read what the largest op needs at once from a profile; None if it does not have it.

    Raises:
        ValueError: The file is not a valid timeline.
        OSError: The file cannot be read.
    """
    return _load(path).floor


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read and check a profile that `save_profile` wrote.

    Raises:
        ValueError: The file is not a valid profile.
        OSError: The file cannot be read.
    """
    loaded = _load(path)
    graph = loaded.graph
    if len(graph) < 3 or not all(map(_is_peak, graph[1:3])):
        raise ValueError(
            f"{os.fspath(path)} holds a timeline without its graph, so no plan can be made for it: "
            "write a profile with tfswap profile, or AutoSwap(save_profile=...)"
        )
    order = [line.split("\t") for line in graph[3:]]
    if any(len(edge) != 2 for edge in order):
        raise ValueError(f"{os.fspath(path)}: an order edge does not have two nodes")
    edges = tuple((before, after) for before, after in order)
    return Profile(
        loaded.timeline,
        graph[0],
        edges,
        int(graph[1]),
        int(graph[2]),
        loaded.large_ops,
        section_floors=loaded.section_floors,
        floor=loaded.floor,
    )


def _is_peak(line: str) -> bool:
    is_number = line.isascii() and line.isdecimal() and len(line) <= _MAX_PEAK_DIGITS
    return is_number and int(line) <= MAX_BYTES


class _Loaded(NamedTuple):
    """The content of a file, with the graph as lines."""

    timeline: Timeline
    graph: tuple[str, ...]
    large_ops: tuple[int, ...]
    section_floors: tuple[SectionFloor, ...]
    floor: StepFloor | None


def _load(path: str | os.PathLike[str]) -> _Loaded:
    name = os.fspath(path)
    try:
        arrays = read_arrays(path, _ARRAYS, _OPTIONAL)
        _check_amounts(arrays)
    except ValueError as error:
        raise ValueError(f"{name} is not a timeline of tfswap: {error}") from error
    if arrays["format"].tobytes() != f"{FORMAT}\n".encode():
        raise ValueError(f"{name} does not have the format {FORMAT!r}: write it again")
    try:
        timeline = _timeline(arrays)
        timeline.core  # noqa: B018  checks it
        graph = _texts(arrays["graph"])
        large_ops = tuple(arrays["large_ops"].tolist())
        if not all(0 <= op < len(timeline.op_names) for op in large_ops):
            raise ValueError("large_ops names an unknown op")
        floors = section_floors(map(_section_record, _texts(arrays["sections"])))
        floor = _floor(_texts(arrays["floor"]))
    except (ValueError, IndexError) as error:
        raise ValueError(f"{name}: {error}") from error
    return _Loaded(timeline, graph, large_ops, floors, floor)


def _check_amounts(arrays: dict[str, NDArray[Any]]) -> None:
    """Bound the number of objects that the arrays are parsed into."""
    names = 0
    for key, array in arrays.items():
        if array.ndim != 1 and key != "absences":
            raise ValueError(f"{key} has {array.ndim} dimensions")
        if array.dtype == np.uint8:
            lines = int(np.count_nonzero(array == ord("\n")))
            names += lines + int(np.count_nonzero(array == ord("\t")))
            if lines > _MAX_LINES or names > _MAX_NAMES:
                raise ValueError(f"{key} has too many lines or names ({lines} lines)")


def _floor_line(floor: OpFloor) -> str:
    sizes = [size for _, size in floor.own]
    return "\t".join(map(str, (*sizes, floor.staying_bytes, floor.op_type, floor.op)))


def _floor(lines: Sequence[str]) -> StepFloor | None:
    if not lines:
        return None
    found = []
    for line in lines:
        match = _OP_FLOOR.fullmatch(line)
        if match is None:
            raise ValueError(f"{line[:100]!r} is not what an op needs, separated by tabs")
        found.append(OpFloor(match[7], match[6], *map(int, match.groups()[:5])))
    if len(found) != 2:
        raise ValueError(f"there are {len(found)} floors, not 2")
    return StepFloor(*found)


def _section_record(line: str) -> dict[str, Any]:
    match = _SECTION_FLOOR.fullmatch(line)
    if match is None:
        raise ValueError(
            f"{line[:100]!r} is not a number of sections, bytes and an op, separated by tabs"
        )
    return {"sections": int(match[1]), "bytes": int(match[2]), "op": match[3]}


def _timeline(arrays: dict[str, Any]) -> Timeline:
    rows = arrays["absences"].reshape(-1, 5).tolist()
    tensors, consumers = _texts(arrays["tensors"]), _texts(arrays["consumers"])
    users = _texts(arrays["users"]) or ("",) * len(rows)
    if not len(rows) == len(tensors) == len(consumers) == len(users):
        raise ValueError("absences, tensors, consumers and users differ in length")
    if len(arrays["op_duration_ns"]) != len(arrays["op_start_ns"]):
        raise ValueError("op_start_ns and op_duration_ns differ in length")
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
                tuple(needed_by.split("\t")) if needed_by else (),
            )
            for (buffer, producer, after, before, context), tensor, readers, needed_by in zip(
                rows, tensors, consumers, users, strict=True
            )
        ),
        step_ns=step_ns,
        op_types=_texts(arrays["op_types"]),
        dataflow=dataflow_of_lines(_texts(arrays["dataflow"]), len(arrays["buffer_bytes"])),
    )


def _lines(texts: Sequence[str]) -> NDArray[np.uint8]:
    for text in texts:
        if "\n" in text:
            raise ValueError(f"cannot write a name with a line break: {text!r}")
    return np.frombuffer("".join(f"{text}\n" for text in texts).encode(), dtype=np.uint8)


def _texts(array: NDArray[Any]) -> tuple[str, ...]:
    return tuple(array.tobytes().decode("utf-8").split("\n")[:-1])
