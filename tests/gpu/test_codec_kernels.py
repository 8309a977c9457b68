"""The kernels of the GPU's codecs on the CPU, with checks; needs neither a GPU nor CUDA.

Their source is compiled for the CPU (`simt`), where threads take turns at random.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import far_blocks
import numpy as np
import pytest
from far_blocks import SECTION_BYTES, Bytes, runs, values
from hypothesis import given, settings
from hypothesis import strategies as st
from simt import build

from tfswap.ops.gpu_codecs import NAMES, Launch

MIB = 1 << 20
GUARD_BYTES = 256
GUARD = 0xA5
ENCODING, DECODING = Launch(3, 128), Launch(2, 64)

codecs_and_sizes = pytest.mark.parametrize(
    ("codec", "element_bytes"), [(codec, size) for codec in NAMES for size in (4, 2)]
)


def aligned(size_bytes: int, fill: int) -> Bytes:
    """Return line-aligned memory of the emulated GPU or host."""
    room = np.full(size_bytes + far_blocks.LINE_BYTES, fill, np.uint8)
    begin = -room.ctypes.data % far_blocks.LINE_BYTES
    return room[begin : begin + size_bytes]


class KernelsOnCpu:
    """The kernels, in a library that runs them on the CPU.

    Checks that a kernel does not write outside of its outputs.
    """

    def __init__(self, path: Path) -> None:
        self._launch = ctypes.CDLL(str(path)).simt_launch
        self._tally = aligned(24, 0)

    def run(
        self, name: str, launch: Launch, seed: int, *arguments: Bytes | int, threads: int = 1
    ) -> None:
        values = [
            ctypes.c_uint64(each if isinstance(each, int) else each.ctypes.data)
            for each in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
        found = self._launch(name.encode(), launch.blocks, launch.threads, seed, threads, pointers)
        assert found == 0, f"no kernel {name}"

    def encode(
        self,
        codec: str,
        element_bytes: int,
        source: Bytes,
        launch: Launch = ENCODING,
        seed: int = 1,
        threads: int = 1,
    ) -> Bytes:
        """Encode into a far block, and return all of it."""
        room = far_blocks.most_bytes(source.size)
        block = aligned(room + GUARD_BYTES, GUARD)
        tensor = aligned(source.size, 0)
        tensor[:] = source
        kernel = f"tfswap_encode_{codec}_{8 * element_bytes}"
        told = aligned(8, 0)
        arguments = (tensor, source.size, block, self._tally, told)
        self.run(kernel, launch, seed, *arguments, threads=threads)
        assert told.view(np.uint64)[0] == far_blocks.header_of(block).far_bytes
        assert (block[room:] == GUARD).all()
        np.testing.assert_array_equal(tensor, source)
        assert not self._tally.any()  # as the next launch needs it
        return block[:room]

    def decode(
        self,
        codec: str,
        element_bytes: int,
        block: Bytes,
        size_bytes: int,
        launch: Launch = DECODING,
        seed: int = 1,
    ) -> Bytes:
        tensor = aligned(size_bytes + GUARD_BYTES, GUARD)
        kernel = f"tfswap_decode_{codec}_{8 * element_bytes}"
        self.run(kernel, launch, seed, block, size_bytes, tensor)
        assert (tensor[size_bytes:] == GUARD).all()
        return tensor[:size_bytes]

    def count_zeros(
        self, element_bytes: int, source: Bytes, every: int, launch: Launch
    ) -> tuple[int, int]:
        tensor, count = aligned(source.size, 0), aligned(16, GUARD)
        tensor[:] = source
        kernel = f"tfswap_count_zeros_{8 * element_bytes}"
        self.run(kernel, launch, 1, tensor, source.size, every, count, self._tally)
        zeros, elements = count.view(np.uint64)
        return int(zeros), int(elements)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> KernelsOnCpu:
    return KernelsOnCpu(build.library(tmp_path_factory.mktemp("simt")))


# All codecs, for zero to several sections: whole ones, and remainders of each kind.
SIZES = (0, 1, 2, 31, 32, 33, 1000, 4095, 4096, 4097, 8191, 8192, 8193, 20_001)


@codecs_and_sizes
@pytest.mark.parametrize("elements", SIZES)
def test_every_bit_is_restored(
    kernels: KernelsOnCpu, codec: str, element_bytes: int, elements: int
) -> None:
    for zeros in (0.0, 0.2, 0.5, 0.8, 0.99, 1.0):
        source = values(elements, element_bytes, zeros, seed=elements)
        block = kernels.encode(codec, element_bytes, source)
        np.testing.assert_array_equal(far_blocks.decoded(block), source)
        back = kernels.decode(codec, element_bytes, block, source.size)
        np.testing.assert_array_equal(back, source)
        header = far_blocks.header_of(block)
        assert (header.codec, header.word_bytes) == (codec, element_bytes)
        assert header.zero_words == (source.view(f"u{element_bytes}") == 0).sum()


@codecs_and_sizes
def test_megabytes_come_back_from_any_launch(
    kernels: KernelsOnCpu, codec: str, element_bytes: int
) -> None:
    launches = [Launch(1, 1024), Launch(16, 256), Launch(5, 96), Launch(300, 32)]
    source = np.concatenate(
        [values(MIB // 2, element_bytes, 0.6), runs(123_457, element_bytes), np.zeros(MIB, "u1")]
    )
    blocks = [
        kernels.encode(codec, element_bytes, source, launch, seed)
        for seed, launch in enumerate(launches, 1)
    ]
    for block, launch in zip(blocks, reversed(launches), strict=True):
        back = kernels.decode(codec, element_bytes, block, source.size, launch)
        np.testing.assert_array_equal(back, source)
    np.testing.assert_array_equal(far_blocks.decoded(blocks[-1]), source)
    # Sections may be in any order, but their bytes must be equal.
    assert len({far_blocks.header_of(block).far_bytes for block in blocks}) == 1
    # Blocks that run concurrently.
    block = kernels.encode(codec, element_bytes, source, Launch(8, 64), threads=4)
    np.testing.assert_array_equal(far_blocks.decoded(block), source)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_bytes_any_launch(kernels: KernelsOnCpu, data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(NAMES))
    element_bytes = data.draw(st.sampled_from((4, 2)))
    size_bytes = data.draw(st.integers(0, 3 * SECTION_BYTES + 100))
    elements = size_bytes // element_bytes + 1
    seed = data.draw(st.integers(0, 1000))
    make = data.draw(st.sampled_from(("values", "runs")))
    made = (
        values(elements, element_bytes, data.draw(st.floats(0, 1)), seed)
        if make == "values"
        else runs(elements, element_bytes, seed)
    )
    source = made[:size_bytes]  # the last element may be cut
    launches = [
        Launch(data.draw(st.integers(1, 5)), 32 * data.draw(st.integers(1, 9))) for _ in range(2)
    ]
    block = kernels.encode(codec, element_bytes, source, launches[0], seed + 1)
    np.testing.assert_array_equal(far_blocks.decoded(block), source)
    back = kernels.decode(codec, element_bytes, block, size_bytes, launches[1], seed + 2)
    np.testing.assert_array_equal(back, source)


@codecs_and_sizes
def test_zero_is_the_value_without_set_bits(
    kernels: KernelsOnCpu, codec: str, element_bytes: int
) -> None:
    type_ = np.float32 if element_bytes == 4 else np.float16
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, np.finfo(type_).tiny / 2], type_)
    source = np.tile(np.concatenate([special, np.zeros(9, type_)]), 600)
    bits = source.view(f"u{element_bytes}")
    # All kinds of NaNs: quiet and signalling, of either sign, with different payloads.
    nan_bits = {4: (0x7F800001, 0x7FC01234, 0xFF812345), 2: (0x7C01, 0x7E12, 0xFD23)}[element_bytes]
    bits[3::16] = np.resize(nan_bits, bits[3::16].size)
    block = kernels.encode(codec, element_bytes, source.view(np.uint8))
    back = kernels.decode(codec, element_bytes, block, source.nbytes)
    np.testing.assert_array_equal(back.view(bits.dtype), bits)
    zeros = far_blocks.header_of(block).zero_words
    assert zeros == (bits == 0).sum() < (source == 0).sum()


@codecs_and_sizes
def test_incompressible_sections_are_stored(
    kernels: KernelsOnCpu, codec: str, element_bytes: int
) -> None:
    source = values(5 * SECTION_BYTES // element_bytes, element_bytes, 0.0)
    source[SECTION_BYTES : 2 * SECTION_BYTES] = 0
    block = kernels.encode(codec, element_bytes, source)
    places = far_blocks.places_of(block, source.size)
    sizes = [stored for _, stored in places]
    # rle stores the begin of the only run, which is more than zero bytes.
    assert sizes == [SECTION_BYTES, 0] + [SECTION_BYTES] * 3
    used = far_blocks.header_of(block).far_bytes
    assert used == far_blocks.sections_begin(source.size) + 4 * SECTION_BYTES
    assert used <= far_blocks.most_bytes(source.size)
    worst = kernels.encode(codec, element_bytes, np.full(source.size, 255, np.uint8))
    assert far_blocks.header_of(worst).far_bytes == far_blocks.most_bytes(source.size)


def test_encoded_sizes(kernels: KernelsOnCpu) -> None:
    """The index takes one bit per element (zvc), 2 bytes per run (rle) or per value (csr)."""
    size_bytes = 64 * SECTION_BYTES
    for element_bytes in (4, 2):
        elements = size_bytes // element_bytes
        source = values(elements, element_bytes, 0.7)
        bits = source.view(f"u{element_bytes}")
        share = (bits != 0).mean()
        expected = {
            "zvc": share + 1 / 8 / element_bytes,
            "csr": share * (1 + 2 / element_bytes),
            "rle": share + 2 / element_bytes * 2 * share * (1 - share),
        }
        for codec in NAMES:
            block = kernels.encode(codec, element_bytes, source)
            part = far_blocks.header_of(block).far_bytes / size_bytes
            assert part == pytest.approx(min(expected[codec], 1.0), abs=0.005), codec


@codecs_and_sizes
def test_damaged_far_blocks_are_refused(
    kernels: KernelsOnCpu, codec: str, element_bytes: int
) -> None:
    """Decoding damaged blocks writes nothing else, and detects contradictions."""
    source = values(3 * SECTION_BYTES // element_bytes, element_bytes, 0.6)
    block = kernels.encode(codec, element_bytes, source)
    table = far_blocks.HEADER_BYTES
    for changed, word in ((table, 0xFFFFFFFF), (table, 0), (table + 4, 0x7FFFFFFF)):
        damaged = aligned(block.size, 0)
        damaged[:] = block
        damaged[changed : changed + 4].view(np.uint32)[0] = word
        back = kernels.decode(codec, element_bytes, damaged, source.size)
        assert (back[:SECTION_BYTES] == 255).all()
        np.testing.assert_array_equal(back[SECTION_BYTES:], source[SECTION_BYTES:])
    dice = np.random.default_rng(0)
    for _ in range(20):
        damaged = aligned(block.size, 0)
        damaged[:] = block
        damaged[table:] = np.where(
            dice.random(block.size - table) < 0.02,
            dice.integers(0, 256, block.size - table, dtype=np.uint8),
            block[table:],
        )
        kernels.decode(
            codec, element_bytes, damaged, source.size
        )  # checks that nothing else is written


@pytest.mark.parametrize("element_bytes", [4, 2])
@pytest.mark.parametrize("launch", [Launch(1, 32), Launch(4, 96), Launch(40, 1024)])
def test_zeros_are_counted(kernels: KernelsOnCpu, element_bytes: int, launch: Launch) -> None:
    for size_bytes in (0, 2, 4, 30, 4096, 4098, 100_000, 1_000_003):
        source = values(size_bytes // element_bytes + 1, element_bytes, 0.4)[:size_bytes]
        elements = source[: size_bytes // element_bytes * element_bytes].view(f"u{element_bytes}")
        for every in (1, 3, 50):
            looked_at = np.arange(elements.size) // (4096 // element_bytes) % every == 0
            expected = (elements[looked_at] == 0).sum(), looked_at.sum()
            assert kernels.count_zeros(element_bytes, source, every, launch) == expected


# A sanitizer detects unordered threads, and every barrier is needed.


def made_race_check(folder: Path, cc: Path = build.CC) -> Path:
    probe = ["g++", "-fsanitize=thread", "-x", "c++", "-", "-o", str(folder / "probe")]
    if subprocess.run(probe, input=b"int main() {}", capture_output=True).returncode != 0:
        pytest.skip("g++ has no thread sanitizer here")
    if subprocess.run([folder / "probe"], capture_output=True).returncode != 0:
        pytest.skip("the thread sanitizer does not run here")
    return build.race_check(folder, cc)


def races(check: Path, codec: str, element_bytes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [check, codec, str(8 * element_bytes)],
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.slow
def test_no_data_races(tmp_path: Path) -> None:
    check = made_race_check(tmp_path)
    for codec in NAMES:
        for element_bytes in (4, 2):
            ran = races(check, codec, element_bytes)
            assert ran.returncode == 0, ran.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["__syncthreads();", "__pipeline_wait_prior(0);"])
def test_every_barrier_is_needed(tmp_path: Path, order: str) -> None:
    source = (build.CC / "cuda" / "codec_kernels.cu").read_text()
    found = list(re.finditer(re.escape(order), source))
    assert len(found) >= 3
    for each in found:
        without = tmp_path / "cc" / "cuda" / "codec_kernels.cu"
        without.parent.mkdir(parents=True, exist_ok=True)
        without.write_text(source[: each.start()] + ";" + source[each.end() :])
        check = made_race_check(tmp_path, tmp_path / "cc")
        line = source.count("\n", 0, each.start()) + 1
        noticed = any(races(check, codec, size).returncode for codec in NAMES for size in (4, 2))
        assert noticed, f"{order} in line {line}"
