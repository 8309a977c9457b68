"""Untrusted profiles: invalid ones are rejected within bounds of memory and time."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import inputs
import numpy as np
import pytest
from untrusted_profiles import Arrays, changed_profile

from tfswap.traces import dataflow_text
from tfswap.traces.timeline_file import load_profile


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a.update(op_duration_ns=a["op_duration_ns"][:, None]), "has 2 dimensions"),
        (lambda a: a.update(op_duration_ns=a["op_duration_ns"][:1]), "differ in length"),
        (lambda a: a.update(op_start_ns=a["op_start_ns"].astype(float)), "has type <f8, not <i8"),
        (lambda a: a.update(op_start_ns=a["op_start_ns"] + 2**62), "starts at|ends at"),
        (lambda a: a.update(buffer_bytes=a["buffer_bytes"] * 0 + 2**60), "bytes together"),
        (lambda a: a.update(scalars=np.array([0, 2**62])), "the step takes"),
        (lambda a: a.update(scalars=np.array([0])), "not enough values"),
        (lambda a: a.update(op_names=np.full(600_000, 10, np.uint8)), "too many lines or names"),
        (lambda a: a.update(op_types=np.frombuffer(b"one\n", np.uint8)), "op_types has 1 entries"),
        (
            lambda a: a.update(graph=np.frombuffer(b"f\n" + b"9" * 40, np.uint8)),
            "without its graph",
        ),
        (lambda a: a.update(tensors=np.zeros(0, np.uint8)), "differ in length"),
        (lambda a: a.update(buffer_free_ns=a["buffer_free_ns"] * 0 - 2**62), "is freed at|lives"),
        (lambda a: a.update(op_gateable=a["op_gateable"].astype("V1")), r"has type \|V1, not"),
        (lambda a: a.update(dataflow=np.frombuffer(b"0\n\n\na\tb\n", np.uint8)), "is invalid"),
    ],
)
def test_invalid_profiles_are_rejected(
    tmp_path: Path, change: Callable[[Arrays], object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        load_profile(changed_profile(tmp_path / "profile", change))


def test_a_zip_bomb_is_rejected(tmp_path: Path) -> None:
    """200 MB of zeros take 200 kB in a file."""
    path = changed_profile(
        tmp_path / "profile", lambda a: a.update(consumers=np.zeros(200 << 20, np.uint8))
    )
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match="its arrays have more than"):
        load_profile(path)


def test_an_array_header_with_a_huge_shape_is_rejected(tmp_path: Path) -> None:
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (999999999999999,), }"
    header = header.ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    good = zipfile.ZipFile(inputs.CORPUS / "profile" / "good")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for entry in good.infolist():
            archive.writestr(
                entry.filename, array if "buffer_bytes" in entry.filename else good.read(entry)
            )
    path = tmp_path / "profile"
    path.write_bytes(data.getvalue())
    with pytest.raises(ValueError, match="buffer_bytes has 0 bytes, which do not match shape"):
        load_profile(path)


def test_a_directory_with_too_many_entries_is_rejected(tmp_path: Path) -> None:
    good = (inputs.CORPUS / "profile" / "good").read_bytes()
    path = tmp_path / "profile"
    for end in (b"PK\x06\x07" + bytes(16), b""):
        more = good[:-22] + end + good[-22:-12] + (2**15 - 1).to_bytes(2, "little") + good[-10:]
        path.write_bytes(more)
        with pytest.raises(ValueError, match="is not a timeline of tfswap"):
            load_profile(path)


def test_long_chains_of_aliases_take_linear_time() -> None:
    count = 50_000
    nodes = ["n0\tMatMul\t0\t\t1"]
    nodes += [f"n{i}\tReshape\t0\ta\t1\tn{i - 1}:0" for i in range(1, count)]
    begun_s = time.process_time()
    assert dataflow_text.dataflow_of_lines(["0", "", "", *nodes], 0) is not None
    assert time.process_time() - begun_s < 10
    nodes[0] = f"n0\tReshape\t0\ta\t1\tn{count - 1}:0"
    with pytest.raises(ValueError, match="form a cycle"):
        dataflow_text.dataflow_of_lines(["0", "", "", *nodes], 0)
