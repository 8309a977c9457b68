"""Stage: speed of tfswap's copies and of plain copies of pinned memory, in turns."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Sequence

from benchmarks.gpu_check.context import Context
from benchmarks.gpu_check.driver import Driver
from benchmarks.gpu_check.machine import GPU, touch_gpu

MIB = 1 << 20
SHARE_TARGET = 0.9
_SIZES_MIB = (1, 4, 16, 64, 256)
_ROUNDS = 5
# In one measurement: enough to make its start and end negligible.
_MEASURED_BYTES, _FEWEST, _MOST = 1 << 30, 4, 64
# The start of a copy limits the speed of smaller blocks.
_LINK_BOUND_BYTES = 16 * MIB

Rates = dict[str, float]
"""Bytes per second of each of these ways; the last two at once."""
_WAYS = ("out", "in", "both_out", "both_in")


class PlainCopies:
    """``cuMemcpyDtoHAsync`` and ``cuMemcpyHtoDAsync`` of pinned blocks, with two streams."""

    def __init__(self, driver: Driver, largest_bytes: int) -> None:
        self._driver = driver
        self._there = {way: driver.device_memory(largest_bytes) for way in ("out", "in")}
        self._here = {way: driver.pinned_memory(largest_bytes) for way in ("out", "in")}
        self._streams = {way: driver.stream() for way in ("out", "in")}
        self._begin = driver.event()
        self._ends = {way: driver.event() for way in ("out", "in")}

    def measure(self, block_bytes: int, blocks: int) -> Rates:
        """Return bytes per second: each direction alone, and both at once."""
        self._rates(("out", "in"), block_bytes, 1)  # the very first copy is slower
        both = self._rates(("out", "in"), block_bytes, blocks)
        return {
            "out": self._rates(("out",), block_bytes, blocks)["out"],
            "in": self._rates(("in",), block_bytes, blocks)["in"],
            "both_out": both["out"],
            "both_in": both["in"],
        }

    def _rates(self, ways: Sequence[str], block_bytes: int, blocks: int) -> Rates:
        call, size = self._driver.call, ctypes.c_size_t(block_bytes)
        call("cuEventRecord", self._begin, self._streams[ways[0]])
        for way in ways[1:]:
            call("cuStreamWaitEvent", self._streams[way], self._begin, 0)
        for _ in range(blocks):
            for way in ways:
                here, there, stream = self._here[way], self._there[way], self._streams[way]
                if way == "out":
                    call("cuMemcpyDtoHAsync_v2", here, there, size, stream)
                else:
                    call("cuMemcpyHtoDAsync_v2", there, here, size, stream)
        for way in ways:
            call("cuEventRecord", self._ends[way], self._streams[way])
        moved = block_bytes * blocks
        return {
            way: moved / self._driver.seconds_between(self._begin, self._ends[way]) for way in ways
        }


def run(context: Context) -> None:
    """Measure both for each block size."""
    from tfswap import state
    from tfswap.ops import library

    sizes = [size * MIB for size in (_SIZES_MIB[:2] if context.quick else _SIZES_MIB)]
    rounds = 2 if context.quick else _ROUNDS
    driver = Driver()
    driver.enter_context()
    plain = PlainCopies(driver, max(sizes))  # before TensorFlow allocates the rest of the GPU
    touch_gpu()
    driver.enter_context()
    number = state.device_number(GPU)
    measure_link = getattr(library.load(), "measure_link", None)
    if measure_link is None:
        context.note("tfswap cannot measure its own copies yet (Library.measure_link)")
    for size in sizes:
        blocks = min(max(_MEASURED_BYTES // size, _FEWEST), _MOST)
        if context.quick:
            blocks = _FEWEST
        plain_rates, our_rates = [], []
        for _ in range(rounds):
            plain_rates.append(plain.measure(size, blocks))
            if measure_link is not None:
                link = measure_link(number, size, blocks)
                our_rates.append({way: link[f"{way}_bytes_per_s"] for way in _WAYS})
        _enter(context, size, _medians(plain_rates), _medians(our_rates) if our_rates else None)
        context.save()


def _medians(measured: Sequence[Rates]) -> Rates:
    return {key: statistics.median(rates[key] for rates in measured) for key in measured[0]}


def _enter(context: Context, size: int, plain: Rates, ours: Rates | None) -> None:
    shares = None if ours is None else {key: ours[key] / plain[key] for key in plain}
    context.figures[f"{size // MIB} MiB"] = {
        "block_bytes": size,
        "plain_bytes_per_s": plain,
        "tfswap_bytes_per_s": ours or "not there yet",
        "share": shares,
    }
    value = f"plain {_shown(plain)} GB/s; tfswap {_shown(ours) if ours else 'not there yet'}"
    if shares is not None:
        value += f"; share at least {min(shares.values()):.2f}"
    target = f"{SHARE_TARGET} of plain" if size >= _LINK_BOUND_BYTES else ""
    context.line(f"copies of {size // MIB} MiB: out, in, both", value, target)


def _shown(rates: Rates) -> str:
    out, back, both = rates["out"], rates["in"], rates["both_out"] + rates["both_in"]
    return f"{out / 1e9:.1f}, {back / 1e9:.1f}, {both / 1e9:.1f}"
