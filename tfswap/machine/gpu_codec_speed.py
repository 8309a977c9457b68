"""Speeds and launch sizes of a GPU's codecs, measured once and cached on disk."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfswap.machine.codec_speed import (
    cache_folder,
    fit_time,
    read_cache,
    speed_from_json,
    speed_to_json,
    write_cache,
)
from tfswap.machine.far_tier import CodecSpeed
from tfswap.machine.launch_search import GUIDED, RANDOM, search
from tfswap.machine.nvcomp import NAMES as NVCOMP_NAMES
from tfswap.ops.loaded_library import Library, LibraryError

SEARCH_S = 1.0
"""Time limit of the search for all codecs' launches, in seconds."""

Launch = tuple[int, int]
"""Number of blocks, and threads in each block."""

_GRID: list[Launch] = list(
    itertools.product(
        (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256), (64, 128, 256, 512, 1024)
    )
)
_DEFAULT_LAUNCH: Launch = (16, 512)
# Smaller launches leave more of the GPU to ops, so up to 5 % more time is accepted for them.
_TOLERANCE = 1.05
# CSWAP searches for the launch at half zeros, and trains its regression on 20 to 80 %.
_SEARCH_ZERO_FRACTION, _ZERO_FRACTIONS = 0.5, (0.2, 0.8)
# The measured tensor is as large as memory and time allow; the regression also uses a quarter.
_SIZES_KIB = (256, 1024, 4096, 16384)
_SIZE_RATIO = 4
_REPEATS = 3
_RESIDENT_THREADS_PER_MULTIPROCESSOR = 2048
_VERSION = 1

# By GPU and codec; codecs that could not be measured are tried again.
_known: dict[tuple[str, str], tuple[Launch, CodecSpeed]] = {}


def gpu_codec_speeds(
    lib: Library, device: int, names: Sequence[str], search_s: float = SEARCH_S
) -> tuple[CodecSpeed, ...]:
    """Return the times of a GPU's codecs by regression on size and ratio, and install launches.

    The first call on a GPU measures for about two seconds, on tensors within the budget, and writes
    the result to ``$XDG_CACHE_HOME/tfswap`` (``~/.cache/tfswap``); later processes read it. Nothing
    else may run on the GPU during the measurement. nvCOMP's codecs are measured in each training,
    which takes less time: they need no search for a launch, and their speed depends on the
    training's workspace.

    Args:
        lib: The library.
        device: The GPU's number.
        names: Codecs of `tfswap.ops.gpu_codecs.NAMES`, and of `tfswap.machine.nvcomp.NAMES` if in
            use.
        search_s: Time limit of the search for launches, in seconds.

    Returns:
        The speeds of the codecs that could be measured; a codec for which the budget leaves no room
        is missing.

    Source: CSWAP (Chen et al., CLUSTER 2021), section IV.
    """
    install_cached_launches(lib, device, names)
    gpu = lib.codec_device(device)
    missing = [name for name in names if (gpu, name) not in _known]
    found: dict[str, CodecSpeed] = {}
    for name in missing:
        try:
            launch, speed = _measure(lib, device, name, search_s / len(missing))
        except LibraryError as error:
            if "no memory" not in str(error):
                warnings.warn(f"tfswap: codec {name} is left out: {error}", stacklevel=2)
            continue
        finally:
            lib.trim_host()
        found[name] = speed
        if name in NVCOMP_NAMES:
            continue
        _known[gpu, name] = launch, speed
        write_cache(_path(gpu, name), {**speed_to_json(speed), "launch": list(launch)})
        lib.set_codec_launch(device, name, launch)
    found |= {name: _known[gpu, name][1] for name in names if (gpu, name) in _known}
    return tuple(found[name] for name in names if name in found)


def install_cached_launches(lib: Library, device: int, names: Sequence[str]) -> None:
    """Install the launches that this process or an earlier one measured on this kind of GPU."""
    names = [name for name in names if name not in NVCOMP_NAMES]
    gpu = lib.codec_device(device) if names else ""
    for name in names:
        if (gpu, name) not in _known:
            data = read_cache(_path(gpu, name))
            launch, speed = _launch_of(data), speed_from_json(data)
            if launch is None or speed is None:
                continue
            _known[gpu, name] = launch, speed
        lib.set_codec_launch(device, name, _known[gpu, name][0])


def _measure(lib: Library, device: int, name: str, search_s: float) -> tuple[Launch, CodecSpeed]:
    """Return the smallest launch that is nearly as fast as the fastest one, and its speed.

    Raises:
        LibraryError: There is no memory for any tensor, or the codec does not work.
    """
    deadline_s = time.monotonic() + search_s
    largest_kib = _tensor_kib(lib, device, name, search_s)
    tensor = _sparse(largest_kib, _SEARCH_ZERO_FRACTION)
    grid = [_DEFAULT_LAUNCH] if name in NVCOMP_NAMES else _GRID

    def seconds(launch: tuple[int, ...]) -> float:
        _, encode_s, decode_s = lib.measure_device_codec(
            device, name, tensor, (launch[0], launch[1]), _REPEATS
        )
        return max(encode_s + decode_s, 1e-9)

    blocks, threads = search(grid, seconds, deadline_s=deadline_s).smallest(_TOLERANCE)
    amounts, encode_ns, decode_ns = [], [], []
    sizes_kib = (largest_kib // _SIZE_RATIO, largest_kib)
    for zero_fraction, size_kib in itertools.product(_ZERO_FRACTIONS, sizes_kib):
        tensor = _sparse(size_kib, zero_fraction)
        encoded_bytes, encode_s, decode_s = lib.measure_device_codec(
            device, name, tensor, (blocks, threads), _REPEATS
        )
        amounts.append((1.0, float(tensor.nbytes), float(encoded_bytes)))
        encode_ns.append(max(encode_s * 1e9, 1.0))
        decode_ns.append(max(decode_s * 1e9, 1.0))
    table = np.array(amounts)
    resident_threads = max(lib.codec_processors(device), 1) * _RESIDENT_THREADS_PER_MULTIPROCESSOR
    # nvCOMP uses at least a thread block for each section: with many sections, the whole GPU.
    device_part = 1.0 if name in NVCOMP_NAMES else min(1.0, blocks * threads / resident_threads)
    speed = CodecSpeed(name, 0, fit_time(table, encode_ns), fit_time(table, decode_ns), device_part)
    return (blocks, threads), speed


def _tensor_kib(lib: Library, device: int, name: str, search_s: float) -> int:
    """Return the largest size that fits in memory and lets the search finish in time."""
    found_kib = 0
    for size_kib in _SIZES_KIB:
        tensor = _sparse(size_kib, _SEARCH_ZERO_FRACTION)
        try:
            # The first call loads kernels and pins memory.
            lib.measure_device_codec(device, name, tensor, _DEFAULT_LAUNCH)
            begun_s = time.monotonic()
            lib.measure_device_codec(device, name, tensor, _DEFAULT_LAUNCH)
        except LibraryError:
            if not found_kib:
                raise
            break
        found_kib = size_kib
        # The time of the next size grows in proportion.
        if (time.monotonic() - begun_s) * _SIZE_RATIO * (RANDOM + GUIDED) > search_s:
            break
    return found_kib


def _sparse(size_kib: int, zero_fraction: float) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    data = rng.random(size_kib << 8, dtype=np.float32)
    data[rng.random(len(data), dtype=np.float32) < zero_fraction] = 0
    return data


def _path(gpu: str, name: str) -> Path:
    return cache_folder(gpu, f"v{_VERSION}") / f"{name}.json"


def _launch_of(data: Any) -> Launch | None:
    try:
        blocks, threads = data["launch"]
    except (TypeError, KeyError, ValueError):
        return None
    return (int(blocks), int(threads)) if (blocks, threads) in _GRID else None
