"""Speeds and launches of a GPU's codecs, measured on a fake GPU."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tfswap.auto_swap import AutoSwap
from tfswap.devices.device_codecs import DeviceCodecs
from tfswap.devices.managed_devices import ManagedDevices
from tfswap.machine import nvcomp
from tfswap.machine.devices import FIRST_GPU
from tfswap.machine.gpu_codec_speed import Launch, gpu_codec_speeds, install_cached_launches
from tfswap.ops.loaded_library import LibraryError

NAMES = ("zvc", "rle", "csr")


class Gpu:
    """A fake library with one GPU, whose codecs take known times.

    Below 8,000 threads, the threads are the bottleneck; from there on, a link of 20 GB/s.
    """

    def __init__(self, name: str = "NVIDIA H200 143771 MiB", room_bytes: int = 1 << 40) -> None:
        self.name = name
        self.room_bytes = room_bytes
        self.broken: tuple[str, ...] = ()
        self.launches: dict[str, Launch] = {}
        self.measured: list[int] = []

    def codec_device(self, device: int) -> str:
        return self.name

    def codec_processors(self, device: int) -> int:
        return 132

    def codec_problem(self, device: int) -> str:
        return ""

    def trim_host(self) -> None:
        pass

    def memory_stats(self, device: int) -> dict[str, int]:
        return {
            "host_limit_bytes": 20,
            "host_bytes_in_use": 18,
            "far_host_bytes_in_use": 4,
            "far_compressed_bytes_in_use": 1,
        }

    def set_codec_launch(self, device: int, codec: str, launch: Launch) -> None:
        self.launches[codec] = launch

    def measure_device_codec(
        self, device: int, codec: str, data: NDArray[Any], launch: Launch, repeats: int = 1
    ) -> tuple[int, float, float]:
        self.measured.append(data.nbytes)
        if data.nbytes > self.room_bytes:
            raise LibraryError("tfswap: no memory to measure the codecs in")
        if codec in self.broken:
            raise LibraryError(
                f"tfswap: codec '{codec}' does not restore the original bytes on this GPU"
            )
        encoded_bytes = int(np.count_nonzero(data)) * 4 + data.size // 8
        slowdown = max(1.0, 8000 / (launch[0] * launch[1]))
        seconds = 5e-6 + (data.nbytes / 200e9 + encoded_bytes / 20e9) * slowdown
        return encoded_bytes, seconds, 2 * seconds


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tfswap.machine.gpu_codec_speed._known", {})


def speeds(gpu: Gpu, names: tuple[str, ...] = NAMES) -> tuple[Any, ...]:
    return gpu_codec_speeds(gpu, FIRST_GPU, names, search_s=30)  # type: ignore[arg-type]


def test_speeds_are_measured_at_the_smallest_fast_launch() -> None:
    gpu = Gpu()
    found = speeds(gpu)
    assert [speed.name for speed in found] == list(NAMES)
    for speed in found:
        blocks, threads = gpu.launches[speed.name]
        assert 7600 <= blocks * threads <= 8192
        assert speed.threads == 0
        assert speed.device_part == pytest.approx(blocks * threads / (132 * 2048))
        size_bytes = 256 << 20
        expected_ns = 5e3 + size_bytes / 200 + 0.4 * size_bytes / 20
        assert speed.encode.ns(size_bytes, 0.4) == pytest.approx(expected_ns, rel=0.06)
        assert speed.decode.ns(size_bytes, 0.4) == pytest.approx(2 * expected_ns, rel=0.06)


def test_the_measured_tensor_fits_in_memory() -> None:
    gpu = Gpu(room_bytes=3 << 20)
    assert len(speeds(gpu)) == 3
    assert max(size for size in gpu.measured if size <= gpu.room_bytes) == 1 << 20
    assert speeds(Gpu("a GPU without room", room_bytes=1000)) == ()


def test_a_codec_that_does_not_work_is_left_out_with_a_warning() -> None:
    gpu = Gpu()
    gpu.broken = ("rle",)
    with pytest.warns(UserWarning, match="codec rle is left out: .*original bytes"):
        assert [speed.name for speed in speeds(gpu)] == ["zvc", "csr"]


def test_speeds_are_cached_by_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = speeds(Gpu())
    paths = sorted(tmp_path.rglob("*.json"))
    assert [path.name for path in paths] == ["csr.json", "rle.json", "zvc.json"]
    assert paths[0].parent.name == "NVIDIA_H200_143771_MiB-v1"
    monkeypatch.setattr("tfswap.machine.gpu_codec_speed._known", {})  # another process
    again = Gpu()
    install_cached_launches(again, FIRST_GPU, NAMES)  # type: ignore[arg-type]
    assert set(again.launches) == set(NAMES) and again.measured == []
    assert speeds(again) == found and again.measured == []
    other = Gpu("NVIDIA A100 81920 MiB")
    assert len(speeds(other)) == 3 and other.measured


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"launch": [3, 5]}', '{"launch": [16, 512]}'])
def test_a_damaged_cache_file_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    speeds(Gpu(), ("zvc",))
    (path,) = tmp_path.rglob("zvc.json")
    path.write_text(damage)
    monkeypatch.setattr("tfswap.machine.gpu_codec_speed._known", {})
    gpu = Gpu()
    install_cached_launches(gpu, FIRST_GPU, NAMES)  # type: ignore[arg-type]
    assert gpu.launches == {}
    assert len(speeds(gpu, ("zvc",))) == 1
    assert json.loads(path.read_text())["name"] == "zvc"


def devices(codec: str | None, problem: str = "") -> tuple[ManagedDevices, list[str]]:
    """Return a manager of one fake GPU, without TensorFlow, and its list of warnings."""
    gpu = Gpu()
    gpu.codec_problem = lambda device: problem  # type: ignore[method-assign]
    managed = ManagedDevices.__new__(ManagedDevices)
    options = AutoSwap.__new__(AutoSwap)
    options.codec, options.plan, options.lossy, options.spill_dir = codec, None, False, None
    warnings: list[str] = []
    managed.__dict__.update(
        {"_library": gpu, "_options": options, "_warn": warnings.append},
        numbers=[FIRST_GPU],
        device=FIRST_GPU,
        codecs=DeviceCodecs(gpu, options, [FIRST_GPU], warnings.append),  # type: ignore[arg-type]
    )
    return managed, warnings


@pytest.mark.parametrize(
    ("codec", "expected"),
    [("auto", NAMES), ("cswap", NAMES), ("rle", ("rle",)), ("lz4", ()), (None, ())],
)
def test_which_codecs_a_gpu_may_use(
    codec: str | None, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfswap.devices.device_codecs.find_nvcomp", lambda: None)
    managed, warnings = devices(codec)
    assert managed.codecs.lossless == expected
    managed.codecs.load_gpu()
    text = f"codec='lz4' has no effect: {nvcomp.INSTALL}"
    assert warnings == ([text] if codec == "lz4" else [])


def test_without_kernels_only_a_named_codec_warns() -> None:
    problem = "tfswap: codecs on the GPU are not available: there is no nvcc"
    for codec, warns in (("auto", False), ("zvc", True), (None, False)):
        managed, warnings = devices(codec, problem)
        assert managed.codecs.lossless == ()
        managed.codecs.load_gpu()
        assert bool(warnings) == warns
    managed, warnings = devices("zvc", problem)
    managed.codecs.load_gpu()
    assert warnings == [
        "codec='zvc' has no effect: codecs on the GPU are not available: there is no nvcc"
    ]


def test_encoded_buffers_of_a_gpu_hold_whole_blocks_within_the_host_limit() -> None:
    managed, _ = devices("zvc")
    link = SimpleNamespace(
        out_bytes_per_s=2e10,
        in_bytes_per_s=2e10,
        out_latency_ns=10,
        in_latency_ns=10,
        copy_bytes_per_s=float("inf"),
        in_sections=False,
    )
    far = managed.far_memory(link)  # type: ignore[arg-type]
    assert far.whole_blocks and far.file is None and far.host.capacity_bytes == 7
    assert [speed.name for speed in far.codecs] == ["zvc"]
