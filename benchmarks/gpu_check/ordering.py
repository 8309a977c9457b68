"""Stage: tfswap's hazard tracker on real streams, without TensorFlow.

Random programs allocate, use, swap and free tensors of few addresses, as in
``tests/unit/core/test_hazards.py``. Kernels spin before they touch memory, so a missing wait is a
wrong byte. With the tracker's waits, every byte must be right. Every tenth program also runs
without them, when some must be wrong (else the programs would not show anything).
"""

from __future__ import annotations

import ctypes
import importlib.util
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.driver import Driver, the_driver

_TREE = Path(__file__).resolve().parents[2]
_KERNELS = Path(__file__).with_name("ordering.ptx")
_BLOCK_BYTES, _BLOCKS, _FAR_BLOCKS = 4 << 20, 4, 3
_WORDS = _BLOCK_BYTES // 4
_ACTIONS = 150
_SPIN_NS = (0, 50_000, 300_000)
_PROGRAMS = 300
_DISABLE_TIMING = 2


def core() -> ModuleType:
    """Load `tfswap._core` alone: `import tfswap` would load TensorFlow."""
    if "tfswap._core" in sys.modules:
        return sys.modules["tfswap._core"]
    (path,) = (_TREE / "tfswap").glob("_core.*.so")
    spec = importlib.util.spec_from_file_location("_core", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def streams_of(driver: Driver, native: Any, waits: bool) -> Any:
    """Return a `Gpu` of the tracker on streams of the driver; without `waits`, it ignores them."""

    class Streams(native.Gpu):
        def __init__(self) -> None:
            super().__init__()
            names = ("COMPUTE", "OUT", "IN", "FILE_OUT", "FILE_IN")
            self.queues = {getattr(native.Queue, name): driver.stream() for name in names}
            self.out = (native.Queue.OUT, native.Queue.FILE_OUT)
            self.events: list[Any] = []

        def record(self, queue: Any) -> int:
            event = self.events.pop() if self.events else driver.event(_DISABLE_TIMING)
            driver.call("cuEventRecord", event, self.queues[queue])
            return int(event.value or 0)

        def wait(self, queue: Any, event: int) -> None:
            if waits:
                driver.call("cuStreamWaitEvent", self.queues[queue], ctypes.c_void_p(event), 0)

        def has_happened(self, event: int) -> bool:
            return driver.result("cuEventQuery", ctypes.c_void_p(event)) == 0

        def recycle(self, event: int) -> None:
            self.events.append(ctypes.c_void_p(event))

        def move(self, queue: Any, transfer: Any) -> bool:
            size, stream = ctypes.c_size_t(transfer.block_bytes), self.queues[queue]
            block, host = ctypes.c_void_p(transfer.block), ctypes.c_void_p(transfer.host)
            if queue in self.out:
                driver.call("cuMemcpyDtoHAsync_v2", host, block, size, stream)
            else:
                driver.call("cuMemcpyHtoDAsync_v2", block, host, size, stream)
            return True

    return Streams()


@dataclass
class Tensor:
    """A tensor's value, its block on the GPU and its far block, each if it has one."""

    value: int
    block: int | None
    far: int | None = None


class Programs:
    """Random programs on the same few blocks of a GPU and of pinned memory."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._core = driver, core()
        self._module = driver.module(_KERNELS.read_bytes())
        begin = driver.device_memory(_BLOCKS * _BLOCK_BYTES).value or 0
        self._blocks = [begin + i * _BLOCK_BYTES for i in range(_BLOCKS)]
        far = driver.pinned_memory(_FAR_BLOCKS * _BLOCK_BYTES).value or 0
        self._far = [far + i * _BLOCK_BYTES for i in range(_FAR_BLOCKS)]
        self._wrong = driver.device_memory(4)
        self._gpus = {waits: streams_of(driver, self._core, waits) for waits in (True, False)}

    def run(self, seed: int, waits: bool = True) -> tuple[int, int]:
        """Run one program; return its wrong words, and how many copies it made."""
        chance, driver = random.Random(seed), self._driver
        gpu = self._gpus[waits]
        compute = gpu.queues[self._core.Queue.COMPUTE]
        tracker = self._core.HazardTracker(gpu, self._core.HazardTracker.Memory.IN_ORDER)
        driver.call("cuMemsetD32_v2", self._wrong, 0, ctypes.c_size_t(1))
        free_blocks, free_far = list(self._blocks), list(self._far)
        tensors: list[Tensor] = []
        copies = 0

        def use(tensor: Tensor) -> None:
            tracker.op_begins()
            tracker.before_use(tensor.block)
            spin = chance.choice(_SPIN_NS)
            self._launch("count", compute, tensor.block, tensor.value, spin, self._wrong)

        def write(block: int, value: int) -> None:
            self._launch("fill", compute, block, value, chance.choice(_SPIN_NS))

        for number in range(1, _ACTIONS):
            here = [t for t in tensors if t.block is not None]
            away = [t for t in tensors if t.block is None]
            kind = chance.choice(("make", "use", "change", "free", "leave", "return", "return"))
            value = number << 20
            if kind == "make" and free_blocks:
                block = free_blocks.pop(chance.randrange(len(free_blocks)))
                tracker.op_begins()
                tracker.acquired(block, _BLOCK_BYTES)
                write(block, value)
                tensors.append(Tensor(value, block))
            elif kind == "use" and here:
                use(chance.choice(here))
            elif kind == "change" and (fresh := [t for t in here if t.far is None]):
                tensor = chance.choice(fresh)
                use(tensor)
                assert tensor.block is not None
                write(tensor.block, value)
                tensor.value = value
            elif kind == "free" and here:
                tensor = chance.choice(here)
                tensors.remove(tensor)
                tracker.released(tensor.block, _BLOCK_BYTES)
                assert tensor.block is not None
                free_blocks.append(tensor.block)
                if tensor.far is not None:
                    free_far.append(tensor.far)
            elif kind == "leave" and (able := [t for t in here if t.far or free_far]):
                tensor = chance.choice(able)
                assert tensor.block is not None
                if tensor.far is None:
                    tensor.far = free_far.pop(chance.randrange(len(free_far)))
                    assert tracker.copy_out(tensor.far, tensor.block, _BLOCK_BYTES)
                    copies += 1
                tracker.released(tensor.block, _BLOCK_BYTES)
                free_blocks.append(tensor.block)
                tensor.block = None
            elif kind == "return" and away and free_blocks:
                tensor = chance.choice(away)
                assert tensor.far is not None
                tensor.block = free_blocks.pop(chance.randrange(len(free_blocks)))
                assert tracker.copy_in(tensor.block, tensor.far, _BLOCK_BYTES)
                copies += 1
                if chance.random() < 0.6:
                    free_far.append(tensor.far)
                    tensor.far = None
        for tensor in tensors:
            if tensor.block is not None:
                use(tensor)
        for stream in gpu.queues.values():
            driver.call("cuStreamSynchronize", stream)
        wrong = ctypes.c_uint()
        driver.call("cuMemcpyDtoH_v2", ctypes.byref(wrong), self._wrong, ctypes.c_size_t(4))
        return wrong.value, copies

    def _launch(self, name: str, stream: Any, block: int | None, value: int, *more: Any) -> None:
        spin_ns, *rest = more
        arguments = [
            ctypes.c_void_p(block),
            ctypes.c_ulonglong(_WORDS),
            ctypes.c_uint(value),
            ctypes.c_ulonglong(spin_ns),
            *rest,
        ]
        self._driver.launch(self._module, name, stream, arguments)


def run(context: Context) -> None:
    """Run all programs with the tracker's waits, and some without.

    Raises:
        Missing: There is no driver, or no GPU.
    """
    driver = the_driver()
    driver.enter_context()
    programs = Programs(driver)
    figures = context.figures
    figures |= {"programs": 0, "copies": 0, "wrong_words": 0, "wrong_programs": []}
    for seed in range(20 if context.quick else _PROGRAMS):
        if context.seconds_left() < 2.0:
            context.note(f"time for {seed} programs only")
            break
        wrong, copies = programs.run(seed)
        figures["programs"] += 1
        figures["copies"] += copies
        figures["wrong_words"] += wrong
        if wrong:
            figures["wrong_programs"].append(seed)
        if seed % 10 == 9:
            # The power of the test: the same program without waits.
            figures["programs_without_waits"] = figures.get("programs_without_waits", 0) + 1
            figures["wrong_without_waits"] = figures.get("wrong_without_waits", 0) + bool(
                programs.run(seed, waits=False)[0]
            )
            context.save()
    if figures["wrong_programs"]:
        context.broken.append(f"bytes are wrong in programs {figures['wrong_programs']}")
    if "FAKE" not in driver.name() and not figures.get("wrong_without_waits"):
        context.broken.append("without waits, no byte was wrong: the programs show nothing")
    context.line(
        "ordering on real streams: random programs",
        f"{figures['programs']}, {figures['copies']} copies, {figures['wrong_words']} wrong words; "
        f"without waits {figures.get('wrong_without_waits', 0)} of "
        f"{figures.get('programs_without_waits', 0)} are wrong",
        "0 wrong words",
    )
