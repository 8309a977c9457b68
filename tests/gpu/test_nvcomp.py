"""nvCOMP's codecs end to end, with a substitute for nvCOMP on the simulated GPU."""

from __future__ import annotations

import json
import os

import fake_nvcomp
import far_blocks
import pytest
import tensorflow as tf
from swaps import host_values, settled, swapped_and_compared, synchronizations
from trainings import TRAINING, ran, trained, unswapped

import tfswap
from tfswap.machine.gpu_codec_speed import gpu_codec_speeds
from tfswap.machine.nvcomp import NAMES
from tfswap.ops import library

KIB, MIB = 1 << 10, 1 << 20
WORKSPACE_BYTES = 400 * KIB  # two sections at once
SECTION_BYTES = 64 * KIB
PATH = str(fake_nvcomp.library())

pytestmark = [
    pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`"),
    pytest.mark.skipif(os.environ.get("TEST_GPU") == "real", reason="asks the fake GPU"),
    pytest.mark.skipif(
        not (library.NATIVE / "codec_kernels.fatbin").exists(),
        reason="built without nvcc",
    ),
]


def use(number: int, codec: str, size_bytes: int = WORKSPACE_BYTES) -> None:
    assert library.load().use_codec(number, codec, PATH, size_bytes) == ""


# Single swaps.


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_every_byte_comes_back(number: int, codec: str, dtype: str) -> None:
    use(number, codec)
    x = host_values(0.45, zeros=0.9)
    with tf.device("CPU:0"):
        x = tf.cast(x, dtype)
    step = swapped_and_compared(["GPU:0"], 3, lazy=False, codec=codec)
    for k in range(2):
        assert step(x, tf.constant(float(k)))
    stats = settled()
    size_bytes = x.shape[0] * x.dtype.size
    assert stats["far_compressed_copies_out"] == 6
    assert stats["far_compressed_bytes_out"] == stats["far_compressed_bytes_in"] == 6 * size_bytes
    assert 0.05 < stats["far_compressed_kept_bytes_out"] / (6 * size_bytes) < 0.6
    assert stats["far_host_copies_out"] == stats["far_moved_on"] == stats["far_buffers"] == 0


@pytest.mark.parametrize("codec", NAMES)
def test_incompressible_sections_are_stored(number: int, codec: str) -> None:
    use(number, codec)
    # Between two sections.
    x = host_values(0.4, zeros=0.0)
    assert swapped_and_compared(["GPU:0"], 1, lazy=False, codec=codec)(x, tf.constant(0.0))
    stats = settled()
    size_bytes = 4 * x.shape[0]
    table_bytes = far_blocks.HEADER_BYTES + 8 * -(-size_bytes // SECTION_BYTES)
    most_bytes = far_blocks.round_up(table_bytes, far_blocks.LINE_BYTES)
    most_bytes += far_blocks.round_up(size_bytes, far_blocks.UNIT_BYTES)
    assert stats["far_compressed_kept_bytes_out"] <= most_bytes
    assert stats["far_compressed_copies_out"] == 1


def test_on_demand_swaps_are_encoded_within_the_budget(number: int) -> None:
    lib = library.load()
    x = host_values(1, zeros=0.8)
    step = swapped_and_compared(["GPU:0"], 8, lazy=True, codec="lz4")
    assert step(x, tf.constant(0.0))
    lib.set_budget(number, tfswap.memory_stats("GPU:0")["bytes_in_use"] + 6 * MIB)
    use(number, "lz4")
    tfswap.reset_memory_stats("GPU:0")
    for k in range(3):
        assert step(x, tf.constant(float(k)))
    stats = settled()
    assert stats["peak_bytes"] <= stats["budget_bytes"]
    assert 0 < stats["far_compressed_copies_out"] == stats["copies_out"] < 3 * 8
    lib.release_codecs(number)
    assert stats["bytes_in_use"] - tfswap.memory_stats("GPU:0")["bytes_in_use"] == WORKSPACE_BYTES
    assert settled()["host_bytes_in_use"] == 0


def test_the_host_waits_for_nothing(number: int) -> None:
    use(number, "ans")
    assert synchronizations("ans") == synchronizations("")  # TensorFlow's own


def test_disabled_codecs_copy(number: int) -> None:
    use(number, "ans")
    x = host_values(0.5, zeros=0.6)
    assert swapped_and_compared(["GPU:0"], 2, lazy=False, codec="lz4")(x, tf.constant(0.0))
    stats = settled()
    assert stats["far_compressed_copies_out"] == 0
    assert stats["far_host_copies_out"] == stats["far_moved_on"] == 2


# Failures.


@pytest.mark.parametrize("how", ["pack status", "pack large"])
def test_tensors_that_could_not_be_encoded_are_stored(number: int, how: str) -> None:
    use(number, "lz4")
    x = host_values(0.5, zeros=0.9)  # eight sections
    step = swapped_and_compared(["GPU:0"], 1, lazy=False, codec="lz4")
    assert step(x, tf.constant(0.0))
    sound = settled()["far_compressed_kept_bytes_out"]
    tfswap.reset_memory_stats("GPU:0")
    with fake_nvcomp.failing(how):
        assert step(x, tf.constant(1.0))
        kept = settled()["far_compressed_kept_bytes_out"]
    assert kept > MIB // 4 > sound  # every second one


@pytest.mark.parametrize("how", ["unpack status", "unpack short"])
def test_tensors_that_could_not_be_decoded_are_an_error(number: int, how: str) -> None:
    lib = library.load()
    use(number, "ans")
    x = host_values(0.25, zeros=0.8)
    step = swapped_and_compared(["GPU:0"], 1, lazy=False, codec="ans")
    assert step(x, tf.constant(0.0)) and lib.take_codec_fault(number, wait=True) == ""
    with fake_nvcomp.failing(how):
        assert not step(x, tf.constant(1.0))  # no number
        with pytest.raises(tf.errors.DataLossError, match="kept by ans could not be decoded"):
            step(x, tf.constant(2.0))
        assert not step(x, tf.constant(3.0))
    text = lib.take_codec_fault(number, wait=True)
    assert "(nvCOMP status 12), so numbers of this step are lost" in text
    assert lib.take_codec_fault(number, wait=True) == ""
    assert step(x, tf.constant(4.0))


def test_a_changed_bit_in_far_memory(number: int) -> None:
    lib = library.load()
    use(number, "lz4")
    x = host_values(0.25, zeros=0.6)
    step = swapped_and_compared(["GPU:0"], 1, lazy=False, codec="lz4")
    lib.set_verify(number, True)
    assert step(x, tf.constant(1.0))
    lib.set_faults("bit-flip")
    with pytest.raises(tf.errors.DataLossError, match="came back from far memory changed"):
        step(x, tf.constant(2.0))
    assert "could not be decoded" in lib.take_codec_fault(number, wait=True)
    lib.set_faults("")
    assert step(x, tf.constant(3.0))


def test_unsuitable_uses_are_reported(number: int) -> None:
    lib = library.load()
    in_use = tfswap.memory_stats("GPU:0")["bytes_in_use"]
    too_small = lib.use_codec(number, "lz4", PATH, 100 * KIB)
    assert "lz4 needs a workspace of" in too_small and "has 102400" in too_small
    for how, text in (
        ("unpack wrong", "codec 'lz4' does not restore the original bytes on this GPU"),
        ("pack refused", "nvCOMP did not start (status 11)"),
        ("pack status", "does not encode on this GPU (status 19"),
        ("unpack status", "does not restore the original bytes"),
    ):
        with fake_nvcomp.failing(how):
            assert text in lib.use_codec(number, "lz4", PATH, WORKSPACE_BYTES), how
    lib.set_budget(number, in_use + MIB // 4)
    assert "not enough memory for the workspace of lz4" in lib.use_codec(number, "lz4", PATH, MIB)
    lib.set_budget(number, None)
    assert tfswap.memory_stats("GPU:0")["bytes_in_use"] == in_use
    assert "no codec 'zip' on the GPU" in lib.use_codec(number, "zip", PATH, MIB)
    assert lib.use_codec(number, "zvc", PATH, MIB) == ""  # does not need nvCOMP
    use(number, "lz4")


USING = """
import json, sys, tfswap, tensorflow as tf
from swaps import host_values, swapped_and_compared
from tfswap.machine.nvcomp import find_nvcomp
from tfswap.ops import library
lib = library.load()
with tf.device("GPU:0"):
    tf.identity(tf.constant(1.0)).numpy()
problems = [lib.use_codec(1000, codec, find_nvcomp(), 400 << 10) for codec in ("lz4", "ans")]
same = [bool(swapped_and_compared(["GPU:0"], 2, lazy=False, codec=codec)(
    host_values(0.3, zeros=0.8), tf.constant(0.0))) for codec in ("lz4", "ans")]
print(json.dumps({"path": find_nvcomp(), "problems": problems, "same": same,
                  **tfswap.memory_stats("GPU:0")}))
"""


@pytest.mark.slow
def test_releases_5_and_6_work_and_others_are_refused() -> None:
    def told(**environment: str) -> dict[str, object]:
        return ran(USING, **fake_nvcomp.there(**environment))

    for release in ("5000", "5200", "6000"):
        found = told(FAKE_NVCOMP_VERSION=release)
        assert found["path"] == PATH and found["problems"] == ["", ""]
        assert found["same"] == [True, True] and found["far_compressed_copies_out"] == 4
    for release, text in (("4201", "nvCOMP 4.2.1"), ("7000", "nvCOMP 7.0.0")):
        found = told(FAKE_NVCOMP_VERSION=release)
        for problem in found["problems"]:  # type: ignore[attr-defined]
            assert f"{text} ({PATH}) is not supported: releases 5 to 6 are" in problem
            assert 'pip install "nvidia-nvcomp-cu12>=5,<7"' in problem
        assert found["same"] == [True, True] and found["far_host_copies_out"] == 4
    (problem, _) = told(FAKE_NVCOMP_CUDA="13000")["problems"]  # type: ignore[misc]
    assert "is for CUDA 13, and the driver for CUDA 12" in problem
    assert "pip install nvidia-nvcomp-cu12" in problem


# What planners get.


def test_ratios_are_what_the_codecs_make(number: int) -> None:
    lib = library.load()
    for codec in NAMES:
        use(number, codec)
    names = ("zvc", *NAMES)
    for zeros in (0.0, 0.5, 0.9):
        x = host_values(0.5, zeros)
        for codec in NAMES:
            step = swapped_and_compared(["GPU:0"], 1, lazy=False, codec=codec)
            lib.sample_codecs(names)
            tfswap.reset_memory_stats("GPU:0")
            assert step(x, tf.constant(0.0))
            (sample,) = lib.codec_samples()
            found = sample.ratios
            stats = settled()
            kept = stats["far_compressed_kept_bytes_out"] / stats["far_compressed_bytes_out"]
            assert found[codec] == pytest.approx(kept, abs=0.02), (codec, zeros)
            assert set(found) == set(names)
    lib.sample_codecs(())
    lib.release_codecs(number)
    assert settled()["host_bytes_in_use"] == 0


def test_speeds_are_measured_and_not_remembered(number: int) -> None:
    lib = library.load()
    assert gpu_codec_speeds(lib, number, ()) == ()
    with pytest.warns(UserWarning, match="codec lz4 is left out: .* not loaded"):
        assert gpu_codec_speeds(lib, number, ("lz4",), search_s=0.1) == ()
    use(number, "lz4")
    (speed,) = gpu_codec_speeds(lib, number, ("lz4",), search_s=0.1)
    assert (speed.name, speed.threads, speed.device_part) == ("lz4", 0, 1.0)
    assert speed.encode.ns(MIB, 0.5) > 0 and speed.decode.ns(MIB, 0.5) > 0
    lib.release_codecs(number)
    with pytest.warns(UserWarning, match="left out"):
        assert gpu_codec_speeds(lib, number, ("lz4",), search_s=0.1) == ()


# Trainings.


@pytest.mark.parametrize("codec", ["lz4", pytest.param("ans", marks=pytest.mark.slow)])
def test_a_training_has_the_same_losses(codec: str) -> None:
    told = trained(fake_nvcomp.there(), codec=codec)
    assert told["codecs"] == [codec]
    stats = told["stats"]
    left, kept = stats["far_compressed_bytes_out"], stats["far_compressed_kept_bytes_out"]
    assert left == stats["far_compressed_copies_out"] * MIB > 0
    assert 0.2 < kept / left < 0.9
    assert told["tiers"]["compressed"] == [left, kept]


def test_without_nvcomp_it_warns_what_to_install() -> None:
    told = trained(fake_nvcomp.not_there(), codec="lz4", with_blosc=True)
    assert told["codecs"] == [""] and told["stats"]["far_compressed_copies_out"] == 0
    (warning,) = [text for text in told["warnings"] if "lz4" in text]
    assert "codec='lz4' has no effect: nvCOMP is not installed" in warning
    assert "pip install nvidia-nvcomp-cu12" in warning


@pytest.mark.slow
def test_a_training_ends_when_a_tensor_cannot_be_decoded() -> None:
    options = {"budget": "8MiB", "codec": "lz4", "fault": "unpack status"}
    told = ran(TRAINING, json.dumps(options), **fake_nvcomp.there())
    assert "kept by lz4 could not be decoded when it came back" in told["error"]
    assert 8 <= len(told["losses"]) < len(unswapped()["losses"])
    assert told["losses"][:8] == unswapped()["losses"][:8]
