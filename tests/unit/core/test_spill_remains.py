"""What a spill file leaves behind, and its fallbacks when the kernel refuses calls."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from spill_files import ENGINES, MIB, descriptor, memory, pattern

import tfswap._core
from tfswap._core import SpillFile


def test_the_file_has_no_name_one_handle_and_no_cache(own_folder: str) -> None:
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


def test_handles_and_threads_end_with_the_file(new_file: Callable[..., SpillFile]) -> None:
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
    # The kernel's own threads for io_uring end when idle.
    until = time.monotonic() + 30
    while max(held()[0] - before[0], held()[1] - before[1]) > 0 and time.monotonic() < until:
        time.sleep(0.1)
    assert held()[0] <= before[0] and held()[1] <= before[1]


def run_alone(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Run a script in a separate process, with the core as `core` and without TensorFlow."""
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
def test_a_forked_process_does_not_use_the_file(own_folder: str, engine: str) -> None:
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
        "open another spill file there\n"
    )


# Refuse calls as containers and other kernels do: (number, bits of the third argument, errno).
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


def test_threads_replace_a_refused_io_uring(own_folder: str) -> None:
    assert engine_where_refused(own_folder, IO_URING_SETUP, 0, errno.EPERM) == "threads"


def test_requests_run_synchronously_when_the_ring_is_busy(own_folder: str) -> None:
    engine = SpillFile(own_folder).engine
    assert engine_where_refused(own_folder, IO_URING_ENTER, 0, errno.EBUSY) == engine


@pytest.mark.skipif(platform.machine() not in OPENAT, reason="another number of the call")
def test_without_nameless_files_the_name_is_removed_at_once(own_folder: str) -> None:
    openat = OPENAT[platform.machine()]
    engine = SpillFile(own_folder).engine
    assert engine_where_refused(own_folder, openat, O_TMPFILE, errno.EOPNOTSUPP) == engine


@pytest.mark.skipif(platform.machine() not in OPENAT, reason="another number of the call")
def test_without_direct_io_there_is_no_file(own_folder: str) -> None:
    openat = OPENAT[platform.machine()]
    assert engine_where_refused(own_folder, openat, O_DIRECT, errno.EINVAL) == (
        f"no spill file in {own_folder}: its file system refuses O_DIRECT, so swapped-out data "
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
    assert text.startswith("0 -1 no space for 1 bytes") and "File too large (errno 27)" in text
