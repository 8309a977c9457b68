"""Block floating point: every decoded bit follows the definition, and sizes follow the rate."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tfswap import _core
from tfswap.machine import codecs

HEADER_BYTES = 4
SECTION_BYTES = _core.SECTION_BYTES
BLOCK_BYTES = 2048
MIN_RATE, LOSSLESS_RATE = 11, 100
PATHS = [path for path in ("portable", "avx2", "avx512") if _core.set_codec_path(path)]
BFP, ZVC, STORED = 7, 1, 0


@pytest.fixture(autouse=True)
def fastest_path() -> Iterator[None]:
    yield
    assert _core.set_codec_path(_core.best_codec_path())


def bits_at(rate: int) -> int:
    return min(int(32 * max(rate, MIN_RATE) / 100 - 0.5), 23)


def rounded(values: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Apply the definition, in float64, to finite values in whole groups of 16."""
    groups = values.astype(np.float64).reshape(-1, 16)
    largest = np.abs(groups).max(axis=1, keepdims=True)
    _, exponent = np.frexp(largest)  # largest < 2^exponent
    step = np.exp2(np.maximum(exponent + 1 - bits, -125).astype(np.float64))
    most = 2 ** (bits - 1) - 1
    return (np.clip(np.rint(groups / step), -most, most) * step + 0.0).astype(np.float32).ravel()


def lossy(data: bytes, rate: int) -> tuple[bytes, bytes]:
    """Return the encoded and the decoded section, which are the same on every path."""
    made = set()
    for path in PATHS:
        assert _core.set_codec_path(path)
        section = _core.encode_section(data, "bfp", 4, rate)
        for past_cache in (False, True):
            made.add((section, _core.decode_section(section, len(data), past_cache)))
    ((section, decoded),) = made
    assert decoded is not None
    return section, decoded


@st.composite
def finite_values(draw: st.DrawFn, most: int = SECTION_BYTES // 4) -> NDArray[np.float32]:
    """Draw finite float32 values of all magnitudes, with zeros of both signs."""
    size = draw(st.one_of(st.integers(0, most), st.sampled_from([16, 512, 1024, most])))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "any", "scaled", "small"]))
    if kind == "any":
        values = random.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)
    else:
        values = random.standard_normal(size).astype(np.float32)
    if kind == "scaled":
        values *= np.exp2(random.integers(-140, 120, size // 16 + 1)).repeat(16)[:size]
    elif kind == "small":
        values *= np.float32(2.0) ** draw(st.integers(-149, -100))
    values = np.where(np.isfinite(values), values, 0).astype(np.float32)
    zeros = random.random(size)
    values[zeros < draw(st.sampled_from([0.0, 0.5]))] = 0
    values[zeros < 0.01] = -0.0
    return values


@given(finite_values(), st.integers(MIN_RATE, 99), st.binary(max_size=3))
@settings(max_examples=150, deadline=None)
def test_decoded_values_follow_the_definition(
    values: NDArray[np.float32], rate: int, rest: bytes
) -> None:
    data = (values.tobytes() + rest)[:SECTION_BYTES]
    section, decoded = lossy(data, rate)
    coded = len(data) // BLOCK_BYTES * BLOCK_BYTES
    assert decoded[coded:] == data[coded:]
    if coded == 0:
        assert decoded == data
        return
    source = np.frombuffer(data[:coded], np.float32)
    kept = np.frombuffer(decoded[:coded], np.float32)
    bits = bits_at(rate)
    assert np.array_equal(kept.view(np.uint32), rounded(source, bits).view(np.uint32))
    assert len(section) - HEADER_BYTES - (len(data) - coded) <= coded * rate / 100

    groups = source.astype(np.float64).reshape(-1, 16)
    error = np.abs(groups - kept.reshape(-1, 16))
    bound = np.maximum(np.abs(groups).max(axis=1) * 2.0 ** (1 - bits), 2.0**-126)
    assert (error <= bound[:, None]).all()
    assert np.isin(np.sign(kept) * np.sign(source), (0, 1)).all()
    assert not np.signbit(kept[kept == 0]).any() and (kept[source == 0] == 0).all()


def test_the_error_bound_is_reached() -> None:
    """Values that would round up out of range, and values half a step from the next one."""
    values = np.zeros(512, np.float32)
    values[0] = np.nextafter(np.float32(2), np.float32(0))
    values[16:18] = 1, 2.0**-7  # 7 bits: steps of 2^-5 where the largest is 1
    values[32:35] = 1, 1.5 * 2**-5, 2.5 * 2**-5
    values[48:50] = -1, -0.75 * 2**-5
    _, decoded = lossy(values.tobytes(), 25)
    kept = np.frombuffer(decoded, np.float32)
    assert kept[0] == 63 * 2.0**-5
    assert kept[16:18].tolist() == [1, 0]
    assert kept[32:35].tolist() == [1, 2 * 2**-5, 2 * 2**-5]
    assert kept[48:50].tolist() == [-1, -(2.0**-5)]
    assert np.array_equal(np.frombuffer(lossy((-values).tobytes(), 25)[1], np.float32), -kept)


@pytest.mark.parametrize("rate", range(MIN_RATE, 100))
def test_the_size_follows_the_rate(rate: int) -> None:
    values = np.random.default_rng(2).standard_normal(1 << 17).astype(np.float32)
    encoded = _core.encode(values, "bfp", 4, rate)
    assert encoded is not None
    sections = values.nbytes // SECTION_BYTES
    ratio = (encoded.encoded_bytes - HEADER_BYTES * sections) / values.nbytes
    assert ratio == (bits_at(rate) + 0.5) / 32 <= rate / 100
    assert rate > 74 or ratio > rate / 100 - 1 / 32


def error_at(codec: str, values: NDArray[np.float32], rate: int) -> float:
    encoded = _core.encode(values, codec, 4, rate)
    assert encoded is not None
    return float(np.std(np.frombuffer(encoded.decode(), np.float32) - values))


@pytest.mark.skipif(bool(codecs.why_not("zfp")), reason=codecs.why_not("zfp"))
@pytest.mark.parametrize("rate", [25, 50])
def test_zfp_is_more_exact_only_for_smooth_data(rate: int) -> None:
    dense = np.random.default_rng(1).standard_normal(1 << 18).astype(np.float32)
    assert error_at("bfp", dense, rate) < error_at("zfp", dense, rate)
    smooth = np.sin(np.arange(1 << 18) / 40).astype(np.float32)
    ratio = error_at("bfp", smooth, rate) / error_at("zfp", smooth, rate)
    assert 1 < ratio < 4


def test_the_lowest_and_the_highest_rate() -> None:
    values = np.random.default_rng(2).standard_normal(5000).astype(np.float32)
    data = values.tobytes()
    lowest = _core.encode_section(data, "bfp", 4, MIN_RATE)
    assert _core.encode_section(data, "bfp", 4, 1) == lowest and lowest[0] == BFP
    section, decoded = lossy(data, LOSSLESS_RATE)
    assert decoded == data and section[0] == STORED
    values[::2] = 0
    section, decoded = lossy(values.tobytes(), LOSSLESS_RATE)
    assert decoded == values.tobytes() and section[0] == ZVC
    section, decoded = lossy(data[: BLOCK_BYTES - 1], 50)
    assert decoded == data[: BLOCK_BYTES - 1] and section[0] == STORED


@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 37, 511, 16383])
def test_sections_with_nonfinite_values_are_lossless(wrong: float, place: int) -> None:
    values = np.random.default_rng(4).standard_normal(SECTION_BYTES // 4).astype(np.float32)
    values[::2] = 0
    values[place] = wrong
    section, decoded = lossy(values.tobytes(), 25)
    assert section[0] == ZVC and decoded == values.tobytes()
    values = values[:-511]  # the rest after the last whole block is stored
    values[-1] = wrong
    values[place % 512 :: 512] = 0
    section, decoded = lossy(values.tobytes(), 25)
    assert section[0] == BFP and decoded[-4:] == values[-1:].tobytes()


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Flush denormal numbers to zero in this thread, as TensorFlow does in its own threads."""
    libm = ctypes.CDLL("libm.so.6")
    before = (ctypes.c_uint32 * 8)()  # the last word is MXCSR
    assert libm.fegetenv(before) == 0
    flushed = (ctypes.c_uint32 * 8)(*before)
    flushed[7] |= 0x8040
    libm.fesetenv(flushed)
    try:
        yield
    finally:
        libm.fesetenv(before)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets MXCSR")
def test_flushing_denormals_changes_nothing() -> None:
    random = np.random.default_rng(6)
    values = random.standard_normal(SECTION_BYTES // 4).astype(np.float32)
    values *= np.exp2(random.integers(-149, -90, SECTION_BYTES // 64)).repeat(16).astype(np.float32)
    data = values.tobytes()
    for rate in (11, 25, 50, 74):
        expected = lossy(data, rate)
        with denormals_flushed():
            found = lossy(data, rate)
        assert found == expected


def test_the_number_of_threads_changes_nothing() -> None:
    values = np.random.default_rng(5).standard_normal(900_001).astype(np.float32)
    made = set()
    for threads in (1, 2, 3):
        encoded = _core.encode(values, "bfp", 4, 30, threads=threads)
        assert encoded is not None
        made.add((encoded.encoded_bytes, encoded.decode(threads)))
    assert len(made) == 1


def test_malformed_sections() -> None:
    values = np.random.default_rng(7).standard_normal(1200).astype(np.float32)
    data = values.tobytes()
    section = _core.encode_section(data, "bfp", 4, 25)
    assert section[:HEADER_BYTES] == bytes([BFP, 4, 25, 0])
    assert _core.decode_section(section, len(data)) is not None
    for size in (len(data) - 1, len(data) + 1, BLOCK_BYTES, 0, SECTION_BYTES + 4):
        assert _core.decode_section(section, size) is None
    assert _core.decode_section(section[:-1], len(data)) is None
    assert _core.decode_section(section + b"\0", len(data)) is None
    for at, byte in ((1, 2), (2, 10), (2, 26), (2, 100), (3, 1)):
        changed = bytearray(section)
        changed[at] = byte
        # At 26 percent, values have as many bits as at 25, so the section is valid.
        assert (_core.decode_section(bytes(changed), len(data)) is None) == (byte != 26)
    second_block = HEADER_BYTES + 32 + 7 * 64
    for at in (HEADER_BYTES, HEADER_BYTES + 31, second_block):
        for step in (0, 1, 254, 255):
            changed = bytearray(section)
            changed[at] = step
            assert _core.decode_section(bytes(changed), len(data)) is None
