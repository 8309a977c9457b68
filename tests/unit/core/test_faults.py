"""Fault injection for tests: valid settings, when a fault takes effect, and its cost."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfswap._core import SpillFile, fault_counts, set_faults

MIB = 1 << 20
KINDS = {
    *("copy-out-fails", "copy-in-fails", "copy-throws", "slow-copy", "bit-flip"),
    *("allocation-fails", "host-full", "disk-full", "write-error", "write-full", "short-write"),
    *("read-error", "short-read", "end-of-file", "file-bit-flip", "slow-disk", "thread-dies"),
    "cancel",
}


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    set_faults("")


@pytest.fixture(scope="module")
def file() -> SpillFile:
    for folder in (tempfile.gettempdir(), ".", "/var/tmp"):
        try:
            return SpillFile(folder)
        except OSError:
            continue
    pytest.skip("no folder here has a file system with O_DIRECT")


def test_an_unknown_kind_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(ValueError, match="unknown fault 'no-such'; the faults are ") as error:
        set_faults("no-such")
    assert set(str(error.value).partition("the faults are ")[2].split(", ")) == KINDS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("disk-full sometimes", "fault 'disk-full' has no 'sometimes'; it has after, times"),
        ("disk-full ms=3", "fault 'disk-full' has no 'ms'; it has after, times"),
        ("slow-disk bit=3", "fault 'slow-disk' has no 'bit'; it has after, times, ms"),
        ("bit-flip ms=3", "fault 'bit-flip' has no 'ms'; it has after, times, bit"),
        ("disk-full after", "'after' must be a number from 0 to 1000000000; got ''"),
        ("disk-full after=-1", "'after' must be a number from 0 to 1000000000; got '-1'"),
        ("disk-full after=1e3", "'after' must be a number from 0 to 1000000000; got '1e3'"),
        ("disk-full after=1000000001", "from 0 to 1000000000; got '1000000001'"),
        ("disk-full after=99999999999999999999", "got '99999999999999999999'"),
        ("disk-full times=0", "'times' must be a number from 1 to 1000000000; got '0'"),
        ("slow-disk ms=10001", "'ms' must be a number from 0 to 10000; got '10001'"),
        ("disk-full; read-error; disk-full", "fault 'disk-full' is set twice"),
        ("x" * 1001, "the text of faults may have at most 1000 characters; it has 1001"),
    ],
)
def test_invalid_settings_are_refused_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        set_faults(text)
    assert said in str(error.value)


@given(st.text(max_size=80))
def test_any_text_is_accepted_or_refused(text: str) -> None:
    try:
        set_faults(text)
    except (ValueError, UnicodeEncodeError):
        pass
    set_faults("")


def test_a_refused_text_keeps_the_earlier_setting(file: SpillFile) -> None:
    set_faults("read-error")
    with pytest.raises(ValueError):
        set_faults("write-error; no-such")
    offset, data = file.allocate(MIB), np.ones(MIB, np.uint8)
    file.write(offset, data)
    with pytest.raises(OSError, match="Input/output error"):
        file.read(offset, data)
    file.free(offset, MIB)


def test_a_fault_takes_effect_at_the_given_calls(file: SpillFile) -> None:
    offset, data = file.allocate(MIB), np.ones(MIB, np.uint8)
    file.write(offset, data)
    set_faults("read-error after=2 times=3; write-error after=1000")
    failed = []
    for _ in range(8):
        try:
            file.read(offset, data)
            failed.append(False)
        except OSError:
            failed.append(True)
    assert failed == [False, False, True, True, True, False, False, False]
    assert fault_counts()["read-error"] == (8, 3)
    assert fault_counts()["write-error"] == (0, 0)
    file.free(offset, MIB)


def test_setting_a_fault_again_resets_its_count(file: SpillFile) -> None:
    offset, data = file.allocate(MIB), np.ones(MIB, np.uint8)
    file.write(offset, data)
    for _ in range(2):
        set_faults("short-read after=1 times=1")
        file.read(offset, data)
        file.read(offset, data)
        assert fault_counts()["short-read"] == (2, 1)
    file.free(offset, MIB)


def test_faults_can_be_set_and_ended_concurrently(file: SpillFile) -> None:
    done = threading.Event()
    size = 3 * MIB
    problems: list[BaseException] = []

    def move() -> None:
        offset, data = file.allocate(size), np.full(size, 9, np.uint8)
        back = np.zeros(size, np.uint8)
        try:
            file.write(offset, data)
            while not done.is_set():
                file.read(offset, back)
                assert np.array_equal(back, data)
        except BaseException as error:
            problems.append(error)
        file.free(offset, size)

    threads = [threading.Thread(target=move) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(300):
        set_faults("" if i % 3 == 0 else f"short-read after={i}; slow-disk ms=0")
    done.set()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.mark.parametrize("io_uring", [True, False])
def test_a_file_outlives_the_threads_that_write_it(io_uring: bool, file: SpillFile) -> None:
    own = SpillFile(file.folder, io_uring=io_uring)
    data, back = np.arange(20 * MIB).astype(np.uint8), np.zeros(20 * MIB, np.uint8)
    offset = own.allocate(data.size)
    for text in ("thread-dies times=3", "thread-dies", ""):
        set_faults(text)
        own.write(offset, data)
        own.read(offset, back)
        assert np.array_equal(back, data)
        back[:] = 0
