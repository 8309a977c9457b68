"""Swaps that the GPU encodes, on a GPU whose kernels run on the CPU (`simt`)."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import far_blocks
import numpy as np
import pytest
import tensorflow as tf
from far_blocks import SECTION_BYTES, UNIT_BYTES, round_up
from swaps import host_values, settled, swapped_and_compared, synchronizations
from trainings import ran, trained

import tfswap
from tfswap.machine.gpu_codec_speed import gpu_codec_speeds
from tfswap.ops import library
from tfswap.ops.gpu_codecs import NAMES
from tfswap.ops.loaded_library import LibraryError

MIB = 1 << 20

pytestmark = [
    pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`"),
    pytest.mark.skipif(
        not (library.NATIVE / "codec_kernels.fatbin").exists(),
        reason="built without nvcc",
    ),
]
on_fake_gpu = pytest.mark.skipif(os.environ.get("TEST_GPU") == "real", reason="asks the fake GPU")


def zvc_bytes(tensor: tf.Tensor) -> int:
    """Compute the encoded size from the format, section by section."""
    raw = tensor.numpy().view(np.uint8)
    far_bytes = far_blocks.sections_begin(raw.size)
    for at in range(0, raw.size, SECTION_BYTES):
        words = raw[at : at + SECTION_BYTES].view(np.uint32)
        values = int((words != 0).sum())
        packed = 0 if values == 0 else 4 * -(-words.size // 32) + 4 * values
        far_bytes += round_up(min(packed, words.nbytes), UNIT_BYTES)
    return far_bytes


def cast(values: tf.Tensor, dtype: str) -> tf.Tensor:
    """Convert on the host, because the simulated GPU cannot."""
    with tf.device("CPU:0"):
        return tf.cast(values, dtype)


# Single swaps.


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_every_byte_comes_back_from_a_codec(number: int, codec: str, dtype: str) -> None:
    x = cast(host_values(0.5, zeros=0.6), dtype)
    step = swapped_and_compared(["GPU:0"], 3, lazy=False, codec=codec)
    for k in range(2):
        assert step(x, tf.constant(float(k)))
    stats = settled()
    size_bytes = x.shape[0] * x.dtype.size
    assert stats["copies_out"] == stats["copies_in"] == stats["far_compressed_copies_out"] == 6
    assert stats["far_compressed_bytes_out"] == stats["far_compressed_bytes_in"] == 6 * size_bytes
    assert 0.3 < stats["far_compressed_kept_bytes_out"] / (6 * size_bytes) < 0.9
    assert stats["far_host_copies_out"] == stats["far_moved_on"] == 0
    assert stats["far_buffers"] == stats["host_bytes_in_use"] == 0
    assert stats["far_compressed_bytes_in_use"] == 0 < stats["far_compressed_peak_bytes"]


@pytest.mark.parametrize("zeros", [0.0, 0.7, 1.0])
def test_bytes_are_counted_before_and_after(number: int, zeros: float) -> None:
    x = host_values(0.5, zeros)
    assert swapped_and_compared(["GPU:0"], 2, lazy=False, codec="zvc")(x, tf.constant(0.0))
    stats = settled()
    assert stats["far_compressed_bytes_out"] == stats["bytes_out"] == 2 * MIB // 2
    assert stats["far_compressed_kept_bytes_out"] == 2 * zvc_bytes(x)
    # Memory for the worst case is reserved nevertheless.
    held_bytes = far_blocks.most_bytes(MIB // 2)
    assert stats["far_compressed_peak_bytes"] == 2 * held_bytes <= stats["host_peak_bytes"]
    assert swapped_and_compared(["GPU:0"], 2, lazy=False)(x, tf.constant(0.0))
    stats = settled()
    plain = stats["far_host_bytes_out"], stats["far_host_kept_bytes_out"]
    assert plain == (MIB, MIB)
    assert stats["far_host_bytes_in"] == stats["far_host_peak_bytes"] == MIB


def test_swaps_before_a_reset_of_the_statistics_are_not_counted(number: int) -> None:
    x = host_values(0.5, zeros=0.7)
    step = swapped_and_compared(["GPU:0"], 1, lazy=False, codec="zvc")
    for k in range(3):
        assert step(x, tf.constant(float(k)))
        tfswap.reset_memory_stats("GPU:0")
    assert settled()["far_compressed_kept_bytes_out"] == 0
    assert step(x, tf.constant(0.0))
    assert settled()["far_compressed_kept_bytes_out"] == zvc_bytes(x)


def test_on_demand_swaps_are_encoded(number: int) -> None:
    lib = library.load()
    x = host_values(1, zeros=0.8)
    step = swapped_and_compared(["GPU:0"], 8, lazy=True, codec="rle")
    assert step(x, tf.constant(0.0))
    assert settled()["copies_out"] == 0
    lib.set_budget(number, tfswap.memory_stats("GPU:0")["bytes_in_use"] + 5 * MIB)
    tfswap.reset_memory_stats("GPU:0")
    for k in range(3):
        assert step(x, tf.constant(float(k)))
    stats = settled()
    assert stats["peak_bytes"] <= stats["budget_bytes"]
    assert 0 < stats["far_compressed_copies_out"] == stats["copies_out"] < 3 * 8


@on_fake_gpu
def test_the_host_waits_for_no_encoding(number: int) -> None:
    assert synchronizations("zvc") == synchronizations("")  # TensorFlow's own


def test_verified_swaps_and_a_changed_bit(number: int) -> None:
    lib = library.load()
    x = host_values(0.25, zeros=0.6)
    lib.set_verify(number, True)
    for codec in ("", *NAMES):
        step = swapped_and_compared(["GPU:0"], 2, lazy=False, codec=codec)
        assert step(x, tf.constant(1.0))
        lib.set_faults("bit-flip")
        with pytest.raises(tf.errors.DataLossError, match="came back from far memory changed"):
            step(x, tf.constant(2.0))
        lib.set_faults("")
        assert step(x, tf.constant(3.0))


@pytest.mark.parametrize("kind", ["copy-out-fails", "copy-in-fails"])
def test_a_failure_is_an_error_and_the_next_step_works(number: int, kind: str) -> None:
    lib = library.load()
    x = host_values(0.25, zeros=0.6)
    step = swapped_and_compared(["GPU:0"], 2, lazy=False, codec="csr")
    assert step(x, tf.constant(0.0))
    lib.set_faults(kind)
    with pytest.raises(tf.errors.InternalError, match="injected fault"):
        step(x, tf.constant(1.0))
    lib.set_faults("")
    assert step(x, tf.constant(2.0))
    assert settled()["host_bytes_in_use"] == 0


# Tensors that cannot be encoded are copied without encoding, and counted.


def test_elements_of_a_byte_are_copied(number: int) -> None:
    x = cast(host_values(1, zeros=0.6), "uint8")
    assert swapped_and_compared(["GPU:0"], 2, lazy=False, codec="zvc")(x, tf.constant(0.0))
    stats = settled()
    assert stats["far_compressed_copies_out"] == 0
    assert stats["far_host_copies_out"] == stats["far_moved_on"] == 2


def test_without_memory_for_the_worst_case_it_is_copied(number: int) -> None:
    lib = library.load()
    x = host_values(1, zeros=0.6)
    step = swapped_and_compared(["GPU:0"], 1, lazy=False, codec="zvc")
    lib.trim_host()
    lib.set_host_limit(MIB)
    assert step(x, tf.constant(0.0))
    stats = settled()
    assert stats["far_moved_on"] == stats["far_host_copies_out"] == 1
    assert stats["copies_declined"] == 0
    lib.set_host_limit(MIB // 2)
    assert step(x, tf.constant(0.0))
    assert settled()["copies_declined"] == 1


WITHOUT_CODECS = """
import json, tfswap, tensorflow as tf
from swaps import host_values, settled, swapped_and_compared
from trainings import ran, trained
from tfswap.ops import library
step = swapped_and_compared(["GPU:0"], 2, lazy=False, codec="zvc")
same = bool(step(host_values(1, zeros=0.6), tf.constant(0.0)))
lib = library.load()
lib.sample_codecs(["zvc"])
same = same and bool(step(host_values(1, zeros=0.6), tf.constant(0.0)))
print(json.dumps({"same": same, "problem": lib.codec_problem(1000),
                  "found": len(lib.codec_samples()), **tfswap.memory_stats("GPU:0")}))
"""


@pytest.mark.slow
@on_fake_gpu
def test_a_driver_without_codecs_copies() -> None:
    stats = ran(WITHOUT_CODECS, FAKE_CUDA_REFUSES="code,ptx")
    assert stats["same"] and stats["found"] == 0
    assert stats["far_host_copies_out"] == stats["far_moved_on"] == 4
    assert "codecs on the GPU are not available" in stats["problem"]


# For planners.


def test_ratios_are_what_the_codecs_make(number: int) -> None:
    lib = library.load()
    for zeros in (0.0, 0.3, 0.7, 1.0):
        x = host_values(0.5, zeros)
        ratios: dict[str, float] = {}
        for codec in NAMES:
            step = swapped_and_compared(["GPU:0"], 1, lazy=False, codec=codec)
            lib.sample_codecs(NAMES)
            tfswap.reset_memory_stats("GPU:0")
            assert step(x, tf.constant(0.0))
            (sample,) = lib.codec_samples()
            found = sample.ratios
            stats = settled()
            kept = stats["far_compressed_kept_bytes_out"] / stats["far_compressed_bytes_out"]
            assert found[codec] == pytest.approx(kept, abs=0.01), (codec, zeros)
            ratios = ratios or found
            assert found == ratios  # the same zeros on the host and on the GPU
    lib.sample_codecs(())
    assert lib.codec_samples() == []
    assert settled()["host_bytes_in_use"] == 0


@on_fake_gpu
def test_sampling_waits_for_nothing_in_a_step(number: int) -> None:
    lib = library.load()
    waits = ctypes.CDLL("libcuda.so.1").fake_cuda_synchronizations
    step = swapped_and_compared(["GPU:0"], 4, lazy=True)
    x = host_values(0.5, zeros=0.5)
    assert step(x, tf.constant(0.0))
    counts = []
    for codecs in ((), NAMES):
        lib.sample_codecs(codecs)
        before = waits()
        assert step(x, tf.constant(1.0))
        counts.append(waits() - before)
    assert counts[0] == counts[1]
    assert len(lib.codec_samples()) == 4


def test_speeds_are_measured_within_the_budget_and_remembered(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = library.load()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tfswap.machine.gpu_codec_speed._known", {})
    in_use = tfswap.memory_stats("GPU:0")["bytes_in_use"]
    lib.set_budget(number, in_use + 100_000)
    assert gpu_codec_speeds(lib, number, NAMES, search_s=0.1) == ()
    assert not list(tmp_path.rglob("*.json"))
    lib.set_budget(number, in_use + 300_000)
    (speed,) = gpu_codec_speeds(lib, number, ("zvc",), search_s=0.1)
    assert (speed.name, speed.threads) == ("zvc", 0) and 0 < speed.device_part <= 1
    assert speed.encode.ns(MIB, 0.5) > 0 and speed.decode.ns(MIB, 0.5) > 0
    stats = tfswap.memory_stats("GPU:0")
    assert stats["bytes_in_use"] == in_use and stats["far_compressed_copies_out"] == 0
    (path,) = tmp_path.rglob("zvc.json")
    assert lib.codec_device(number).replace(" ", "_") in path.parent.name
    # Another process reads it.
    monkeypatch.setattr("tfswap.machine.gpu_codec_speed._known", {})
    monkeypatch.setattr(type(lib), "measure_device_codec", None)
    assert gpu_codec_speeds(lib, number, ("zvc",)) == (speed,)


def test_launches_are_checked(number: int) -> None:
    lib = library.load()
    with pytest.raises(LibraryError, match="got 4 blocks of 48"):
        lib.set_codec_launch(number, "zvc", (4, 48))
    with pytest.raises(LibraryError, match="no codec 'zstd' on the GPU"):
        lib.set_codec_launch(number, "zstd", (4, 64))
    with pytest.raises(LibraryError, match="a CPU has no codecs of its own"):
        lib.set_codec_launch(0, "zvc", (4, 64))


# Trainings.


@pytest.mark.parametrize("checked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_training_with_a_codec_has_the_same_losses(checked: bool) -> None:
    told = trained(codec="zvc", verify=checked)
    assert told["codecs"] == ["zvc"]
    stats = told["stats"]
    assert stats["far_compressed_copies_out"] > 0
    left, kept = stats["far_compressed_bytes_out"], stats["far_compressed_kept_bytes_out"]
    assert left == stats["far_compressed_copies_out"] * MIB
    # A quarter of the values, and a bit for each.
    assert kept / left == pytest.approx(0.25 + 1 / 32, abs=0.005)
    assert told["tiers"]["compressed"] == [left, kept]


@pytest.mark.slow
@on_fake_gpu
def test_auto_does_not_use_a_slow_gpu_s_codecs() -> None:
    told = trained(codec="auto")
    assert told["codecs"] == [""]
    assert told["stats"]["far_compressed_copies_out"] == 0 < told["stats"]["far_host_copies_out"]


@on_fake_gpu
def test_auto_uses_a_fast_gpu_s_codecs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache has speeds that an earlier process could have measured on a real GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "tfswap" / "codecs" / "NVIDIA_FAKE_4096_MiB-v1"
    folder.mkdir(parents=True)
    for name in NAMES:
        speed = {"name": name, "threads": 0, "out": [1000, 0, 0], "in": [1000, 0, 0]}
        (folder / f"{name}.json").write_text(json.dumps({**speed, "launch": [8, 256]}))
    # The link's speed is realistic too.
    monkeypatch.setenv("FAKE_CUDA_COPY_MB_S", "50")
    told = trained(codec="auto")
    assert set(told["codecs"]) <= {"", *NAMES} and told["codecs"] != [""]
    stats = told["stats"]
    assert 0 < stats["far_compressed_kept_bytes_out"] < 0.4 * stats["far_compressed_bytes_out"]
