"""What a GPU's own codecs cost, and how they are best launched: measured once, then remembered."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.codec_speed import cache_folder, data_of, fitted, remember, remembered, speed_of
from tfswap.machine.far_tier import CodecSpeed
from tfswap.machine.launch_search import GUIDED, RANDOM, search
from tfswap.machine.nvcomp import NAMES as OF_NVCOMP
from tfswap.ops.loaded_library import Library, LibraryError

SEARCH_S = 1.0
"""How long the launches of all codecs may be looked for, in seconds."""

Launch = tuple[int, int]

_GRID: list[Launch] = list(
    itertools.product(
        (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256), (64, 128, 256, 512, 1024)
    )
)
_FIRST: Launch = (16, 512)
# Of the fastest launch's time, for one that leaves more of the GPU to ops.
_GOOD_ENOUGH = 1.05
# CSWAP looks for the launch at half zeros, and trains its regression on 20 to 80 %.
_SEARCHED_ZEROS, _ZEROS = 0.5, (0.2, 0.8)
# What is looked at is as large as memory and time allow; the regression sees a quarter of it too.
_KIB = (256, 1024, 4096, 16384)
_PART = 4
_REPEATS = 3
# Threads that a processor of a GPU runs at once.
_THREADS_AT_ONCE = 2048
_VERSION = 1

# By GPU and codec; what could not be measured is tried again.
_known: dict[tuple[str, str], tuple[Launch, CodecSpeed]] = {}


def gpu_codec_speeds(
    lib: Library, device: int, names: Sequence[str], search_s: float = SEARCH_S
) -> tuple[CodecSpeed, ...]:
    """How long a GPU's codecs take, by regression on size and ratio; puts launches in force.

    The first call on a GPU measures, in about two seconds, on tensors within the budget, and
    writes what it found to ``$XDG_CACHE_HOME/tfswap`` (``~/.cache/tfswap``); others read it. While
    it measures, nothing else is to run on the GPU. nvCOMP's are measured in each training, in less
    time: they have no launches to look for, and go by the workspace that they have in it.

    Args:
        lib: The library.
        device: The GPU's number.
        names: Of `tfswap.ops.gpu_codecs.NAMES`, and of `tfswap.machine.nvcomp.NAMES` if in use.
        search_s: How long launches may be looked for, in seconds.

    Returns:
        Of those that could be measured: not where the budget has no room for it.

    Source: CSWAP (Chen et al., CLUSTER 2021), section IV.
    """
    use_remembered(lib, device, names)
    gpu = lib.codec_device(device)
    missing = [name for name in names if (gpu, name) not in _known]
    found: dict[str, CodecSpeed] = {}
    for name in missing:
        try:
            launch, speed = _measured(lib, device, name, search_s / len(missing))
        except LibraryError as error:
            if "no memory" not in str(error):
                warnings.warn(f"tfswap: codec {name} is left out: {error}", stacklevel=2)
            continue
        finally:
            lib.trim_host()
        found[name] = speed
        if name in OF_NVCOMP:
            continue
        _known[gpu, name] = launch, speed
        remember(_path(gpu, name), {**data_of(speed), "launch": list(launch)})
        lib.set_codec_launch(device, name, launch)
    found |= {name: _known[gpu, name][1] for name in names if (gpu, name) in _known}
    return tuple(found[name] for name in names if name in found)


def use_remembered(lib: Library, device: int, names: Sequence[str]) -> None:
    """Puts launches in force that this process or an earlier one found on such a GPU."""
    names = [name for name in names if name not in OF_NVCOMP]
    gpu = lib.codec_device(device) if names else ""
    for name in names:
        if (gpu, name) not in _known:
            data = remembered(_path(gpu, name))
            launch, speed = _launch_of(data), speed_of(data)
            if launch is None or speed is None:
                continue
            _known[gpu, name] = launch, speed
        lib.set_codec_launch(device, name, _known[gpu, name][0])


def _measured(lib: Library, device: int, name: str, search_s: float) -> tuple[Launch, CodecSpeed]:
    """The launch of the fewest threads that is nearly as fast as the fastest, and its speed.

    Raises:
        LibraryError: There is no memory for any tensor, or the codec does not work.
    """
    deadline_s = time.monotonic() + search_s
    kib = _tensor_kib(lib, device, name, search_s)
    tensor = _sparse(kib, _SEARCHED_ZEROS)
    grid = [_FIRST] if name in OF_NVCOMP else _GRID

    def seconds(launch: tuple[int, ...]) -> float:
        _, encode_s, decode_s = lib.measure_device_codec(
            device, name, tensor, (launch[0], launch[1]), _REPEATS
        )
        return max(encode_s + decode_s, 1e-9)

    blocks, threads = search(grid, seconds, deadline_s=deadline_s).smallest(_GOOD_ENOUGH)
    amounts, encode_ns, decode_ns = [], [], []
    for zeros, size in itertools.product(_ZEROS, (kib // _PART, kib)):
        tensor = _sparse(size, zeros)
        kept, encode_s, decode_s = lib.measure_device_codec(
            device, name, tensor, (blocks, threads), _REPEATS
        )
        amounts.append((1.0, float(tensor.nbytes), float(kept)))
        encode_ns.append(max(encode_s * 1e9, 1.0))
        decode_ns.append(max(decode_s * 1e9, 1.0))
    table = np.array(amounts)
    at_once = max(lib.codec_processors(device), 1) * _THREADS_AT_ONCE
    # nvCOMP takes a thread block or more for each section: the GPU, when there are many.
    part = 1.0 if name in OF_NVCOMP else min(1.0, blocks * threads / at_once)
    return (blocks, threads), CodecSpeed(
        name,
        0,
        fitted(table, encode_ns),
        fitted(table, decode_ns),
        part,
    )


def _tensor_kib(lib: Library, device: int, name: str, search_s: float) -> int:
    """The largest for which there is memory, and time for as many measurements as a search has."""
    found = 0
    for kib in _KIB:
        tensor = _sparse(kib, _SEARCHED_ZEROS)
        try:
            # The first time, kernels are loaded and memory is pinned.
            lib.measure_device_codec(device, name, tensor, _FIRST)
            begun_s = time.monotonic()
            lib.measure_device_codec(device, name, tensor, _FIRST)
        except LibraryError:
            if not found:
                raise
            break
        found = kib
        # The next one takes as much longer as it is larger.
        if (time.monotonic() - begun_s) * _PART * (RANDOM + GUIDED) > search_s:
            break
    return found


def _sparse(kib: int, zeros: float) -> NDArray[np.float32]:
    dice = np.random.default_rng(0)
    data = dice.random(kib << 8, dtype=np.float32)
    data[dice.random(len(data), dtype=np.float32) < zeros] = 0
    return data


def _path(gpu: str, name: str) -> Path:
    return cache_folder(gpu, f"v{_VERSION}") / f"{name}.json"


def _launch_of(data: Any) -> Launch | None:
    try:
        blocks, threads = data["launch"]
    except (TypeError, KeyError, ValueError):
        return None
    return (int(blocks), int(threads)) if (blocks, threads) in _GRID else None
