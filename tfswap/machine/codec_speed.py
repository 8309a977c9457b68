"""Encoding and decoding speeds of the codecs on this machine, measured once and cached on disk."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfswap import _core
from tfswap.io import private_files
from tfswap.io.cache_dir import user_cache
from tfswap.io.untrusted_json import parse_json
from tfswap.machine import codecs
from tfswap.machine.far_tier import CodecSpeed, CodecTime
from tfswap.machine.launch_search import search
from tfswap.machine.machine import cores, processor

# Fractions of zeros in the measured data: CSWAP trains its regression on 20 to 80 %.
_ZERO_FRACTIONS = (0.2, 0.5, 0.8)
# Rates of lossy codecs, in percent. They encode dense tensors, and their time depends on the rate.
_RATES_PERCENT = (20, 50, 80)
# Sizes of the measured data: for codecs as fast as memory, larger than the caches.
_SIZES_MIB = {"lz4": (2, 4, 8), "zstd": (2, 4, 8), "zfp": (1, 2, 4)}
_LARGE_SIZES_MIB = (8, 32, 64)
_REPEATS = 3
# The search for the number of threads uses data with half zeros, like the search for a GPU's
# launch. Fewer threads leave more cores to ops, so up to 5 % more time is accepted for them.
_SEARCH_ZERO_FRACTION, _TOLERANCE = 0.5, 1.05
_RANDOM, _GUIDED = 4, 6
_VERSION = 3
# Bounds on a cache file, and on the times and threads in it.
_MAX_FILE_BYTES, _MAX_NS = 1 << 20, 1e12
_MAX_THREADS = 1024


def codec_speeds(names: Iterable[str] | None = None) -> tuple[CodecSpeed, ...]:
    """Return the codecs' times, by regression on size and compression ratio.

    The result has an entry for each codec with one thread and, where more threads are faster, with
    the fastest number of threads and with one in between. The first call on a machine measures for
    some seconds and writes the result to ``$XDG_CACHE_HOME/tfswap`` (``~/.cache/tfswap``); later
    processes read it.

    Args:
        names: Names of codecs. Default: all lossless codecs that are available here.

    Source: CSWAP (Chen et al., CLUSTER 2021), section IV.
    """
    wanted = tuple(names) if names is not None else _lossless()
    found = tuple(speed for name in wanted for speed in _cached_speeds(name))
    _sparse.cache_clear()
    return found


def thread_counts(name: str, max_threads: int, size_mib: int | None = None) -> tuple[int, ...]:
    """Return the numbers of threads to measure: 1, the fastest, and one in between.

    Args:
        name: The codec's name.
        max_threads: The largest number of threads.
        size_mib: The size of the data that the search encodes. Default: the codec's largest.
    """
    data = _sparse(size_mib or max(_SIZES_MIB.get(name, _LARGE_SIZES_MIB)), _SEARCH_ZERO_FRACTION)

    def seconds(threads: tuple[int, ...]) -> float:
        _, encode_s, decode_s, _ = _core.measure_codec(
            data, name, 4, 100, threads=threads[0], repeats=_REPEATS
        )
        return float(encode_s + decode_s)

    grid = [(threads,) for threads in range(1, max_threads + 1)]
    (fastest,) = search(grid, seconds, first=_RANDOM, guided=_GUIDED).smallest(_TOLERANCE)
    return tuple(sorted({1, math.isqrt(fastest), fastest}))


def _lossless() -> tuple[str, ...]:
    return tuple(name for name in codecs.available() if name in codecs.LOSSLESS)


@cache
def _cached_speeds(name: str) -> tuple[CodecSpeed, ...]:
    path = _cache_folder() / f"{name}.json"
    data = read_cache(path)
    cached = [speed_from_json(each) for each in data] if isinstance(data, list) else []
    speeds = tuple(speed for speed in cached if speed is not None)
    if not speeds or len(speeds) < len(cached):
        speeds = tuple(measure_speed(name, threads) for threads in thread_counts(name, cores()))
        write_cache(path, [speed_to_json(speed) for speed in speeds])
    return speeds


@cache
def _sparse(size_mib: int, zero_fraction: float) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    data = rng.random(size_mib << 18, dtype=np.float32)
    data[rng.random(len(data), dtype=np.float32) < zero_fraction] = 0
    return data


def measure_speed(name: str, threads: int, sizes_mib: Sequence[int] | None = None) -> CodecSpeed:
    """Measure a codec on data of several sizes, and fit its times."""
    sizes_mib = sizes_mib or _SIZES_MIB.get(name, _LARGE_SIZES_MIB)
    amounts, encode_ns, decode_ns = [], [], []
    if name in codecs.LOSSY:
        kinds = [(0.0, rate) for rate in _RATES_PERCENT]
    else:
        kinds = [(zero_fraction, 100) for zero_fraction in _ZERO_FRACTIONS]
    for (zero_fraction, rate_percent), size_mib in itertools.product(kinds, sizes_mib):
        data = _sparse(max(sizes_mib), zero_fraction)[: size_mib << 18]
        encoded_bytes, encode_s, decode_s, _ = _core.measure_codec(
            data, name, 4, rate_percent, threads=threads, repeats=_REPEATS
        )
        amounts.append((1.0, float(data.nbytes), float(encoded_bytes)))
        encode_ns.append(encode_s * 1e9)
        decode_ns.append(decode_s * 1e9)
    table = np.array(amounts)
    return CodecSpeed(name, threads, fit_time(table, encode_ns), fit_time(table, decode_ns))


def fit_time(amounts: NDArray[np.float64], times_ns: Sequence[float]) -> CodecTime:
    """Fit a codec's time by least squares of the relative errors, with coefficients of at least 0.

    Args:
        amounts: float64[n, 3], rows of (1, bytes, encoded bytes).
        times_ns: The time of each row.
    """
    measured_ns = np.asarray(times_ns, dtype=np.float64)
    rows = amounts / measured_ns[:, None]
    best, least_error = np.zeros(3), np.inf
    # With three coefficients, every subset can be tried.
    for used in itertools.product((False, True), repeat=3):
        columns = np.flatnonzero(used)
        if not len(columns):
            continue
        found, *_ = np.linalg.lstsq(rows[:, columns], np.ones(len(measured_ns)), rcond=None)
        error = float(np.sum((rows[:, columns] @ found - 1) ** 2))
        if (found >= 0).all() and error < least_error:
            least_error = error
            best = np.zeros(3)
            best[columns] = found
    return CodecTime(*best.tolist())


def _cache_folder() -> Path:
    return cache_folder(processor(), str(cores()), _core.codec_path(), f"v{_VERSION}")


def cache_folder(*machine: str) -> Path:
    """Return the cache folder for the codecs of the machine that these strings identify."""
    name = "".join(c if c.isalnum() or c in "-." else "_" for c in "-".join(machine))
    return user_cache() / "codecs" / name


def speed_from_json(data: Any) -> CodecSpeed | None:
    """Return the speed that `speed_to_json` converted; None for anything else."""
    try:
        out, back = (CodecTime(*(float(data[way][i]) for i in range(3))) for way in ("out", "in"))
        device_part = float(data.get("device_part", 0.0))
        name, threads = str(data["name"]), int(data["threads"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError):
        return None
    times_ns = [*dataclasses.astuple(out), *dataclasses.astuple(back)]
    in_range = all(0 <= ns <= _MAX_NS for ns in times_ns) and 0 <= device_part <= 1
    if not in_range or not 0 <= threads <= _MAX_THREADS or name not in (*codecs.NAMES, "ans"):
        return None
    return CodecSpeed(name, threads, out, back, device_part)


def speed_to_json(speed: CodecSpeed) -> dict[str, Any]:
    """Convert a speed to JSON data for a cache file."""
    return {
        "name": speed.name,
        "threads": speed.threads,
        "out": [speed.encode.begin_ns, speed.encode.byte_ns, speed.encode.kept_byte_ns],
        "in": [speed.decode.begin_ns, speed.decode.byte_ns, speed.decode.kept_byte_ns],
        "device_part": speed.device_part,
    }


def read_cache(path: Path) -> Any:
    """Return the JSON data of a cache file; None if it is missing, not private or not JSON."""
    try:
        if not private_files.is_private_folder(path.parent):
            return None
        return parse_json(private_files.read_own_bytes(path, _MAX_FILE_BYTES), "it")
    except (OSError, ValueError):
        return None


def write_cache(path: Path, data: Any) -> None:
    """Write JSON data to a cache file; do nothing where it cannot be written."""
    try:
        if private_files.make_private_folder(path.parent):
            private_files.remove_unfinished(path.parent)
            private_files.write_bytes(path, json.dumps(data).encode(), private_files.PRIVATE)
    except OSError:
        return
