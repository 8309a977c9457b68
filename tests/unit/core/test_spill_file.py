"""Far memory in a file: round trips, errors, and speed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spill_files import (
    BLOCK,
    ENGINES,
    GROWTH,
    MIB,
    descriptor,
    memory,
    open_file,
    pattern,
)

from tfswap._core import SpillFile, buffer_checksum, measure_spill, set_faults


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    set_faults("")


@pytest.fixture(scope="module", params=ENGINES)
def file(request: pytest.FixtureRequest, folder: str) -> Iterator[SpillFile]:
    yield open_file(folder, request.param)


# Round trips


sizes = st.one_of(
    st.integers(1, 4 * MIB),
    st.builds(
        lambda whole, unit, more: max(whole * unit + more, 1),
        st.integers(0, 12),
        st.sampled_from([512, BLOCK, MIB]),
        st.integers(-2, 2),
    ),
)


@settings(max_examples=80, deadline=None)
@given(
    size=sizes,
    write_shift=st.sampled_from([0, 1, 63, 64, 512, 1024]),
    read_shift=st.sampled_from([0, 1, 63, 64, 512, 1024]),
)
@example(size=12 * MIB + 1, write_shift=0, read_shift=64)
@example(size=12 * MIB - 1, write_shift=1, read_shift=0)
def test_data_round_trip(file: SpillFile, size: int, write_shift: int, read_shift: int) -> None:
    data = pattern(size, size, write_shift)
    offset = file.allocate(size)
    file.write(offset, data)
    around = memory(size + 2 * BLOCK, read_shift)
    around[:] = 0xA5
    file.read(offset, around[BLOCK:-BLOCK])
    file.free(offset, size)
    assert np.array_equal(around[BLOCK:-BLOCK], data)
    assert (around[:BLOCK] == 0xA5).all() and (around[-BLOCK:] == 0xA5).all()
    assert np.array_equal(data, pattern(size, size, write_shift))


def test_an_extent_is_written_and_read_in_sections(file: SpillFile) -> None:
    data, back = pattern(5 * MIB + 300), memory(5 * MIB + 300)
    offset = file.allocate(data.size)
    file.write(offset + 2 * MIB, data[2 * MIB :])
    file.write(offset, data[: 2 * MIB])
    file.read(offset, back[: 4 * MIB])
    file.read(offset + 4 * MIB, back[4 * MIB :])
    file.free(offset, data.size)
    assert np.array_equal(back, data)


def test_empty_buffers(file: SpillFile) -> None:
    offset = file.allocate(0)
    file.write(offset, memory(0))
    file.read(offset, memory(0))
    file.free(offset, 0)
    file.free(-1, 0)
    assert file.stats().bytes_in_use == 0


def test_only_written_ranges_are_readable(file: SpillFile) -> None:
    offset = file.allocate(2 * MIB)
    with pytest.raises(OSError, match="1048576 bytes were requested and 0 were written"):
        file.read(offset, memory(2 * MIB))
    file.write(offset, pattern(MIB + 10))
    with pytest.raises(OSError, match="of piece 1 11 bytes were requested and 10 were written"):
        file.read(offset, memory(MIB + 11))
    for begin, size in [(0, 2 * MIB + 1), (BLOCK, BLOCK), (-BLOCK, BLOCK), (GROWTH, BLOCK)]:
        with pytest.raises(
            OSError, match=f"no extent holds {size} bytes at offset {offset + begin}"
        ):
            file.write(offset + begin, memory(size))
    file.free(offset, 2 * MIB)
    with pytest.raises(OSError, match="no extent holds"):
        file.read(offset, memory(MIB + 10))


def test_freed_data_are_not_read(file: SpillFile) -> None:
    offset = file.allocate(MIB)
    file.write(offset, pattern(MIB))
    file.free(offset, MIB)
    assert file.allocate(MIB) == offset
    with pytest.raises(OSError, match="0 were written"):
        file.read(offset, memory(MIB))
    file.free(offset, MIB)


# More than the number of lanes, so that some wait.
@pytest.mark.parametrize("callers", [2, 7])
def test_many_concurrent_calls(new_file: Callable[..., SpillFile], callers: int) -> None:
    file = new_file()

    def call(caller: int) -> None:
        dice = np.random.default_rng(caller)
        held: list[tuple[int, int, int]] = []
        for turn in range(12):
            size, seed = int(dice.integers(1, 5 * MIB)), int(dice.integers(1 << 30))
            offset = file.allocate(size)
            file.write(offset, pattern(size, seed, turn % 3))
            held.append((offset, size, seed))
            if turn % 3 == 0:
                continue
            offset, size, seed = held.pop(int(dice.integers(len(held))))
            back = memory(size, turn % 2 * 64)
            file.read(offset, back)
            file.free(offset, size)
            assert np.array_equal(back, pattern(size, seed))
        for offset, size, _ in held:
            file.free(offset, size)

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(call, range(callers)))
    stats = file.stats()
    assert stats.bytes_in_use == 0 and stats.bytes_written > stats.bytes_read > 0
    assert stats.write_ns > 0 and stats.read_ns > 0


# Errors

FAULTS = {
    "write-error": r"writing {piece} bytes at offset {middle} of the spill file in {folder} "
    r"failed: Input/output error \(errno 5\)\. The disk or the connection to it fails: look",
    "write-full": r"writing {piece} bytes at offset {middle} of .* failed: "
    r"No space left on device \(errno 28\)\. The disk has [0-9.]+ [MG]iB free",
    "read-error": r"reading {piece} bytes at offset {middle} of the spill file in {folder} "
    r"failed: Input/output error \(errno 5\)\. The disk or the connection to it fails: look",
    "end-of-file": r"reading {piece} bytes at offset {middle} of .* reached the end of the file",
    "file-bit-flip": r"the {piece} bytes at offset {middle} of the spill file in {folder} are not "
    r"the ones that were written \(checksum [0-9a-f]{{16}}, not [0-9a-f]{{16}}\)",
}


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("pieces", [1, 20])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_an_error_and_later_calls_work(
    file: SpillFile, kind: str, pieces: int, shift: int
) -> None:
    size = pieces * MIB - 100
    data, back = pattern(size, shift=shift), memory(size, shift)
    offset = file.allocate(size)
    piece = MIB - 100 if pieces == 1 else MIB
    text = FAULTS[kind].format(piece=piece, middle=offset + pieces // 2 * MIB, folder=file.folder)
    if kind.startswith("write"):
        file.write(offset, data)
        set_faults(kind)
        with pytest.raises(OSError, match=text):
            file.write(offset, data)
        set_faults("")
        # Some of it may be on the disk; the contents are undefined.
        with pytest.raises(OSError, match="0 were written"):
            file.read(offset, back)
        file.write(offset, data)
    else:
        file.write(offset, data)
        set_faults(kind)
        with pytest.raises(OSError, match=text):
            file.read(offset, back)
        set_faults("")
        # No write to it is in flight any more.
        back[:] = 7
        file.write(offset, data)
        assert (back == 7).all()
    file.read(offset, back)
    assert np.array_equal(back, data)
    file.free(offset, size)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("kind", ["short-write", "short-read", "slow-disk"])
def test_recoverable_faults_are_no_errors(file: SpillFile, kind: str, shift: int) -> None:
    data, back = pattern(3 * MIB + 5000, shift=shift), memory(3 * MIB + 5000, shift)
    offset = file.allocate(data.size)
    set_faults(kind)
    file.write(offset, data)
    file.read(offset, back)
    set_faults("")
    assert np.array_equal(back, data)
    back[:] = 0
    file.read(offset, back)
    assert np.array_equal(back, data)
    file.free(offset, data.size)


def test_without_checksums_a_flipped_bit_is_not_detected(
    new_file: Callable[..., SpillFile],
) -> None:
    file = new_file(checksums=False)
    data, back = pattern(3 * MIB), memory(3 * MIB)
    offset = file.allocate(data.size)
    file.write(offset, data)
    set_faults("file-bit-flip")
    file.read(offset, back)
    assert np.unpackbits(back ^ data).sum() == 1


def test_a_bit_flipped_on_the_disk_is_detected(own_folder: str) -> None:
    file = SpillFile(own_folder)
    data, back = pattern(5 * MIB + 10), memory(5 * MIB + 10)
    offset = file.allocate(data.size)
    file.write(offset, data)
    with open(f"/proc/self/fd/{descriptor(own_folder)}", "r+b", buffering=0) as behind:
        for place in (0, 3 * MIB + 77, 5 * MIB + 9):
            os.pwrite(behind.fileno(), bytes([data[place] ^ 16]), offset + place)
            os.fsync(behind.fileno())
            with pytest.raises(
                OSError, match=f"at offset {offset + place // MIB * MIB} .*checksum"
            ):
                file.read(offset, back)
            os.pwrite(behind.fileno(), bytes([data[place]]), offset + place)
            os.fsync(behind.fileno())
            file.read(offset, back)
            assert np.array_equal(back, data)


def test_a_truncated_file_is_an_error(own_folder: str) -> None:
    file = SpillFile(own_folder)
    data, back = pattern(5 * MIB), memory(5 * MIB)
    offset = file.allocate(data.size)
    file.write(offset, data)
    with open(f"/proc/self/fd/{descriptor(own_folder)}", "r+b", buffering=0) as behind:
        behind.truncate(offset + 4 * MIB + 2 * BLOCK)
    with pytest.raises(OSError, match=f"{MIB - 2 * BLOCK} bytes at offset .* reached the end"):
        file.read(offset, back)


def test_a_full_disk_is_detected_at_allocation(folder: str) -> None:
    file = SpillFile(folder)
    kept = file.allocate(GROWTH - BLOCK)
    data = pattern(3 * MIB)
    file.write(kept, data)
    set_faults("disk-full")
    assert file.allocate(2 * BLOCK) == -1
    assert file.problem.startswith(
        f"no space for {2 * BLOCK >> 10}.0 KiB in the spill file in {folder}: it cannot grow by "
        f"{BLOCK >> 10}.0 KiB: No space "
        "left on device (errno 28); 64.0 MiB of its 64.0 MiB are in use, and "
    )
    assert file.problem.endswith(
        f"iB are free on the disk. Free space in {folder}, give another spill_dir, or raise "
        "host_limit"
    )
    assert file.allocate(BLOCK) == GROWTH - BLOCK  # allocated space remains usable
    back = memory(3 * MIB)
    file.read(kept, back)
    assert np.array_equal(back, data)
    set_faults("")
    assert file.allocate(2 * BLOCK) == GROWTH


def test_a_full_real_disk(own_folder: str) -> None:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    image, disk = Path(own_folder, "image"), Path(own_folder, "disk")
    with image.open("wb") as made:
        made.truncate(96 * MIB)
    disk.mkdir()
    try:
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
        mounted = subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True)
        if mounted.returncode != 0:
            pytest.skip("this root may not mount a small disk")
        try:
            fill_disk(str(disk))
            assert os.listdir(disk) == ["lost+found"]
        finally:
            subprocess.run(["umount", disk], check=True)
    finally:
        image.unlink()
        disk.rmdir()


def fill_disk(disk: str) -> None:
    file = SpillFile(disk)
    held = []
    while (offset := file.allocate(5 * MIB)) >= 0:
        file.write(offset, pattern(5 * MIB, offset))
        held.append(offset)
    # All of it: the last request is as small as possible.
    assert len(held) >= 14 and "No space left on device (errno 28)" in file.problem
    back = memory(5 * MIB)
    for offset in held:
        file.read(offset, back)
        assert np.array_equal(back, pattern(5 * MIB, offset))
    file.free(held[0], 5 * MIB)
    assert file.allocate(5 * MIB) == held[0]


@pytest.mark.parametrize(
    "folder_of, text",
    [
        (lambda _: "/no/such", r"No such file or directory \(errno 2\)\. Give a spill_dir that"),
        (lambda _: "/proc", r"no spill file in /proc: "),
        (lambda folder: __file__, r"no spill file in .*test_spill_file.py: .*Give a spill_dir"),
    ],
)
def test_unusable_folders(folder: str, folder_of: Callable[[str], str], text: str) -> None:
    with pytest.raises(OSError, match=text):
        SpillFile(folder_of(folder))


def test_a_folder_in_memory_is_refused() -> None:
    kinds = Path("/proc/mounts").read_text().split("\n")
    if not any(line.split()[1:3] == ["/dev/shm", "tmpfs"] for line in kinds):
        pytest.skip("there is no tmpfs at /dev/shm")
    with pytest.raises(OSError, match="so swapped-out data would stay in memory. Give another"):
        SpillFile("/dev/shm")
    assert not [name for name in os.listdir("/dev/shm") if "tfswap" in name]


# Speed, and checksums


@pytest.mark.parametrize("size", [MIB, 64 * MIB])
def test_speed_measurements_leave_nothing_behind(own_folder: str, size: int) -> None:
    speed = measure_spill(own_folder, size, 0.1)
    assert min(speed.write_bytes_per_s, speed.read_bytes_per_s) > 0
    assert min(speed.both_write_bytes_per_s, speed.both_read_bytes_per_s) > 0
    with pytest.raises(OSError, match="no spill file in /no/such"):
        measure_spill("/no/such", size)


@settings(max_examples=100, deadline=None)
@given(
    size=st.integers(0, 3000), shift=st.integers(0, 70), place=st.integers(0), bit=st.integers(0, 7)
)
def test_every_bit_changes_the_checksum_and_all_paths_agree(
    size: int, shift: int, place: int, bit: int
) -> None:
    data = pattern(size, size, shift)
    whole = buffer_checksum(data)
    assert whole == buffer_checksum(data, portable=True) == buffer_checksum(data.copy())
    assert whole != buffer_checksum(np.append(data, np.uint8(0)))
    if size > 0:
        data[place % size] ^= 1 << bit
        assert buffer_checksum(data) != whole
