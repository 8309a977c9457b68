"""The GPU's codecs end to end, on a real or a simulated GPU.

`test_codec_kernels` tests their kernels thread by thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import far_blocks
import numpy as np
import pytest
import tensorflow as tf
from far_blocks import Bytes, values

from tfswap.ops import library
from tfswap.ops.gpu_codecs import NAMES, Launch
from tfswap.ops.loaded_library import LibraryError

pytest.importorskip("benchmarks.gpu_check")

from benchmarks.gpu_check.driver import Driver

TREE = Path(__file__).resolve().parents[2]
KIB, MIB = 1 << 10, 1 << 20
DEFAULT = Launch()
PORTABLE_AND_MAPPED = 3  # CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP

codecs_and_sizes = pytest.mark.parametrize(
    ("codec", "element_bytes"), [(codec, size) for codec in NAMES for size in (4, 2)]
)


# The output of nvcc.


def test_the_machine_code_is_for_the_gpus_and_the_ptx_for_older_drivers() -> None:
    fatbin = library.NATIVE / "codec_kernels.fatbin"
    if not fatbin.exists():
        pytest.skip("built without nvcc")
    text = fatbin.with_suffix(".ptx").read_text()
    assert re.search(r"^\.version 7\.0$", text, re.MULTILINE)
    assert re.search(r"^\.target sm_80$", text, re.MULTILINE)
    data = fatbin.read_bytes()
    magic, _, head_bytes, _ = struct.unpack_from("<IHHQ", data)
    assert magic == 0xBA55ED50
    entries, at = set(), head_bytes
    while at < len(data):
        kind, _, head_bytes, size_bytes = struct.unpack_from("<HHIQ", data, at)
        (architecture,) = struct.unpack_from("<I", data, at + 28)
        entries.add(({1: "ptx", 2: "code"}[kind], architecture))
        body = data[at + head_bytes : at + head_bytes + size_bytes]
        for codec in NAMES:
            for bits in (32, 16):
                for way in ("encode", "decode"):
                    assert f"tfswap_{way}_{codec}_{bits}".encode() in body
        at += head_bytes + size_bytes
    assert entries == {("code", 80), ("code", 90), ("ptx", 80)}


# On a GPU.

needs_gpu = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")
on_fake_gpu = pytest.mark.skipif(os.environ.get("TEST_GPU") == "real", reason="asks the fake GPU")


class Gpu:
    """The driver and the codecs of its first GPU."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.driver.enter_context()
        self.streams = [self.driver.stream() for _ in range(2)]
        assert self.streams[0].value is not None
        self.codecs = library.load().gpu_codecs(self.streams[0].value)
        self._pinned: list[Bytes] = []

    def pinned(self, size_bytes: int) -> Bytes:
        """Allocate memory from the system and pin it, like far memory."""
        memory = np.frombuffer(mmap.mmap(-1, size_bytes), np.uint8)
        address, size = memory.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(size_bytes)
        self.driver.call("cuMemHostRegister_v2", address, size, PORTABLE_AND_MAPPED)
        self._pinned.append(memory)  # while the GPU may use it
        return memory


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    library.load()
    if not (library.NATIVE / "codec_kernels.fatbin").exists():
        pytest.skip("built without nvcc")
    made = Gpu()
    yield made
    del made.codecs


@needs_gpu
@codecs_and_sizes
def test_tensors_of_a_gpu_go_to_pinned_memory_and_come_back(
    gpu: Gpu, codec: str, element_bytes: int
) -> None:
    driver, codecs = gpu.driver, gpu.codecs
    size_bytes = 600 * KIB + 2 * element_bytes
    there, other = (driver.device_memory(size_bytes) for _ in range(2))
    assert there.value is not None and other.value is not None
    room = codecs.max_bytes(size_bytes)
    assert room == far_blocks.most_bytes(size_bytes)
    block, host, back = gpu.pinned(room), gpu.pinned(size_bytes), gpu.pinned(size_bytes)
    out, into = gpu.streams
    assert out.value is not None and into.value is not None
    event, size = driver.event(), ctypes.c_size_t(size_bytes)
    for zeros, launch in ((0.0, Launch(4, 256)), (0.6, Launch(16, 64)), (1.0, Launch())):
        host[:] = values(size_bytes // element_bytes, element_bytes, zeros)
        driver.call("cuMemcpyHtoDAsync_v2", there, host.ctypes.data_as(ctypes.c_void_p), size, out)
        codecs.encode(
            codec, element_bytes, there.value, size_bytes, block.ctypes.data, out.value, launch
        )
        driver.call("cuEventRecord", event, out)
        driver.call("cuStreamWaitEvent", into, event, 0)
        codecs.decode(codec, element_bytes, other.value, size_bytes, block.ctypes.data, into.value)
        driver.call("cuMemcpyDtoHAsync_v2", back.ctypes.data_as(ctypes.c_void_p), other, size, into)
        driver.call("cuStreamSynchronize", into)
        np.testing.assert_array_equal(back, host)
        np.testing.assert_array_equal(far_blocks.decoded(block), host)
        header = far_blocks.header_of(block)
        assert codecs.encoded_bytes(block.ctypes.data) == header.far_bytes
        zero = (host.view(f"u{element_bytes}") == 0).sum()
        assert codecs.zero_elements(block.ctypes.data) == zero
        count = gpu.pinned(16)
        codecs.count_zeros(element_bytes, there.value, size_bytes, 1, count.ctypes.data, out.value)
        driver.call("cuStreamSynchronize", out)
        assert tuple(count.view(np.uint64)) == (zero, size_bytes // element_bytes)


@needs_gpu
@on_fake_gpu
def test_the_host_waits_for_nothing(gpu: Gpu) -> None:
    waits = ctypes.CDLL("libcuda.so.1").fake_cuda_synchronizations
    there, block = gpu.driver.device_memory(MIB), gpu.pinned(gpu.codecs.max_bytes(MIB))
    assert there.value is not None
    before = waits()
    for stream in gpu.streams:
        gpu.codecs.encode("zvc", 4, there.value, MIB, block.ctypes.data, stream.value or 0)
        gpu.codecs.decode("zvc", 4, there.value, MIB, block.ctypes.data, stream.value or 0)
        assert waits() == before
        gpu.driver.call("cuStreamSynchronize", stream)
        before = waits()


@needs_gpu
def test_invalid_arguments_are_refused(gpu: Gpu) -> None:
    there, block = gpu.driver.device_memory(MIB), gpu.pinned(gpu.codecs.max_bytes(MIB))
    stream = gpu.streams[0].value or 0

    def encode(
        codec: str = "zvc", size: int = 4, moved: int = 0, far: int = 0, launch: Launch = DEFAULT
    ) -> None:
        address = (there.value or 0) + moved
        far_block = block.ctypes.data + far
        gpu.codecs.encode(codec, size, address, 1000, far_block, stream, launch)

    for refused, text in (
        ({"codec": "zip"}, "no codec 'zip' on the GPU; allowed are zvc, rle, csr, lz4 and ans"),
        ({"codec": "lz4"}, "lz4 on the GPU requires nvCOMP, which is not loaded"),
        ({"size": 8}, "elements of 4 and 2 bytes; got 8"),
        ({"moved": 8}, "tensors aligned to 16"),
        ({"far": 64}, "far memory aligned to 128"),
        ({"launch": Launch(0, 64)}, "got 0 blocks of 64"),
        ({"launch": Launch(4, 48)}, "got 4 blocks of 48"),
        ({"launch": Launch(4, 2048)}, "got 4 blocks of 2048"),
    ):
        with pytest.raises(LibraryError, match=re.escape(text)):
            encode(**refused)  # type: ignore[arg-type]
    encode()
    gpu.driver.call("cuStreamSynchronize", gpu.streams[0])


@needs_gpu
def test_a_limited_number_of_streams_may_encode_at_once(gpu: Gpu) -> None:
    there, block = gpu.driver.device_memory(MIB), gpu.pinned(gpu.codecs.max_bytes(1000))
    assert there.value is not None
    streams = [gpu.driver.stream() for _ in range(17)]
    codecs = library.load().gpu_codecs(streams[0].value or 0)
    for stream in streams[:16]:
        codecs.encode("zvc", 4, there.value, 1000, block.ctypes.data, stream.value or 0)
        gpu.driver.call("cuStreamSynchronize", stream)
    with pytest.raises(LibraryError, match="at most 16 streams"):
        codecs.encode("zvc", 4, there.value, 1000, block.ctypes.data, streams[16].value or 0)


@needs_gpu
def test_without_kernels_the_error_says_what_to_build(gpu: Gpu, tmp_path: Path) -> None:
    with pytest.raises(LibraryError) as caught:
        library.load().gpu_codecs(gpu.streams[0].value or 0, tmp_path)
    text = str(caught.value)
    assert f"codec_kernels.fatbin is not in {tmp_path}" in text
    assert "built without nvcc" in text and "NVCC=/path/to/nvcc" in text


REFUSING = """
import tfswap
from tfswap.ops import library
from tfswap.ops.loaded_library import LibraryError
from benchmarks.gpu_check.driver import Driver
driver = Driver()
driver.enter_context()
try:
    library.load().gpu_codecs(driver.stream().value)
    print("loaded")
except LibraryError as error:
    print(error)
"""


@needs_gpu
@on_fake_gpu
def test_a_driver_older_than_nvcc(gpu: Gpu) -> None:
    def said(refuses: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", REFUSING],
            cwd=TREE,
            env={**os.environ, "FAKE_CUDA_REFUSES": refuses},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    assert said("code") == "loaded"  # by its PTX
    text = said("code,ptx")
    assert "the driver, which is for CUDA 12.5, rejects both the kernels' machine code" in text
    assert re.search(r"made by CUDA \d+\.\d+ \(.*CUDA error 209\)", text)
    assert "and their PTX (an error of the fake GPU (CUDA error 222))" in text
    assert "Update the driver, or build tfswap again with an older nvcc" in text
