"""Codec speeds: the regression, the search for threads, the cache, and the option's checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfswap import _core
from tfswap.machine import codec_speed, codecs
from tfswap.machine.codec_speed import codec_speeds, fit_time, measure_speed
from tfswap.machine.far_tier import CodecSpeed, CodecTime


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tests away from the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    codec_speed._cached_speeds.cache_clear()
    return tmp_path


amounts = np.array([(1.0, size, size * ratio) for size in (1e6, 8e6, 64e6) for ratio in (0.2, 0.8)])


@given(st.floats(0, 1e5), st.floats(0.01, 10), st.floats(0, 10))
def test_the_regression_recovers_exact_times(begin: float, byte: float, kept: float) -> None:
    found = fit_time(amounts, (amounts @ [begin, byte, kept]).tolist())
    for (_, size, kept_bytes), ns in zip(amounts, amounts @ [begin, byte, kept], strict=True):
        assert found.ns(int(size), kept_bytes / size) == pytest.approx(ns, rel=1e-3, abs=2)


def test_no_coefficient_is_negative() -> None:
    found = fit_time(amounts, [5.0, 1.0, 4.0, 1.0, 3.0, 1.0])
    assert min(found.begin_ns, found.byte_ns, found.kept_byte_ns) >= 0


def test_measure_speed() -> None:
    speed = measure_speed("zvc", 1, sizes_mib=(1, 2))
    assert (speed.name, speed.threads) == ("zvc", 1)
    assert speed.encode.ns(1 << 20, 0.5) > 0 and speed.decode.ns(1 << 20, 0.5) > 0


def test_measured_speeds_are_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = tuple(
        CodecSpeed("zvc", threads, CodecTime(1, 2, 3), CodecTime(4, 5, 6)) for threads in (1, 3)
    )
    calls = []

    def measure(name: str, threads: int) -> CodecSpeed:
        calls.append((name, threads))
        return next(speed for speed in measured if speed.threads == threads)

    monkeypatch.setattr(codec_speed, "measure_speed", measure)
    monkeypatch.setattr(codec_speed, "thread_counts", lambda name, max_threads: (1, 3))
    assert codec_speeds(["zvc"]) == measured
    codec_speed._cached_speeds.cache_clear()  # as another process
    assert codec_speeds(["zvc"]) == measured
    assert calls == [("zvc", 1), ("zvc", 3)]
    (file,) = cache.rglob("zvc.json")
    half = '[{"name": "zvc", "threads": 1, "out": [1, 2, 3], "in": [4, 5, 6]}, 7]'
    for damaged in ("", "[]", "{}", '[{"name": 1, "threads": "x", "out": 1, "in": 2}]', half):
        file.write_text(damaged)
        codec_speed._cached_speeds.cache_clear()
        assert codec_speeds(["zvc"]) == measured
    assert len(calls) == 12


def test_without_a_writable_cache_the_speeds_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    speed = CodecSpeed("csr", 1, CodecTime(1, 2, 3), CodecTime(4, 5, 6))
    monkeypatch.setattr(codec_speed, "measure_speed", lambda name, threads: speed)
    monkeypatch.setattr(codec_speed, "thread_counts", lambda name, max_threads: (1,))
    assert codec_speeds(["csr"]) == (speed,)


@pytest.mark.parametrize(
    ("max_threads", "seconds", "found"),
    [
        (1, lambda threads: 1.0, (1,)),
        (2, lambda threads: 1.0, (1,)),  # more threads are no faster
        (2, lambda threads: 1 / threads, (1, 2)),
        (4, lambda threads: 1 / threads, (1, 2, 4)),
        (8, lambda threads: max(1 / threads, 0.2), (1, 2, 5)),  # memory bandwidth is the limit
        (4, lambda threads: threads, (1,)),
    ],
)
def test_thread_counts_are_measured(
    monkeypatch: pytest.MonkeyPatch,
    max_threads: int,
    seconds: Callable[[int], float],
    found: tuple[int, ...],
) -> None:
    monkeypatch.setattr(
        _core,
        "measure_codec",
        lambda *_, threads, repeats: (1, seconds(threads) / 2, seconds(threads) / 2, 0),
    )
    assert codec_speed.thread_counts("zvc", max_threads, size_mib=1) == found


def test_on_many_cores_only_some_counts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(*_: object, threads: int, repeats: int) -> tuple[int, float, float, float]:
        measured.append(threads)
        return 1, max(1 / threads, 1 / 24), 0.0, 0.0

    monkeypatch.setattr(_core, "measure_codec", measure)
    one, _, fastest = codec_speed.thread_counts("zvc", 96, size_mib=1)
    assert one == 1 and fastest >= 16
    assert len(measured) <= 10


def test_codec_options() -> None:
    for codec in (None, "auto", "cswap", "zvc", "rle", "csr"):
        assert codecs.check(codec) == codec
    for wrong in (*codecs.LOSSY, "gzip", ""):
        with pytest.raises(ValueError, match="allowed are 'auto', 'cswap', 'zvc', 'rle'"):
            codecs.check(wrong)


def test_lossy_codecs_need_the_lossy_option() -> None:
    for codec in codecs.LOSSY:
        with pytest.raises(ValueError, match=f"codec '{codec}' is lossy, and needs lossy=True"):
            codecs.check(codec)
    for codec in ("auto", "cswap", "zvc", *codecs.usable_lossy_codecs("auto")):
        assert codecs.check(codec, lossy=True) == codec
    with pytest.raises(ValueError, match="without a codec nothing is encoded"):
        codecs.check(None, lossy=True)
    with pytest.raises(ValueError, match="unknown codec 'gzip': allowed are .*'zfp'"):
        codecs.check("gzip", lossy=True)


def test_without_a_lossy_codec_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codecs, "LOSSY", ("zfp",))
    monkeypatch.setattr(codecs, "find_blosc", lambda: None)
    codecs.load_blosc.cache_clear()
    try:
        for codec in ("auto", "zvc", "zfp"):
            with pytest.raises(ValueError) as error:
                codecs.check(codec, lossy=True)
            assert str(error.value) == (
                "lossy=True: no lossy codec can be used here. zfp: blosc2 is not installed: "
                'pip install "tfswap[codecs]", then install tfswap again'
            )
        assert codecs.check("auto") == "auto"
    finally:
        codecs.load_blosc.cache_clear()


@pytest.mark.parametrize("name", codecs.LOSSY)
def test_lossy_codecs_are_measured_at_several_rates(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if codecs.why_not(name):
        pytest.skip(codecs.why_not(name))
    rates = []
    measure = codec_speed._core.measure_codec

    def measure_codec(data: np.ndarray, codec: str, word: int, rate: int, **more: int) -> object:
        rates.append(rate)
        assert np.count_nonzero(data) == len(data)
        return measure(data, codec, word, rate, **more)

    monkeypatch.setattr(codec_speed._core, "measure_codec", measure_codec)
    speed = measure_speed(name, 1, sizes_mib=(1,))
    assert len(set(rates)) == 3 and max(rates) < 100
    assert speed.encode.ns(1 << 20, 0.5) > 0 and speed.decode.ns(1 << 20, 0.5) > 0
