"""Far memory in a file: what comes back, where it lies, what goes wrong, what stays behind."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tfswap._core
from tfswap._core import Extents, SpillFile, buffer_checksum, measure_spill, set_faults

KIB, MIB = 1 << 10, 1 << 20
BLOCK = 4096
GROWTH = 64 * MIB

ENGINES = ["io_uring", "threads"]
# No two stretches of it are alike.
PATTERN = np.random.default_rng(1).integers(0, 256, 24 * MIB, dtype=np.uint8)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    set_faults("")


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """A folder on a disk: temporary ones are in memory on some machines."""
    for parent in (tempfile.gettempdir(), os.getcwd(), "/var/tmp"):
        with tempfile.TemporaryDirectory(dir=parent) as found:
            try:
                SpillFile(found)
            except OSError:
                continue
            yield found
            assert os.listdir(found) == []
            return
    pytest.skip("no folder here has a file system with O_DIRECT")


def open_file(folder: str, engine: str, limit_bytes: int = 0, checksums: bool = True) -> SpillFile:
    file = SpillFile(folder, limit_bytes, checksums=checksums, io_uring=engine == "io_uring")
    if file.engine != engine:
        pytest.skip("io_uring is not allowed here")
    return file


@pytest.fixture(scope="module", params=ENGINES)
def file(request: pytest.FixtureRequest, folder: str) -> Iterator[SpillFile]:
    yield open_file(folder, request.param)


@pytest.fixture(params=ENGINES)
def new_file(request: pytest.FixtureRequest, folder: str) -> Callable[..., SpillFile]:
    return lambda **options: open_file(folder, request.param, **options)


def memory(size: int, shift: int = 0) -> np.ndarray:
    """So many bytes, `shift` bytes after the beginning of a page."""
    pages = np.zeros(size + shift + BLOCK, np.uint8)
    begin = -pages.ctypes.data % BLOCK + shift
    return pages[begin : begin + size]


def pattern(size: int, seed: int = 0, shift: int = 0) -> np.ndarray:
    data = memory(size, shift)
    data[:] = np.resize(PATTERN[seed * 4099 % MIB :], size)
    return data


def descriptor(folder: str) -> int:
    """Of the only spill file there; any process's own files may be opened again through it."""
    found = [fd for fd in map(int, os.listdir("/proc/self/fd")) if is_in(folder, fd)]
    assert len(found) == 1
    return found[0]


def is_in(folder: str, fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(os.path.realpath(folder) + "/")
    except OSError:
        return False


@pytest.fixture
def own_folder(folder: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=folder) as found:
        yield found
        assert os.listdir(found) == []


# What comes back


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
def test_what_is_read_is_what_was_written(
    file: SpillFile, size: int, write_shift: int, read_shift: int
) -> None:
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


def test_nothing_is_nothing(file: SpillFile) -> None:
    offset = file.allocate(0)
    file.write(offset, memory(0))
    file.read(offset, memory(0))
    file.free(offset, 0)
    file.free(-1, 0)
    assert file.stats().bytes_in_use == 0


def test_only_what_was_written_is_read(file: SpillFile) -> None:
    offset = file.allocate(2 * MIB)
    with pytest.raises(OSError, match="1048576 bytes are asked for and 0 were written"):
        file.read(offset, memory(2 * MIB))
    file.write(offset, pattern(MIB + 10))
    with pytest.raises(OSError, match="of piece 1 11 bytes are asked for and 10 were written"):
        file.read(offset, memory(MIB + 11))
    for begin, size in [(0, 2 * MIB + 1), (BLOCK, BLOCK), (-BLOCK, BLOCK), (GROWTH, BLOCK)]:
        with pytest.raises(
            OSError, match=f"no extent holds {size} bytes at offset {offset + begin}"
        ):
            file.write(offset + begin, memory(size))
    file.free(offset, 2 * MIB)
    with pytest.raises(OSError, match="no extent holds"):
        file.read(offset, memory(MIB + 10))


def test_what_was_freed_before_is_not_read(file: SpillFile) -> None:
    offset = file.allocate(MIB)
    file.write(offset, pattern(MIB))
    file.free(offset, MIB)
    assert file.allocate(MIB) == offset
    with pytest.raises(OSError, match="0 were written"):
        file.read(offset, memory(MIB))
    file.free(offset, MIB)


# More than there are lanes, so that some wait.
@pytest.mark.parametrize("callers", [2, 7])
def test_many_at_once(new_file: Callable[..., SpillFile], callers: int) -> None:
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


# Where it lies


def reference_take(free: list[bool], count: int) -> int:
    """The first of the smallest runs of free blocks that are long enough."""
    runs, begin = [], 0
    for i in range(len(free) + 1):
        if i == len(free) or not free[i]:
            if i - begin >= count:
                runs.append((i - begin, begin))
            begin = i + 1
    return min(runs)[1] if runs else -1


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 9)),
            st.tuples(st.just("give back"), st.integers(0, 30)),
            st.tuples(st.just("grow"), st.integers(1, 20)),
        ),
        max_size=80,
    )
)
def test_extents_are_what_a_simple_search_finds(turns: list[tuple[str, int]]) -> None:
    extents, free = Extents(), [False] * 0
    held: list[tuple[int, int]] = []
    for what, number in turns:
        if what == "grow":
            extents.grow(number)
            free += [True] * number
        elif what == "take":
            offset = extents.take(number)
            assert offset == reference_take(free, number)
            if offset >= 0:
                free[offset : offset + number] = [False] * number
                held.append((offset, number))
        elif held:
            offset, count = held.pop(number % len(held))
            extents.give_back(offset, count)
            free[offset : offset + count] = [True] * count
        runs = "".join(".#"[not each] for each in free).split("#")
        assert extents.end == len(free) and extents.free_bytes == sum(free)
        assert extents.free_bytes_at_end == len(runs[-1])
        assert extents.largest_free_bytes == max(map(len, runs))


def test_a_step_like_the_last_one_takes_the_same_places(folder: str) -> None:
    file = SpillFile(folder)
    kept = file.allocate(3 * MIB + 1)
    turns = np.random.default_rng(2).integers(1, 20 * MIB, 40)

    def step() -> list[int]:
        offsets, held = [], []
        for i, size in enumerate(map(int, turns)):
            offsets.append(file.allocate(size))
            held.append((offsets[-1], size))
            if i % 3 == 2:
                file.free(*held.pop(i % len(held)))
        for each in held:
            file.free(*each)
        return offsets

    first = step()
    after_first = file.stats().file_bytes
    assert [step() for _ in range(3)] == [first] * 3
    assert file.stats().file_bytes == after_first
    file.free(kept, 3 * MIB + 1)
    assert file.allocate(after_first) == 0  # all of it is one stretch again


def test_the_file_grows_in_large_steps_and_blocks_are_exact(folder: str) -> None:
    file = SpillFile(folder)
    assert file.stats().file_bytes == 0
    assert [file.allocate(size) for size in (1, BLOCK, BLOCK + 1)] == [0, BLOCK, 2 * BLOCK]
    assert file.stats().file_bytes == GROWTH
    assert file.stats().bytes_in_use == 4 * BLOCK
    assert file.allocate(GROWTH) == 4 * BLOCK  # what is free at the end counts
    assert file.stats().file_bytes == 2 * GROWTH
    file.free(0, 1)
    stats = file.stats()
    assert (stats.bytes_in_use, stats.peak_bytes_in_use) == (GROWTH + 3 * BLOCK, GROWTH + 4 * BLOCK)
    file.reset_peak()
    assert file.stats().peak_bytes_in_use == GROWTH + 3 * BLOCK


def test_freeing_what_is_not_there_changes_nothing(folder: str) -> None:
    file = SpillFile(folder)
    offset = file.allocate(2 * MIB)
    for wrong in [(offset + BLOCK, MIB), (offset, MIB), (offset + 8 * MIB, 2 * MIB)]:
        file.free(*wrong)
    assert file.stats().bytes_in_use == 2 * MIB
    file.free(offset, 2 * MIB)
    file.free(offset, 2 * MIB)
    assert file.stats().bytes_in_use == 0


def test_the_limit_is_the_files(folder: str) -> None:
    file = SpillFile(folder, 10 * MIB + 1)
    first, second = file.allocate(4 * MIB), file.allocate(4 * MIB)
    assert min(first, second) >= 0
    assert file.stats().file_bytes == 10 * MIB and file.stats().limit_bytes == 10 * MIB + 1
    assert file.allocate(3 * MIB) == -1
    assert file.problem == (
        f"no room for 3.0 MiB in the spill file in {folder}: it is limited to 10.0 MiB, 8.0 MiB "
        "of its 10.0 MiB are in use, and the largest free stretch is 2.0 MiB. Raise its limit or "
        "host_limit"
    )
    assert file.allocate(2 * MIB) == 8 * MIB
    file.free(first, 4 * MIB)
    assert file.allocate(3 * MIB) == first
    assert SpillFile(folder, 100).allocate(1) == -1


# What goes wrong

FAULTS = {
    "write-error": r"writing {piece} bytes at offset {middle} of the spill file in {folder} "
    r"failed: Input/output error \(errno 5\)\. The disk or the way to it fails: look at dmesg",
    "write-full": r"writing {piece} bytes at offset {middle} of .* failed: "
    r"No space left on device \(errno 28\)\. The disk has [0-9.]+ [MG]iB free",
    "read-error": r"reading {piece} bytes at offset {middle} of the spill file in {folder} "
    r"failed: Input/output error \(errno 5\)\. The disk or the way to it fails: look at dmesg",
    "end-of-file": r"reading {piece} bytes at offset {middle} of .* ended before they were there",
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
        # Some of it may be on the disk, and which is nobody's to guess.
        with pytest.raises(OSError, match="0 were written"):
            file.read(offset, back)
        file.write(offset, data)
    else:
        file.write(offset, data)
        set_faults(kind)
        with pytest.raises(OSError, match=text):
            file.read(offset, back)
        set_faults("")
        # Nothing is in flight into it any more.
        back[:] = 7
        file.write(offset, data)
        assert (back == 7).all()
    file.read(offset, back)
    assert np.array_equal(back, data)
    file.free(offset, size)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("kind", ["short-write", "short-read", "slow-disk"])
def test_what_can_be_made_good_is_no_error(file: SpillFile, kind: str, shift: int) -> None:
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


def test_without_checksums_a_wrong_bit_is_not_noticed(new_file: Callable[..., SpillFile]) -> None:
    file = new_file(checksums=False)
    data, back = pattern(3 * MIB), memory(3 * MIB)
    offset = file.allocate(data.size)
    file.write(offset, data)
    set_faults("file-bit-flip")
    file.read(offset, back)
    assert np.unpackbits(back ^ data).sum() == 1


def test_one_bit_changed_on_the_disk_is_found(own_folder: str) -> None:
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


def test_a_file_that_was_cut_is_an_error(own_folder: str) -> None:
    file = SpillFile(own_folder)
    data, back = pattern(5 * MIB), memory(5 * MIB)
    offset = file.allocate(data.size)
    file.write(offset, data)
    with open(f"/proc/self/fd/{descriptor(own_folder)}", "r+b", buffering=0) as behind:
        behind.truncate(offset + 4 * MIB + 2 * BLOCK)
    with pytest.raises(OSError, match=f"{MIB - 2 * BLOCK} bytes at offset .* ended before"):
        file.read(offset, back)


def test_a_disk_that_is_full_is_noticed_when_room_is_asked_for(folder: str) -> None:
    file = SpillFile(folder)
    kept = file.allocate(GROWTH - BLOCK)
    data = pattern(3 * MIB)
    file.write(kept, data)
    set_faults("disk-full")
    assert file.allocate(2 * BLOCK) == -1
    assert file.problem.startswith(
        f"no room for {2 * BLOCK >> 10}.0 KiB in the spill file in {folder}: it cannot grow by "
        f"{BLOCK >> 10}.0 KiB: No space "
        "left on device (errno 28); 64.0 MiB of its 64.0 MiB are in use, and "
    )
    assert file.problem.endswith(
        f"iB are free on the disk. Free space in {folder}, give another spill_dir, or raise "
        "host_limit"
    )
    assert file.allocate(BLOCK) == GROWTH - BLOCK  # what there is can be used
    back = memory(3 * MIB)
    file.read(kept, back)
    assert np.array_equal(back, data)
    set_faults("")
    assert file.allocate(2 * BLOCK) == GROWTH


def test_a_real_disk_that_is_full(own_folder: str) -> None:
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
    # All of it: the last step is as small as it must be.
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
        (lambda _: "/no/such", r"No such file or directory \(errno 2\)\. Give a spill_dir that is"),
        (lambda _: "/proc", r"no spill file in /proc: "),
        (lambda folder: __file__, r"no spill file in .*test_spill_file.py: .*Give a spill_dir"),
    ],
)
def test_folders_that_take_no_file(folder: str, folder_of: Callable[[str], str], text: str) -> None:
    with pytest.raises(OSError, match=text):
        SpillFile(folder_of(folder))


def test_a_folder_in_memory_is_refused() -> None:
    kinds = Path("/proc/mounts").read_text().split("\n")
    if not any(line.split()[1:3] == ["/dev/shm", "tmpfs"] for line in kinds):
        pytest.skip("there is no tmpfs at /dev/shm")
    with pytest.raises(OSError, match="so what is swapped out would stay in memory. Give another"):
        SpillFile("/dev/shm")
    assert not [name for name in os.listdir("/dev/shm") if "tfswap" in name]


# What stays behind


def test_the_file_has_no_name_and_one_reader_and_no_cache(own_folder: str) -> None:
    file = SpillFile(own_folder)
    offset = file.allocate(8 * MIB)
    data = pattern(8 * MIB - 5)
    file.write(offset, data)
    file.read(offset, memory(data.size))
    assert os.listdir(own_folder) == []
    fd = descriptor(own_folder)
    status = os.fstat(fd)
    assert status.st_nlink == 0 and status.st_mode & 0o777 == 0o600
    assert not os.get_inheritable(fd)
    flags = next(
        int(line.split()[1], 8)
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        if line.startswith("flags:")
    )
    assert flags & os.O_DIRECT
    assert pages_in_memory(fd, offset, 8 * MIB) == 0


def pages_in_memory(fd: int, offset: int, size: int) -> int:
    mapped = mmap.mmap(fd, size, offset=offset)
    view = (ctypes.c_char * size).from_buffer(mapped)
    resident = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    answer = libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), resident)
    del view
    mapped.close()
    assert answer == 0
    return sum(each & 1 for each in resident)


def test_handles_and_threads_go_with_the_file(new_file: Callable[..., SpillFile]) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def use() -> None:
        file = new_file()
        with ThreadPoolExecutor(3) as pool:
            offsets = list(pool.map(file.allocate, [3 * MIB] * 6))
            list(pool.map(lambda offset: file.write(offset, pattern(3 * MIB)), offsets))

    use()
    before = held()
    for _ in range(5):
        use()
    # The kernel's own threads for io_uring leave when they have nothing to do.
    until = time.monotonic() + 30
    while max(held()[0] - before[0], held()[1] - before[1]) > 0 and time.monotonic() < until:
        time.sleep(0.1)
    assert held()[0] <= before[0] and held()[1] <= before[1]


def run_alone(script: str, *arguments: str) -> subprocess.Popen[str]:
    """In a process of its own, with the core as `core` and without TensorFlow."""
    begin = f"""
        import ctypes, importlib.util, os, resource, sys
        import numpy as np
        spec = importlib.util.spec_from_file_location("_core", {tfswap._core.__file__!r})
        core = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(core)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


def output_of(script: str, *arguments: str) -> str:
    with run_alone(script, *arguments) as process:
        text = process.communicate()[0]
    assert process.returncode == 0
    return text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_process_leaves_nothing(own_folder: str, engine: str) -> None:
    script = """
        file = core.SpillFile(sys.argv[1], io_uring=sys.argv[2] == "io_uring")
        data = np.ones(32 << 20, np.uint8)
        offset = file.allocate(data.size)
        file.write(offset, data)
        print("writing", flush=True)
        core.set_faults("slow-disk")
        while True:
            file.write(offset, data)
    """
    with run_alone(script, own_folder, engine) as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert os.listdir(own_folder) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_forked_process_has_no_part_in_it(own_folder: str, engine: str) -> None:
    script = """
        file = core.SpillFile(sys.argv[1], io_uring=sys.argv[2] == "io_uring")
        data = np.full(9 << 20, 5, np.uint8)
        offset = file.allocate(data.size)
        file.write(offset, data)
        child = os.fork()
        if child == 0:
            assert file.allocate(1) == -1
            errors = [file.problem]
            for call in (file.write, file.read):
                try:
                    call(offset, np.zeros(9 << 20, np.uint8))
                except OSError as error:
                    errors.append(str(error))
            assert len(errors) == 3 and len(set(errors)) == 1, errors
            print(errors[0].replace(str(os.getppid()), "P").replace(str(os.getpid()), "C"))
            file.free(offset, data.size)
            del file
            core.SpillFile(sys.argv[1]).allocate(1)
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        back = np.zeros_like(data)
        file.read(offset, back)
        assert (back == 5).all() and file.stats().bytes_in_use == data.size
        file.write(offset, data)
    """
    assert output_of(script, own_folder, engine) == (
        f"the spill file in {own_folder} is of process P, and this is process C, forked from it: "
        "it needs a spill file of its own\n"
    )


# Answers calls as containers and other kernels do: (number, bits of the third argument, errno).
REFUSALS = """
    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8),
                    ("k", ctypes.c_uint32)]
    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Filter))]
    def refuse(number, bits, error):
        filters = [Filter(0x20, 0, 0, 0), Filter(0x15, 0, 3, number),
                   Filter(0x20, 0, 0, 32), Filter(0x45, 0, 1, bits) if bits else Filter(0x05),
                   Filter(0x06, 0, 0, 0x00050000 + error), Filter(0x06, 0, 0, 0x7fff0000)]
        program = Program(len(filters), (Filter * len(filters))(*filters))
        libc, zero = ctypes.CDLL(None), ctypes.c_ulong(0)
        assert libc.prctl(38, ctypes.c_ulong(1), zero, zero, zero) == 0  # no new privileges
        if libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(program)) != 0:
            print("no seccomp")
            sys.exit(0)
"""
OPENAT = {"x86_64": 257, "aarch64": 56}
IO_URING_SETUP, IO_URING_ENTER = 425, 426
O_TMPFILE, O_DIRECT = 0o20000000, getattr(os, "O_DIRECT", 0)


def engine_where_refused(folder: str, number: int, bits: int, error: int) -> str:
    text = output_of(
        textwrap.dedent(REFUSALS)
        + textwrap.dedent("""
            refuse(*map(int, sys.argv[2:]))
            try:
                file = core.SpillFile(sys.argv[1])
            except OSError as error:
                print(error)
                sys.exit(0)
            data, back = np.full(9 << 20, 5, np.uint8), np.zeros(9 << 20, np.uint8)
            offset = file.allocate(data.size)
            file.write(offset, data)
            file.read(offset, back)
            assert (back == 5).all() and os.listdir(sys.argv[1]) == []
            print(file.engine)
        """),
        folder,
        *map(str, (number, bits, error)),
    )
    if text == "no seccomp\n":
        pytest.skip("this kernel has no seccomp")
    return text.strip()


def test_where_io_uring_is_refused_threads_do_it(own_folder: str) -> None:
    assert engine_where_refused(own_folder, IO_URING_SETUP, 0, errno.EPERM) == "threads"


def test_where_a_ring_takes_nothing_each_request_is_made_at_once(own_folder: str) -> None:
    engine = SpillFile(own_folder).engine
    assert engine_where_refused(own_folder, IO_URING_ENTER, 0, errno.EBUSY) == engine


@pytest.mark.skipif(platform.machine() not in OPENAT, reason="another number of the call")
def test_where_no_file_is_born_nameless_its_name_goes_at_once(own_folder: str) -> None:
    openat = OPENAT[platform.machine()]
    engine = SpillFile(own_folder).engine
    assert engine_where_refused(own_folder, openat, O_TMPFILE, errno.EOPNOTSUPP) == engine


@pytest.mark.skipif(platform.machine() not in OPENAT, reason="another number of the call")
def test_where_the_cache_cannot_be_passed_there_is_no_file(own_folder: str) -> None:
    openat = OPENAT[platform.machine()]
    assert engine_where_refused(own_folder, openat, O_DIRECT, errno.EINVAL) == (
        f"no spill file in {own_folder}: its file system refuses O_DIRECT, so what is swapped out "
        "would stay in memory. Give another spill_dir, on a disk with a file system that has "
        "O_DIRECT (ext4 and XFS do)"
    )


def test_a_limit_on_file_sizes_is_a_full_disk(own_folder: str) -> None:
    script = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
        file = core.SpillFile(sys.argv[1])
        offset = file.allocate(8 << 20)
        file.write(offset, np.ones(8 << 20, np.uint8))
        print(offset, file.allocate(1), file.problem)
    """
    text = output_of(script, own_folder)
    assert text.startswith("0 -1 no room for 1 bytes") and "File too large (errno 27)" in text


# Its speed, and what is summed up


@pytest.mark.parametrize("size", [MIB, 64 * MIB])
def test_speeds_are_measured_and_leave_nothing(own_folder: str, size: int) -> None:
    speed = measure_spill(own_folder, size, 0.1)
    assert min(speed.write_bytes_per_s, speed.read_bytes_per_s) > 0
    assert min(speed.both_write_bytes_per_s, speed.both_read_bytes_per_s) > 0
    with pytest.raises(OSError, match="no spill file in /no/such"):
        measure_spill("/no/such", size)


@settings(max_examples=100, deadline=None)
@given(
    size=st.integers(0, 3000), shift=st.integers(0, 70), place=st.integers(0), bit=st.integers(0, 7)
)
def test_every_bit_counts_and_every_processor_agrees(
    size: int, shift: int, place: int, bit: int
) -> None:
    data = pattern(size, size, shift)
    whole = buffer_checksum(data)
    assert whole == buffer_checksum(data, portable=True) == buffer_checksum(data.copy())
    assert whole != buffer_checksum(np.append(data, np.uint8(0)))
    if size > 0:
        data[place % size] ^= 1 << bit
        assert buffer_checksum(data) != whole
