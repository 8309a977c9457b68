"""Codecs of far memory: round trips, sizes, and malformed sections."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tfswap import _core
from tfswap.machine import codecs

HEADER_BYTES = 4
SECTION_BYTES = _core.SECTION_BYTES
SPARSE = ("zvc", "rle", "csr")
PATHS = ("portable", "avx2", "avx512")
HERE = [codec for codec in codecs.LOSSLESS if not codecs.why_not(codec)]
LOSSY_HERE = [codec for codec in codecs.LOSSY if not codecs.why_not(codec)]
needs_zfp = pytest.mark.skipif("zfp" not in LOSSY_HERE, reason=codecs.why_not("zfp"))


@pytest.fixture(autouse=True)
def fastest_path() -> Iterator[None]:
    yield
    assert _core.set_codec_path(_core.best_codec_path())


def paths_here() -> list[str]:
    here = [path for path in PATHS if _core.set_codec_path(path)]
    _core.set_codec_path(_core.best_codec_path())
    return here


def most_bytes(size: int) -> int:
    sections = -(-size // SECTION_BYTES)
    return size + HEADER_BYTES * sections


@st.composite
def buffers(draw: st.DrawFn, most: int = 200_000) -> bytes:
    """Draw any bytes, or words with runs of zeros; many lengths are at block boundaries."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=600))
    boundary = st.sampled_from([128, 4096, SECTION_BYTES, 2 * SECTION_BYTES])
    size = draw(
        st.one_of(st.integers(0, most), boundary.map(lambda n: n - 1), boundary, st.integers(0, 70))
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    word_bytes = draw(st.sampled_from([1, 2, 4]))
    run = draw(st.sampled_from([1, 2, 3, 40, 5000]))
    zeros = draw(st.sampled_from([0.0, 0.02, 0.3, 0.5, 0.9, 0.999, 1.0]))
    words = random.integers(1, 256, (size // word_bytes + 1, word_bytes), dtype=np.uint8)
    runs = random.random(len(words) // run + 1) < zeros
    words[np.repeat(runs, run)[: len(words)]] = 0
    return words.tobytes()[:size]


elements = st.sampled_from([1, 2, 4, 8])


def check(data: bytes, codec: str, element_bytes: int, threads: int) -> int:
    encoded = _core.encode(data, codec, element_bytes, threads=threads)
    assert encoded is not None
    assert encoded.decode(threads) == data
    assert encoded.encoded_bytes <= most_bytes(len(data))
    return encoded.encoded_bytes


@given(buffers(), st.sampled_from(["stored", *HERE]), elements)
@settings(max_examples=200, deadline=None)
def test_lossless_round_trips(data: bytes, codec: str, element_bytes: int) -> None:
    check(data, codec, element_bytes, 1)


@given(buffers(most=SECTION_BYTES), st.sampled_from(SPARSE), elements, st.booleans())
@settings(max_examples=200, deadline=None)
def test_all_paths_make_the_same_bytes(
    data: bytes, codec: str, element_bytes: int, past_cache: bool
) -> None:
    data = data[:SECTION_BYTES]
    _core.set_codec_path("portable")
    expected = _core.encode_section(data, codec, element_bytes)
    for path in paths_here():
        assert _core.set_codec_path(path)
        assert _core.encode_section(data, codec, element_bytes) == expected
        assert _core.decode_section(expected, len(data), past_cache) == data
        words = np.frombuffer(data[: len(data) // 4 * 4], np.uint32)
        assert _core.count_zero_words(data, 4) == np.count_nonzero(words == 0)
        halves = np.frombuffer(data[: len(data) // 2 * 2], np.uint16)
        assert _core.count_zero_words(data, 2) == np.count_nonzero(halves == 0)


def large(kind: str) -> NDArray[np.float32]:
    random = np.random.default_rng(5)
    values = random.standard_normal(900_001).astype(np.float32)
    if kind == "sparse":
        values[random.random(values.size) < 0.5] = 0
    elif kind == "zeros":
        values[:] = 0
    return values


@pytest.mark.parametrize("kind", ["dense", "sparse", "zeros"])
@pytest.mark.parametrize("codec", HERE)
def test_the_number_of_threads_does_not_change_the_size(codec: str, kind: str) -> None:
    data = large(kind).tobytes()
    assert len({check(data, codec, 4, threads) for threads in (1, 2, 3)}) == 1


def test_the_size_of_zeros() -> None:
    values = large("sparse")
    zeros = np.count_nonzero(values == 0) / values.size
    size = check(values.tobytes(), "zvc", 4, 1) / values.nbytes
    assert size == pytest.approx(1 - zeros + 1 / 32, abs=1e-3)
    size = check(values.tobytes(), "csr", 4, 1) / values.nbytes
    assert size == pytest.approx((1 - zeros) * 1.5, abs=1e-3)
    values[1::3] = values[::3] = 1  # single zeros do not shrink as runs
    assert check(values.tobytes(), "rle", 4, 1) == most_bytes(values.nbytes)
    assert _core.sparsity(values) == pytest.approx(np.count_nonzero(values == 0) / values.size)
    assert _core.sparsity(values, every=4) == pytest.approx(_core.sparsity(values), abs=0.01)
    assert check(large("zeros").tobytes(), "zvc", 4, 1) < values.nbytes / 31
    for codec in ("rle", "csr"):
        assert check(large("zeros").tobytes(), codec, 4, 1) < values.nbytes / 4000


@pytest.mark.parametrize("codec", HERE)
def test_negative_zeros_and_nans_are_kept(codec: str) -> None:
    words = np.array([0, 0x80000000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0] * 5000, np.uint32)
    check(words.tobytes(), codec, 4, 1)
    assert _core.count_zero_words(words) == 10_000
    check(words.tobytes(), codec, 2, 1)


def test_incompressible_data_is_stored() -> None:
    data = np.random.default_rng(1).bytes(SECTION_BYTES)
    for codec in HERE:
        section = _core.encode_section(data, codec, 4)
        assert section[HEADER_BYTES:] == data and section[0] == 0


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("codec", ["stored", *HERE])
def test_sections_are_split_at_chunk_ends(codec: str, threads: int) -> None:
    data = large("sparse").tobytes() + large("dense").tobytes()
    for chunk_bytes in (SECTION_BYTES + HEADER_BYTES, SECTION_BYTES + 1001, 1 << 20):
        encoded = _core.encode(data, codec, threads=threads, chunk_bytes=chunk_bytes)
        assert encoded is not None and encoded.decode(threads) == data
        # Each chunk wastes less than a header at its end, and each thread leaves one partly full.
        used = encoded.encoded_bytes + (HEADER_BYTES - 1) * encoded.chunks
        assert encoded.chunks <= -(-used // chunk_bytes) + threads


@pytest.mark.parametrize("threads", [1, 2])
def test_with_too_few_chunks_all_are_released(threads: int) -> None:
    data = large("dense")
    # Raises if a chunk is not released.
    assert _core.encode(data, "zvc", threads=threads, most_chunks=5) is None
    needed = _core.encode(data, "zvc", threads=1)
    assert needed is not None
    assert _core.encode(data, "zvc", threads=1, most_chunks=needed.chunks) is not None
    assert _core.encode(data, "zvc", threads=1, most_chunks=needed.chunks - 1) is None
    assert _core.encode(b"", "zvc", most_chunks=0) is not None


def mutated(draw: st.DrawFn, section: bytes) -> bytes:
    data = bytearray(section)
    for _ in range(draw(st.integers(1, 8))):
        where = draw(st.one_of(st.integers(0, 60), st.integers(0, max(len(data) - 1, 0))))
        if where < len(data):
            data[where] = draw(st.integers(0, 255))
    cut = draw(st.sampled_from([0, 0, 0, 1, 2, 4, 100]))
    return bytes(data[: len(data) - cut]) + draw(st.binary(max_size=4))


@st.composite
def mutated_sections(draw: st.DrawFn) -> tuple[bytes, int]:
    data = draw(buffers(most=SECTION_BYTES))[:SECTION_BYTES]
    codec = draw(st.sampled_from([*HERE, *LOSSY_HERE]))
    element_bytes = 4 if codec in codecs.LOSSY else draw(elements)
    section = _core.encode_section(data, codec, element_bytes, draw(st.integers(1, 100)))
    return mutated(draw, section), max(0, len(data) + draw(st.sampled_from([0, 0, 0, 1, -1, 64])))


@given(mutated_sections())
@settings(max_examples=600, deadline=None)
def test_mutated_sections_are_rejected_or_decoded(case: tuple[bytes, int]) -> None:
    section, size = case
    for path in paths_here():
        _core.set_codec_path(path)
        decoded = _core.decode_section(section, size)
        assert decoded is None or len(decoded) == size


@given(st.integers(0, 9), st.sampled_from([2, 4]), st.binary(max_size=300), st.integers(0, 400))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_rejected_or_decoded(
    codec: int, element_bytes: int, body: bytes, size: int
) -> None:
    for head in (bytes([codec, element_bytes, 100, 0]), b""):
        decoded = _core.decode_section(head + body, size)
        assert decoded is None or len(decoded) == size


def test_malformed_sections() -> None:
    data = np.array([0, 1, 0, 0, 2] * 7, np.uint32).tobytes()
    zvc = _core.encode_section(data, "zvc")
    assert _core.decode_section(zvc, len(data)) == data
    assert _core.decode_section(zvc[:3], len(data)) is None
    assert _core.decode_section(zvc[:-4], len(data)) is None  # fewer values than bits
    assert _core.decode_section(zvc, len(data) + 400) is None
    assert _core.decode_section(zvc, len(data) - 8) is None  # the last value is past the end
    beyond = bytearray(zvc)
    beyond[8], beyond[11] = beyond[8] & (beyond[8] - 1), 0x80  # a bit for a word past the end
    assert _core.decode_section(bytes(beyond), len(data)) is None
    rle = bytearray(_core.encode_section(data, "rle"))
    rle[4:8] = b"\xff\xff\xff\xff"
    assert _core.decode_section(bytes(rle), len(data)) is None
    sparse = bytes(400) + b"\x01\x00\x00\x00"
    csr = bytearray(_core.encode_section(sparse, "csr"))
    csr[8:10] = (101).to_bytes(2, "little")
    assert _core.decode_section(bytes(csr), len(sparse)) is None
    unknown = bytes([len(codecs.NAMES) + 1]) + zvc[1:]
    assert _core.decode_section(unknown, len(data)) is None


@needs_zfp
@pytest.mark.parametrize("rate_percent", [10, 25, 50, 75])
def test_zfp_size_and_error(rate_percent: int) -> None:
    random = np.random.default_rng(2)
    values = random.standard_normal(1 << 18).astype(np.float32)
    encoded = _core.encode(values, "zfp", 4, rate_percent)
    assert encoded is not None
    assert encoded.encoded_bytes / values.nbytes == pytest.approx(rate_percent / 100, abs=2e-3)
    decoded = np.frombuffer(encoded.decode(), np.float32)
    error = np.abs(decoded - values).max() / np.abs(values).max()
    # Each bit of a value halves the error; some bits belong to the exponent and the transform.
    assert error < 2.0 ** (4 - 0.32 * rate_percent)
    assert error > 0


@pytest.mark.parametrize("codec", LOSSY_HERE)
def test_sections_with_nonfinite_values_are_lossless(codec: str) -> None:
    values = np.random.default_rng(3).standard_normal(3 * SECTION_BYTES // 4).astype(np.float32)
    second = slice(SECTION_BYTES // 4, 2 * SECTION_BYTES // 4)
    words = values.view(np.uint32)
    words[SECTION_BYTES // 4 + 7] = 0x7FC12345  # a NaN with a payload
    words[SECTION_BYTES // 4 + 9] = 0x80000000
    encoded = _core.encode(values, codec, 4, 50)
    assert encoded is not None
    decoded = np.frombuffer(encoded.decode(), np.uint32)
    assert np.array_equal(decoded[second], words[second])
    close = np.isfinite(values)
    assert np.allclose(decoded.view(np.float32)[close], values[close], atol=2e-3)
    values[second] = np.inf
    encoded = _core.encode(values, codec, 4, 50)
    assert encoded is not None
    decoded = np.frombuffer(encoded.decode(), np.uint32)
    assert np.array_equal(decoded[second], words[second])


@needs_zfp
@given(st.integers(0, 5000), st.integers(1, 100))
@settings(max_examples=60, deadline=None)
def test_zfp_of_any_length(size: int, rate_percent: int) -> None:
    data = np.arange(size // 4 + 1, dtype=np.float32).tobytes()[:size]
    encoded = _core.encode(data, "zfp", 4, rate_percent)
    assert encoded is not None and encoded.encoded_bytes <= most_bytes(size)
    decoded = encoded.decode()
    assert len(decoded) == size
    assert size < 1024 and decoded == data or rate_percent < 60 or close(decoded, data)


def close(a: bytes, b: bytes) -> bool:
    words = len(b) // 4 * 4
    return a[words:] == b[words:] and np.allclose(
        np.frombuffer(a[:words], np.float32), np.frombuffer(b[:words], np.float32), atol=0.1
    )


@pytest.mark.parametrize("codec", LOSSY_HERE)
def test_lossy_codecs_are_for_float32_only(codec: str) -> None:
    assert f"{codec} encodes float32 only" in codecs.why_not(codec, 2)
    assert codec not in codecs.available(2) and codec in codecs.available(4)
    with pytest.raises(ValueError, match="these elements have 2 bytes; allowed for them are zvc"):
        _core.encode(b"", codec, 2, 50)
    for rate in (0, 101):
        with pytest.raises(
            ValueError, match=f"rate of {codec} must be from 1 to 100 percent; got {rate}"
        ):
            _core.encode(b"", codec, 4, rate)


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ValueError, match="unknown codec 'gzip': allowed are stored, zvc, rle"):
        _core.encode(b"", "gzip")
    with pytest.raises(ValueError, match="unknown codec 'gzip': allowed are zvc, rle, csr, lz4"):
        codecs.why_not("gzip")
    with pytest.raises(ValueError, match="contiguous"):
        _core.encode(np.zeros((4, 4), np.float32)[:, ::2], "zvc")
    with pytest.raises(ValueError, match="chunks need at least 65540 bytes, not 4096"):
        _core.encode(b"", "zvc", chunk_bytes=4096)
    assert not _core.set_codec_path("sse9")
    assert _core.codec_path() == _core.best_codec_path()


def test_without_blosc2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "find_blosc", lambda: None)
    fault = codecs.load_blosc.__wrapped__()
    assert fault.startswith('blosc2 is not installed: pip install "tfswap[codecs]"')
    monkeypatch.setattr(codecs, "load_blosc", lambda: fault)
    assert codecs.available() == (*SPARSE, "bfp")
    assert codecs.why_not("lz4") == fault
