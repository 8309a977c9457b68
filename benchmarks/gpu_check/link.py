"""Stage: the machine and its link as the driver sees them, without TensorFlow.

Libraries and the loader's errors, copies of pinned and pageable memory, the time to pin memory, the
cost of events, and how many commands a stream holds before the host waits.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.copies import PlainCopies
from benchmarks.gpu_check.driver import Driver, DriverError, management, the_driver

MIB, GIB = 1 << 20, 1 << 30
LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcudnn.so.9",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcupti.so.12",
    "libnccl.so.2",
    "libnvJitLink.so.12",
)
"""What TensorFlow 2.21 opens."""
_ATTRIBUTES = {
    "copy_engines": 40,
    "processors": 16,
    "integrated": 18,
    "compute_major": 75,
    "compute_minor": 76,
    "kernels_use_host_pointers": 91,
    "host_registers": 99,
    "memory_pools": 115,
}
_SIZES_MIB = (1, 4, 16, 64, 256)
_TOUCHING_THREADS = (1, 8)
_REGISTER_PORTABLE = 1
_EVENTS = 2000
_COMMANDS = 4000
_BLOCKED_S = 0.05


def run(context: Context) -> None:
    """Measure everything, and save after each part.

    Raises:
        Missing: There is no driver, or no GPU.
    """
    context.figures["libraries"] = {name: _loader_says(name) for name in LIBRARIES}
    context.figures["host"] = _host()
    driver = the_driver()
    driver.enter_context()
    context.figures["driver"] = {"cuda": driver.cuda_version(), **management()}
    context.figures["gpu"] = _gpu(driver)
    missing = [name for name, text in context.figures["libraries"].items() if text]
    context.line("CUDA libraries", f"missing: {', '.join(missing)}" if missing else "all load")
    context.save()
    for measure in (_measure_copies, _measure_pinning, _measure_events, _measure_depth):
        try:
            measure(driver, context)
        except DriverError as error:
            context.broken.append(f"{measure.__name__.strip('_')}: {error}")
        context.save()


def _loader_says(name: str) -> str:
    """Return the loader's error, or "" if the library loads."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return str(error)
    return ""


def _host() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "locked_memory_limit": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "cores": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "memory": Path("/proc/meminfo").read_text().splitlines()[:3],
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
    }
    for name, path in (
        ("huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ("memory_limit", "/sys/fs/cgroup/memory.max"),
    ):
        if Path(path).exists():
            facts[name] = Path(path).read_text().strip()
    try:
        facts["smi"] = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total,memory.used,pcie.link.gen.current,"
             "pcie.link.width.current,clocks.sm,power.limit", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        facts["smi"] = str(error)
    return facts


def _gpu(driver: Driver) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": driver.name()}
    for name, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        if driver.result("cuDeviceGetAttribute", ctypes.byref(value), number, 0) == 0:
            facts[name] = value.value
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return {**facts, "free_bytes": free.value, "total_bytes": total.value}


def _measure_copies(driver: Driver, context: Context) -> None:
    sizes = [size * MIB for size in (_SIZES_MIB[:2] if context.quick else _SIZES_MIB)]
    plain = PlainCopies(driver, max(sizes))
    results = {}
    for size in sizes:
        blocks = min(max(GIB // size, 4), 64)
        rounds = [plain.measure(size, blocks) for _ in range(3)]
        results[f"{size // MIB} MiB"] = {
            way: round(statistics.median(rates[way] for rates in rounds) / 1e9, 2)
            for way in rounds[0]
        }
    largest = list(results.values())[-1]
    context.figures["pinned_gb_per_s"] = results
    size = max(sizes)
    there, here = driver.device_memory(size), mmap.mmap(-1, size)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(here)))
    for name, arguments in (
        ("cuMemcpyHtoD_v2", (there, address)),
        ("cuMemcpyDtoH_v2", (address, there)),
    ):
        seconds = []
        for _ in range(4):
            begun = time.perf_counter()
            driver.call(name, *arguments, ctypes.c_size_t(size))
            seconds.append(time.perf_counter() - begun)
        rate = round(size / statistics.median(seconds[1:]) / 1e9, 2)
        context.figures.setdefault("pageable_gb_per_s", {})[name] = rate
    context.line("link: out, in, both out, both in (GB/s)", ", ".join(map(str, largest.values())))
    context.line("pageable memory (GB/s)", str(context.figures["pageable_gb_per_s"]))


def _touch(begin: int, size: int, threads: int) -> None:
    """Write to each page with several threads."""
    part = size // threads

    def work(number: int) -> None:
        ctypes.memset(begin + number * part, 1, part)  # without the interpreter's lock

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _measure_pinning(driver: Driver, context: Context) -> None:
    results: dict[str, Any] = {}
    context.figures["pinning_s_per_gib"] = results
    size = (64 * MIB) if context.quick else 2 * GIB

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        made = work()
        results[name] = round((time.perf_counter() - begun) * GIB / size, 4)
        context.save()
        return made

    block = timed("cuMemHostAlloc", lambda: driver.pinned_memory(size))
    timed("cuMemFreeHost", lambda: driver.call("cuMemFreeHost", block))
    for huge in (False, True):
        for threads in (0, *_TOUCHING_THREADS):
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
            view = ctypes.c_char.from_buffer(memory)
            begin = ctypes.addressof(view)
            name = f"{'huge' if huge else 'small'} pages"
            if threads:
                timed(
                    f"touch {name}, {threads} threads",
                    lambda begin=begin, threads=threads: _touch(begin, size, threads),  # type: ignore[misc]
                )
            timed(
                f"register {name}, {f'touched by {threads}' if threads else 'untouched'}",
                lambda begin=begin: driver.call(  # type: ignore[misc]
                    "cuMemHostRegister_v2",
                    ctypes.c_void_p(begin),
                    ctypes.c_size_t(size),
                    _REGISTER_PORTABLE,
                ),
            )
            driver.call("cuMemHostUnregister", ctypes.c_void_p(begin))
            del view
            memory.close()
    context.line("pinning (s for each GiB)", str(results))


def _measure_events(driver: Driver, context: Context) -> None:
    stream, other = driver.stream(), driver.stream()
    events = [driver.event(2) for _ in range(_EVENTS)]

    def each_us(name: str, call: Callable[[Any], Any]) -> float:
        begun = time.perf_counter()
        for event in events:
            call(event)
        return round((time.perf_counter() - begun) / _EVENTS * 1e6, 2)

    costs = {
        "nothing (the interpreter's own)": each_us(
            "", lambda event: driver.result("cuDriverGetVersion", ctypes.byref(ctypes.c_int()))
        ),
        "record": each_us("", lambda event: driver.call("cuEventRecord", event, stream)),
        "wait": each_us("", lambda event: driver.call("cuStreamWaitEvent", other, event, 0)),
        "query": each_us("", lambda event: driver.result("cuEventQuery", event)),
    }
    driver.call("cuStreamSynchronize", other)
    context.figures["event_us"] = costs
    context.line("events (microseconds, with the interpreter)", str(costs))


def _measure_depth(driver: Driver, context: Context) -> None:
    """Count the commands that a blocked stream accepts before the host waits."""
    flag = driver.pinned_memory(4096)
    assert flag.value is not None
    number = ctypes.c_uint.from_address(flag.value)
    there, here = driver.device_memory(4096), driver.pinned_memory(4096)
    event = driver.event(2)
    size = ctypes.c_size_t(4096)
    commands: dict[str, Callable[[Any], Any]] = {
        "copies": lambda stream: driver.call("cuMemcpyHtoDAsync_v2", there, here, size, stream),
        "event records": lambda stream: driver.call("cuEventRecord", event, stream),
        "copies and records": lambda stream: (
            driver.call("cuMemcpyHtoDAsync_v2", there, here, size, stream),
            driver.call("cuEventRecord", event, stream),
        ),
    }
    depths: dict[str, Any] = {}
    for name, command in commands.items():
        number.value = 0
        stream = driver.stream()
        if driver.result("cuStreamWaitValue32_v2", stream, flag, 1, 0) != 0:
            context.note("the driver cannot hold up a stream: no queue depth")
            return
        accepted = 0
        releaser = threading.Timer(1.0, lambda: setattr(number, "value", 1))
        releaser.start()  # before the host is blocked for good
        for _ in range(_COMMANDS):
            begun = time.perf_counter()
            command(stream)
            if time.perf_counter() - begun > _BLOCKED_S:
                break
            accepted += 1
        depths[name] = accepted if accepted < _COMMANDS else f"at least {_COMMANDS}"
        number.value = 1
        releaser.cancel()
        driver.call("cuStreamSynchronize", stream)
    context.figures["queue_depth"] = depths
    context.line("commands that a blocked stream holds", str(depths))
