"""Stage: the GPU's codecs and plain copies of the same bytes, and each codec's best launch.

Rates are of the tensor's bytes: an encoded copy's gain over a plain copy is their ratio. If
nvCOMP is installed, its codecs are included; they have no launch, but a workspace.
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_check.context import Context, Skip
from benchmarks.gpu_check.driver import Driver
from tfswap.machine import nvcomp
from tfswap.machine.launch_search import Point, search
from tfswap.ops import library
from tfswap.ops.gpu_codecs import NAMES, Launch
from tfswap.ops.loaded_library import LibraryError

MIB = 1 << 20
_SIZE_BYTES, _QUICK_BYTES = 64 * MIB, MIB // 8
_DTYPES = {"float32": 4, "float16": 2}
_ZEROS, _QUICK_ZEROS = (0.2, 0.4, 0.6, 0.8), (0.6,)
# The share of zeros at which the launch is searched.
_SEARCHED_ZEROS = 0.6
_BLOCKS, _QUICK_BLOCKS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128), (2, 4)
_THREADS, _QUICK_THREADS = (128, 256, 512, 1024), (64, 128)
# Of the 40, this many are random; the others follow from the results.
_RANDOM, _GUIDED = 6, 12
_WORKSPACES, _QUICK_WORKSPACES = (16 * MIB, nvcomp.WORKSPACE_BYTES, 256 * MIB), (MIB, 2 * MIB)
_ROUNDS, _REPEATS = 3, 4
# A launch of fewer threads is preferred up to this multiple of the best time: the rest of the GPU
# computes meanwhile.
_GOOD_ENOUGH = 1.05


@dataclass(frozen=True)
class Rates:
    """GB of the tensor per second, in each direction."""

    out_gb_s: float
    in_gb_s: float

    @property
    def both_s_a_gb(self) -> float:
        """Return the time of a swap out and in."""
        return 1 / self.out_gb_s + 1 / self.in_gb_s


class Bench:
    """A tensor on the GPU, another one to decode into, and pinned memory for both forms."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.driver = Driver()
        self.driver.enter_context()
        self.stream = self.driver.stream()
        self._events = self.driver.event(), self.driver.event()
        self.codecs = library.load().gpu_codecs(self.stream.value or 0)
        self._source, self._target = (self.driver.device_memory(size_bytes) for _ in range(2))
        self._far = self.driver.pinned_memory(self.codecs.max_bytes(size_bytes))
        self._pinned = self.driver.pinned_memory(size_bytes)
        held = (ctypes.c_uint8 * size_bytes).from_address(self._pinned.value or 0)
        self._host = np.frombuffer(held, np.uint8)
        self._workspaces: dict[int, ctypes.c_void_p] = {}
        self._fault = self.driver.pinned_memory(8)
        ctypes.memset(self._fault, 0, 8)

    def use_nvcomp(self, codec: str, path: str, workspace_bytes: int) -> None:
        """Limit nvCOMP's workspace in the GPU's memory."""
        if workspace_bytes not in self._workspaces:
            self._workspaces[workspace_bytes] = self.driver.device_memory(workspace_bytes)
        self.codecs.use_nvcomp(
            *(codec, path, self._workspaces[workspace_bytes].value or 0, workspace_bytes),
            *(self._fault.value or 0, self.stream.value or 0),
        )

    def fill(self, tensor: NDArray[np.uint8]) -> None:
        """Fill the tensor on the GPU."""
        self._host[:] = tensor
        self._copy_in(self._source)
        self.driver.call("cuStreamSynchronize", self.stream)

    def copies(self) -> Rates:
        """Measure plain copies between the GPU and pinned memory."""
        return Rates(self._rate(self._copy_out), self._rate(lambda: self._copy_in(self._target)))

    def encoded(self, codec: str, element_bytes: int, launch: Launch) -> Rates:
        """Measure swaps with a codec, out and in."""

        def arguments(tensor: ctypes.c_void_p) -> tuple[int, int, int, int, Launch]:
            stream = self.stream.value or 0
            return tensor.value or 0, self.size_bytes, self._far.value or 0, stream, launch

        return Rates(
            self._rate(lambda: self.codecs.encode(codec, element_bytes, *arguments(self._source))),
            self._rate(lambda: self.codecs.decode(codec, element_bytes, *arguments(self._target))),
        )

    def part(self) -> float:
        """Return the encoded part of the tensor's bytes."""
        return self.codecs.encoded_bytes(self._far.value or 0) / self.size_bytes

    def is_same(self, tensor: NDArray[np.uint8]) -> bool:
        """Return whether the tensor equals the last decoded one."""
        self._host[:] = 0
        self.driver.call(
            *("cuMemcpyDtoHAsync_v2", self._pinned, self._target),
            *(ctypes.c_size_t(self.size_bytes), self.stream),
        )
        self.driver.call("cuStreamSynchronize", self.stream)
        self.codecs.check_decoded()
        return bool(np.array_equal(self._host, tensor))

    def _copy_out(self) -> None:
        size = ctypes.c_size_t(self.size_bytes)
        self.driver.call("cuMemcpyDtoHAsync_v2", self._pinned, self._source, size, self.stream)

    def _copy_in(self, to: ctypes.c_void_p) -> None:
        size = ctypes.c_size_t(self.size_bytes)
        self.driver.call("cuMemcpyHtoDAsync_v2", to, self._pinned, size, self.stream)

    def _rate(self, give: Callable[[], None]) -> float:
        give()  # not including the loading at a kernel's first launch
        seconds = []
        for _ in range(_ROUNDS):
            self.driver.call("cuEventRecord", self._events[0], self.stream)
            for _ in range(_REPEATS):
                give()
            self.driver.call("cuEventRecord", self._events[1], self.stream)
            seconds.append(self.driver.seconds_between(*self._events) / _REPEATS)
        return self.size_bytes / statistics.median(seconds) / 1e9


def run(context: Context) -> None:
    """Measure each codec, type and share of zeros, with the best launch for the first two.

    Raises:
        Skip: No codecs are available.
    """
    size_bytes = _QUICK_BYTES if context.quick else _SIZE_BYTES
    try:
        bench = Bench(size_bytes)
    except LibraryError as error:
        raise Skip(str(error)) from None
    context.figures |= {"tensor_bytes": size_bytes, "launches": [], "workspaces": [], "rows": []}
    path, of_nvcomp = nvcomp.find_nvcomp(), list(nvcomp.NAMES)
    context.figures["nvcomp"] = path
    if path is None:
        context.note(f"lz4 and ans were not measured: {nvcomp.INSTALL}")
        of_nvcomp = []
    for dtype, element_bytes in _DTYPES.items():
        tensors = _tensors(context, size_bytes, element_bytes)
        best = {}
        bench.fill(tensors[_SEARCHED_ZEROS])
        for codec in NAMES:
            best[codec] = _search(context, bench, codec, dtype)
            context.save()
        for codec in list(of_nvcomp):
            try:
                workspace_bytes = _best_workspace(context, bench, codec, dtype, str(path))
                bench.use_nvcomp(codec, str(path), workspace_bytes)
            except LibraryError as error:
                of_nvcomp.remove(codec)
                context.broken.append(f"{codec}: {error}")
            best[codec] = Launch()
            context.save()
        for zeros, tensor in tensors.items():
            bench.fill(tensor)
            plain = bench.copies()
            for codec in (*NAMES, *of_nvcomp):
                _measure(context, bench, codec, dtype, zeros, tensor, best[codec], plain)
            context.save()
    _enter_lines(context)


def _tensors(
    context: Context, size_bytes: int, element_bytes: int
) -> dict[float, NDArray[np.uint8]]:
    """Return tensors by share of zeros."""
    dice = np.random.default_rng(0)
    bits = dice.integers(1, 1 << 8 * element_bytes, size_bytes // element_bytes, np.uint32)
    where = dice.random(bits.size, np.float32)
    type_ = np.dtype(f"u{element_bytes}")
    return {
        zeros: np.where(where < zeros, 0, bits).astype(type_).view(np.uint8)
        for zeros in (_QUICK_ZEROS if context.quick else _ZEROS)
    }


def _search(context: Context, bench: Bench, codec: str, dtype: str) -> Launch:
    """Return the launch of the fewest threads that is nearly as fast as the fastest."""

    def seconds_a_gb(point: Point) -> float:
        rates = bench.encoded(codec, _DTYPES[dtype], Launch(*point))
        context.figures["launches"].append(
            {
                **{"codec": codec, "dtype": dtype, "zeros": _SEARCHED_ZEROS},
                **{"blocks": point[0], "threads": point[1]},
                **{"out_gb_s": rates.out_gb_s, "in_gb_s": rates.in_gb_s},
            }
        )
        return rates.both_s_a_gb

    blocks = _QUICK_BLOCKS if context.quick else _BLOCKS
    grid = list(itertools.product(blocks, _QUICK_THREADS if context.quick else _THREADS))
    left_s = context.seconds_left() - 1
    found = None
    if left_s > 0:
        deadline_s = time.monotonic() + left_s
        found = search(grid, seconds_a_gb, first=_RANDOM, guided=_GUIDED, deadline_s=deadline_s)
    if found is None or len(found.seconds) < min(len(grid), _RANDOM + _GUIDED):
        context.note(f"fewer launches of {codec}, {dtype} were tried, for want of time")
    return Launch() if found is None else Launch(*found.smallest(_GOOD_ENOUGH))


def _best_workspace(context: Context, bench: Bench, codec: str, dtype: str, path: str) -> int:
    """Return the smallest tried workspace in which nvCOMP is nearly as fast as in the best."""
    s_a_gb = {}
    for workspace_bytes in _QUICK_WORKSPACES if context.quick else _WORKSPACES:
        bench.use_nvcomp(codec, path, workspace_bytes)
        rates = bench.encoded(codec, _DTYPES[dtype], Launch())
        s_a_gb[workspace_bytes] = rates.both_s_a_gb
        context.figures["workspaces"].append(
            {
                **{"codec": codec, "dtype": dtype, "workspace_bytes": workspace_bytes},
                **{"out_gb_s": rates.out_gb_s, "in_gb_s": rates.in_gb_s},
            }
        )
    limit = _GOOD_ENOUGH * min(s_a_gb.values())
    return min(size for size, seconds in s_a_gb.items() if seconds <= limit)


def _measure(
    context: Context,
    bench: Bench,
    codec: str,
    dtype: str,
    zeros: float,
    tensor: NDArray[np.uint8],
    launch: Launch,
    plain: Rates,
) -> None:
    rates = bench.encoded(codec, _DTYPES[dtype], launch)
    try:
        exact = bench.is_same(tensor)
    except LibraryError as error:
        context.note(str(error))
        exact = False
    if not exact:
        context.broken.append(f"{codec}, {dtype}, {zeros:.0%} zeros: other bytes came back")
    context.figures["rows"].append(
        {
            **{"codec": codec, "dtype": dtype, "zeros": zeros},
            **{"blocks": launch.blocks, "threads": launch.threads},
            **{"out_gb_s": rates.out_gb_s, "in_gb_s": rates.in_gb_s},
            **{"copy_out_gb_s": plain.out_gb_s, "copy_in_gb_s": plain.in_gb_s},
            **{"encoded_part": bench.part(), "exact": exact},
        }
    )


def _enter_lines(context: Context) -> None:
    rows = context.figures["rows"]
    for codec in (*NAMES, *nvcomp.NAMES):
        for dtype in _DTYPES:
            own = [row for row in rows if (row["codec"], row["dtype"]) == (codec, dtype)]
            if not own:
                continue
            gains = ", ".join(
                f"{row['zeros']:.0%} {row['out_gb_s'] / row['copy_out_gb_s']:.2f} and "
                f"{row['in_gb_s'] / row['copy_in_gb_s']:.2f}"
                for row in own
            )
            launch = f"{own[0]['blocks']} blocks of {own[0]['threads']}"
            what = f"{codec}, {dtype}: out and in, of a plain copy's speed"
            context.line(what, f"zeros {gains} ({launch})")
