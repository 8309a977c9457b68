"""What codecs cost on this machine, by how many threads: measured once, then remembered."""

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

# CSWAP trains its regression on 20 to 80 % of zeros.
_ZEROS = (0.2, 0.5, 0.8)
# A lossy codec is for tensors without any, and takes as long as what it keeps, in percent.
_RATES = (20, 50, 80)
# Codecs that keep up with memory are measured where caches have ended.
_MIB = {"lz4": (2, 4, 8), "zstd": (2, 4, 8), "zfp": (1, 2, 4)}
_LARGE_MIB = (8, 32, 64)
_REPEATS = 3
# How many threads are best is looked for at half zeros, like a GPU's launch. What takes this much
# longer than the fastest, with fewer of them, leaves more of the cores to ops.
_SEARCHED_ZEROS, _GOOD_ENOUGH = 0.5, 1.05
_RANDOM, _GUIDED = 4, 6
_VERSION = 3
# Of a file, and of what a codec takes for a byte or to begin.
_MOST_BYTES, _MOST_NS = 1 << 20, 1e12
_MOST_THREADS = 1024


def codec_speeds(names: Iterable[str] | None = None) -> tuple[CodecSpeed, ...]:
    """How long codecs take, by regression on size and ratio: each as often as threads are worth it.

    A codec is there with one thread, and where more are faster, with as many as are fastest and
    with a number between. The first call on a machine measures for some seconds and writes what it
    found to ``$XDG_CACHE_HOME/tfswap`` (``~/.cache/tfswap``); others read it.

    Args:
        names: Of codecs. Default: all lossless ones that are available here.

    Source: CSWAP (Chen et al., CLUSTER 2021), section IV.
    """
    wanted = tuple(names) if names is not None else _lossless()
    found = tuple(speed for name in wanted for speed in _speeds(name))
    _sparse.cache_clear()
    return found


def worthwhile_threads(name: str, most: int, mib: int | None = None) -> tuple[int, ...]:
    """How many threads are worth a try: 1, those that take least time, and some between.

    Args:
        name: Of the codec.
        most: How many there may be.
        mib: The size that is looked at.
    """
    data = _sparse(mib or max(_MIB.get(name, _LARGE_MIB)), _SEARCHED_ZEROS)

    def seconds(threads: tuple[int, ...]) -> float:
        _, encode_s, decode_s, _ = _core.measure_codec(
            data, name, 4, 100, threads=threads[0], repeats=_REPEATS
        )
        return float(encode_s + decode_s)

    grid = [(threads,) for threads in range(1, most + 1)]
    (fastest,) = search(grid, seconds, first=_RANDOM, guided=_GUIDED).smallest(_GOOD_ENOUGH)
    return tuple(sorted({1, math.isqrt(fastest), fastest}))


def _lossless() -> tuple[str, ...]:
    return tuple(name for name in codecs.available() if name in codecs.LOSSLESS)


@cache
def _speeds(name: str) -> tuple[CodecSpeed, ...]:
    path = _cache_folder() / f"{name}.json"
    data = remembered(path)
    known = [speed_of(each) for each in data] if isinstance(data, list) else []
    speeds = tuple(speed for speed in known if speed is not None)
    if not speeds or len(speeds) < len(known):
        speeds = tuple(measured(name, threads) for threads in worthwhile_threads(name, cores()))
        remember(path, [data_of(speed) for speed in speeds])
    return speeds


@cache
def _sparse(mib: int, zeros: float) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    data = rng.random(mib << 18, dtype=np.float32)
    data[rng.random(len(data), dtype=np.float32) < zeros] = 0
    return data


def measured(name: str, threads: int, mib: Sequence[int] | None = None) -> CodecSpeed:
    """The same, measured now; `mib` are the sizes that the regression sees."""
    sizes = mib or _MIB.get(name, _LARGE_MIB)
    amounts, encode_ns, decode_ns = [], [], []
    sorts = [(0.0, rate) for rate in _RATES] if name in codecs.LOSSY else [(z, 100) for z in _ZEROS]
    for (zeros, rate), size in itertools.product(sorts, sizes):
        data = _sparse(max(sizes), zeros)[: size << 18]
        kept, encode_s, decode_s, _ = _core.measure_codec(
            data, name, 4, rate, threads=threads, repeats=_REPEATS
        )
        amounts.append((1.0, float(data.nbytes), float(kept)))
        encode_ns.append(encode_s * 1e9)
        decode_ns.append(decode_s * 1e9)
    table = np.array(amounts)
    return CodecSpeed(name, threads, fitted(table, encode_ns), fitted(table, decode_ns))


def fitted(amounts: NDArray[np.float64], ns: Sequence[float]) -> CodecTime:
    """Least squares of relative errors, with no factor below 0.

    Args:
        amounts: Rows of (1, bytes, kept bytes).
        ns: The time of each.
    """
    took = np.asarray(ns, dtype=np.float64)
    rows = amounts / took[:, None]
    best, least = np.zeros(3), np.inf
    # Of so few factors, all subsets can be tried.
    for used in itertools.product((False, True), repeat=3):
        columns = np.flatnonzero(used)
        if not len(columns):
            continue
        found, *_ = np.linalg.lstsq(rows[:, columns], np.ones(len(took)), rcond=None)
        off = float(np.sum((rows[:, columns] @ found - 1) ** 2))
        if (found >= 0).all() and off < least:
            least = off
            best = np.zeros(3)
            best[columns] = found
    return CodecTime(*best.tolist())


def _cache_folder() -> Path:
    """For this machine."""
    return cache_folder(processor(), str(cores()), _core.codec_path(), f"v{_VERSION}")


def cache_folder(*machine: str) -> Path:
    """Where speeds of a machine's codecs are kept: what decides about them is in its name."""
    name = "".join(c if c.isalnum() or c in "-." else "_" for c in "-".join(machine))
    return user_cache() / "codecs" / name


def speed_of(data: Any) -> CodecSpeed | None:
    """What `data_of` made of it; None for anything else."""
    try:
        out, back = (CodecTime(*(float(data[way][i]) for i in range(3))) for way in ("out", "in"))
        part = float(data.get("device_part", 0.0))
        name, threads = str(data["name"]), int(data["threads"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError):
        return None
    times = [*dataclasses.astuple(out), *dataclasses.astuple(back)]
    can_be = all(0 <= ns <= _MOST_NS for ns in times) and 0 <= part <= 1
    if not can_be or not 0 <= threads <= _MOST_THREADS or name not in (*codecs.NAMES, "ans"):
        return None
    return CodecSpeed(name, threads, out, back, part)


def data_of(speed: CodecSpeed) -> dict[str, Any]:
    """For a file."""
    return {
        "name": speed.name,
        "threads": speed.threads,
        "out": [speed.encode.begin_ns, speed.encode.byte_ns, speed.encode.kept_byte_ns],
        "in": [speed.decode.begin_ns, speed.decode.byte_ns, speed.decode.kept_byte_ns],
        "device_part": speed.device_part,
    }


def remembered(path: Path) -> Any:
    """What an earlier process wrote; None for what is not there or not like that."""
    try:
        if not private_files.is_private_folder(path.parent):
            return None
        return parse_json(private_files.read_own_bytes(path, _MOST_BYTES), "it")
    except (OSError, ValueError):
        return None


def remember(path: Path, data: Any) -> None:
    """Writes it for the next process; without a place to write to, that one measures again."""
    try:
        if private_files.make_private_folder(path.parent):
            private_files.remove_unfinished(path.parent)
            private_files.write_bytes(path, json.dumps(data).encode(), private_files.PRIVATE)
    except OSError:
        return
