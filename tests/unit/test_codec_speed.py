from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfswap import codec_speed, codecs
from tfswap.codec_speed import codec_speeds, fitted, measured
from tfswap.far_tier import CodecSpeed, CodecTime


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    codec_speed._speed.cache_clear()
    return tmp_path


amounts = np.array([(1.0, size, size * part) for size in (1e6, 8e6, 64e6) for part in (0.2, 0.8)])


@given(st.floats(0, 1e5), st.floats(0.01, 10), st.floats(0, 10))
def test_the_regression_finds_what_made_the_times(begin: float, byte: float, kept: float) -> None:
    found = fitted(amounts, (amounts @ [begin, byte, kept]).tolist())
    for (_, size, kept_bytes), ns in zip(amounts, amounts @ [begin, byte, kept], strict=True):
        assert found.ns(int(size), kept_bytes / size) == pytest.approx(ns, rel=1e-3, abs=2)


def test_no_factor_is_negative_whatever_the_times() -> None:
    found = fitted(amounts, [5.0, 1.0, 4.0, 1.0, 3.0, 1.0])
    assert min(found.begin_ns, found.byte_ns, found.kept_byte_ns) >= 0


def test_measured_now() -> None:
    speed = measured("zvc", 1, mib=(1, 2))
    assert (speed.name, speed.threads) == ("zvc", 1)
    assert speed.encode.ns(1 << 20, 0.5) > 0 and speed.decode.ns(1 << 20, 0.5) > 0


def test_what_was_measured_is_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CodecSpeed("zvc", 1, CodecTime(1, 2, 3), CodecTime(4, 5, 6))
    calls = []

    def measure(name: str, threads: int) -> CodecSpeed:
        calls.append((name, threads))
        return made

    monkeypatch.setattr(codec_speed, "measured", measure)
    assert codec_speeds(["zvc"]) == (made,)
    codec_speed._speed.cache_clear()  # as another process
    assert codec_speeds(["zvc"]) == (made,)
    assert calls == [("zvc", 1)]
    (file,) = cache.rglob("zvc-1.json")
    for rubbish in ("", "[]", '{"name": "zvc"}', '{"name": 1, "threads": "x", "out": 1, "in": 2}'):
        file.write_text(rubbish)
        codec_speed._speed.cache_clear()
        assert codec_speeds(["zvc"]) == (made,)
    assert len(calls) == 5


def test_without_a_place_to_write_to_it_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    made = CodecSpeed("csr", 2, CodecTime(1, 2, 3), CodecTime(4, 5, 6))
    monkeypatch.setattr(codec_speed, "measured", lambda name, threads: made)
    assert codec_speeds(["csr"], threads=2) == (made,)


def test_options_of_the_callback() -> None:
    for codec in (None, "auto", "cswap", "zvc", "rle", "csr"):
        assert codecs.check(codec) == codec
    for wrong in (*codecs.LOSSY, "gzip", ""):
        with pytest.raises(ValueError, match="allowed are 'auto', 'cswap', 'zvc', 'rle'"):
            codecs.check(wrong)
