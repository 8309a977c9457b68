"""Values that are read from the checkpoint that they were loaded from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spill_files import BLOCK, MIB, memory, pattern

from tfswap._core import CheckpointValue, set_faults

SIZE = 5 * MIB + 1234


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    set_faults("")


@pytest.fixture
def path(folder: str) -> Iterator[str]:
    """A file that is not a whole number of blocks."""
    place = Path(folder, "model.weights")
    place.write_bytes(pattern(SIZE).tobytes())
    os.sync()
    yield str(place)
    place.unlink(missing_ok=True)


def found(path: str, offset: int, size: int) -> CheckpointValue:
    value = CheckpointValue.find(path, offset, size, pattern(SIZE)[offset : offset + size].copy())
    assert value is not None
    return value


def values() -> st.SearchStrategy[tuple[int, int]]:
    place = st.one_of(st.integers(0, SIZE - 1), st.sampled_from([0, 1, 2048, BLOCK, MIB, MIB + 1]))
    return place.flatmap(
        lambda offset: st.tuples(
            st.just(offset),
            st.one_of(st.integers(1, SIZE - offset), st.just(SIZE - offset)),
        )
    )


def test_a_value_is_read_from_any_place_into_any_memory(path: str) -> None:
    @settings(max_examples=60, deadline=None)
    @given(values(), st.sampled_from([0, 1, 64, 512]))
    def check(place: tuple[int, int], shift: int) -> None:
        offset, size = place
        target = memory(size, shift)
        found(path, offset, size).read(0, target)
        np.testing.assert_array_equal(target, pattern(SIZE)[offset : offset + size])

    check()


@pytest.mark.parametrize("offset", [0, 2048, 4097])
def test_a_part_is_read(path: str, offset: int) -> None:
    value = found(path, offset, SIZE - offset)
    target = memory(2 * MIB)
    value.read(2 * MIB, target)
    begin = offset + 2 * MIB
    np.testing.assert_array_equal(target, pattern(SIZE)[begin : begin + 2 * MIB])


def test_other_bytes_are_not_found(path: str, folder: str) -> None:
    data = pattern(2 * MIB)
    for offset in (1, SIZE - MIB, SIZE + 1, -1):
        assert CheckpointValue.find(path, offset, data.size, data) is None
    data[-1] ^= 1
    assert CheckpointValue.find(path, 0, data.size, data) is None
    assert CheckpointValue.find(path, 0, SIZE, data) is None
    assert CheckpointValue.find(path, 0, SIZE + 1, data[:100]) is None
    assert CheckpointValue.find(path, 0, 99, data[:100]) is None
    assert CheckpointValue.find(f"{folder}/missing", 0, data.size, data) is None
    assert CheckpointValue.find(folder, 0, data.size, data) is None
    assert CheckpointValue.find(path, 0, 0, data[:0]) is None
    assert CheckpointValue.find(path, 0, 10, data[:0]) is None


def test_a_renamed_or_deleted_file_is_still_read(path: str, folder: str) -> None:
    value = found(path, 100, 3 * MIB)
    os.rename(path, f"{folder}/renamed")
    Path(path).write_bytes(b"another file")
    os.unlink(f"{folder}/renamed")
    target = memory(3 * MIB)
    value.read(0, target)
    np.testing.assert_array_equal(target, pattern(SIZE)[100 : 100 + 3 * MIB])


@pytest.mark.parametrize("mapped", [False, True])
def test_a_changed_byte_is_an_error(path: str, mapped: bool) -> None:
    value = found(path, 100, 3 * MIB)
    if mapped:
        changed = np.memmap(path, np.uint8, "r+")
        changed[2 * MIB] ^= 1
        changed.flush()
    else:
        with open(path, "r+b") as file:
            file.seek(2 * MIB)
            file.write(bytes([pattern(SIZE)[2 * MIB] ^ 1]))
    with pytest.raises(OSError, match=r"model\.weights are not the ones that were loaded.*again"):
        value.read(0, memory(3 * MIB))
    # Found again, the file is the one that it is now.
    data = pattern(SIZE)
    data[2 * MIB] ^= 1
    again = CheckpointValue.find(path, 0, SIZE, data)
    assert again is not None
    again.read(0, memory(SIZE))


@pytest.mark.parametrize("is_read", [False, True])
def test_a_value_is_known_from_its_first_read(path: str, is_read: bool) -> None:
    data = pattern(SIZE)
    value = CheckpointValue.find(path, 100, 3 * MIB, data[100:200].copy())
    assert value is not None
    target = memory(3 * MIB)
    if is_read:
        value.read(0, target)
        np.testing.assert_array_equal(target, data[100 : 100 + 3 * MIB])
    times = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(2 * MIB)
        file.write(bytes([data[2 * MIB] ^ 1]))
    if is_read:  # before, a changed file is known from its time
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(OSError, match="are not the ones that were loaded"):
        value.read(0, target)


def test_a_truncated_file_is_an_error(path: str) -> None:
    value = found(path, 100, 3 * MIB)
    os.truncate(path, 2 * MIB)
    with pytest.raises(OSError, match="shorter than when it was loaded"):
        value.read(0, memory(3 * MIB))


@pytest.mark.parametrize("fault", ["read-error", "end-of-file", "file-bit-flip"])
def test_a_failing_disk_is_an_error(path: str, fault: str) -> None:
    value = found(path, 100, 3 * MIB)
    set_faults(fault)
    with pytest.raises(OSError, match="checkpoint"):
        value.read(0, memory(3 * MIB))


def test_short_reads_are_continued(path: str) -> None:
    value = found(path, 100, 3 * MIB)
    set_faults("short-read")
    target = memory(3 * MIB)
    value.read(0, target)
    np.testing.assert_array_equal(target, pattern(SIZE)[100 : 100 + 3 * MIB])


def test_a_forked_process_gets_an_error(path: str) -> None:
    value = found(path, 0, MIB)
    child = os.fork()
    if child == 0:
        try:
            value.read(0, memory(MIB))
        except OSError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
