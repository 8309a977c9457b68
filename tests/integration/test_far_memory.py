"""Tiers of far memory: encoded, in a file, full, and on a failing disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from models import MIB, Losses, budget_of, compiled, convolutions, deterministic, trained

import tfswap
from tfswap import _core
from tfswap.devices import managed_devices
from tfswap.devices.sampling import RatioSamples
from tfswap.machine import codecs
from tfswap.machine.far_tier import FILE, FarTier
from tfswap.training import transitions


@pytest.fixture(autouse=True)
def determinism():
    deterministic()


@pytest.fixture(autouse=True)
def no_faults(lib):
    yield
    lib.set_faults("")
    lib.open_file(None)


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """Yield an empty folder whose file system supports direct I/O."""
    for folder in (Path.cwd(), Path("/tmp"), Path("/var/tmp")):
        try:
            _core.SpillFile(str(folder))
        except OSError:
            continue
        with tempfile.TemporaryDirectory(prefix="tfswap-disk-", dir=folder) as empty:
            yield Path(empty)
        return
    pytest.skip("no disk here takes direct reads and writes")


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    first = trained(lambda: compiled(convolutions()), epochs=2)
    assert first.losses == trained(lambda: compiled(convolutions()), epochs=2).losses
    return first


def swapped(unswapped: Losses, **options: object) -> tuple[Losses, tfswap.AutoSwap]:
    """Train under a policy that swaps: "auto" may recompute everything instead."""
    budget = budget_of(unswapped, 0.6)
    swap = tfswap.AutoSwap(budget=budget, policy="greedy", verbose=0, **options)
    return trained(lambda: compiled(convolutions()), [swap], epochs=2), swap


def tiers_of(swap: tfswap.AutoSwap) -> dict[str, object]:
    return {tier.name: tier for tier in swap.report.tiers}


def open_files() -> set[str]:
    """Return the regular open files of this process."""
    targets = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            targets.append(os.readlink(handle))
        except OSError:
            continue
    return {target for target in targets if target.startswith("/")}


def test_tensors_that_exceed_host_memory_go_to_the_file(unswapped, disk):
    before, open_before = set(os.listdir(disk)), open_files()
    losses, swap = swapped(unswapped, host_limit=4 * MIB, spill_dir=disk)
    assert losses.losses == unswapped.losses
    assert swap.report.outcome == "swapped"
    tiers = tiers_of(swap)
    assert tiers["file"].bytes_out > 0
    assert tiers["host"].peak_bytes + tiers["compressed"].peak_bytes <= 4 * MIB
    assert {s.tier for f in swap.report.plan.functions for s in f.swaps} >= {"file"}
    assert any("in use (file)" in note for note in swap.report.notes)
    assert set(os.listdir(disk)) <= before
    assert open_files() <= open_before
    assert tfswap.memory_stats()["far_file_bytes_in_use"] == 0


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "codec",
    [name if name == "zvc" else pytest.param(name, marks=SLOW) for name in codecs.available()],
)
def test_every_lossless_codec_changes_no_number(unswapped, codec):
    if codec in codecs.LOSSY:
        with pytest.raises(ValueError, match="is lossy, and needs lossy=True"):
            tfswap.AutoSwap(codec=codec)
        return
    losses, swap = swapped(unswapped, codec=codec)
    assert losses.losses == unswapped.losses
    encoded = tiers_of(swap)["compressed"]
    assert 0 < encoded.kept_bytes_out < encoded.bytes_out
    assert any("(compressed to " in note for note in swap.report.notes)


@pytest.mark.parametrize("codec", ["auto", pytest.param("cswap", marks=SLOW)])
def test_codecs_are_chosen_on_a_slow_link(unswapped, codec):
    losses, swap = swapped(unswapped, codec=codec, link_bandwidth="0.2GB/s")
    assert losses.losses == unswapped.losses
    assert tiers_of(swap)["compressed"].bytes_out > 0


@pytest.mark.slow
def test_codecs_are_chosen_again_when_ratios_drift(unswapped, monkeypatch):
    """Let nothing compress at first and everything later."""
    ratio = {"zvc": 1.0}

    class Drift(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 3:
                ratio["zvc"] = 0.2

    monkeypatch.setattr(RatioSamples, "of", lambda self, tensor: dict(ratio))
    monkeypatch.setattr(transitions, "_STEPS_BETWEEN", 1)
    budget = budget_of(unswapped, 0.6)
    options = {"policy": "greedy", "link_bandwidth": "0.2GB/s", "verbose": 0}
    swap = tfswap.AutoSwap(budget=budget, **options)
    losses = trained(lambda: compiled(convolutions()), [Drift(), swap], epochs=5)
    assert losses.losses[: len(unswapped.losses)] == unswapped.losses
    assert losses.losses == trained(lambda: compiled(convolutions()), epochs=5).losses
    assert tiers_of(swap)["compressed"].bytes_out > 0
    assert any("tensors are encoded from now on" in note for note in swap.report.notes)
    assert swap.report.plan.functions[-1].layouts  # planned addresses stay active


def test_without_a_codec_nothing_is_encoded(unswapped):
    losses, swap = swapped(unswapped, codec=None, link_bandwidth="0.2GB/s")
    assert losses.losses == unswapped.losses
    assert tiers_of(swap)["compressed"].bytes_out == 0


def test_on_demand_swaps_continue_in_the_file(unswapped, disk):
    """Use the file before there is a plan."""
    swap = tfswap.AutoSwap(
        budget=budget_of(unswapped, 0.6), host_limit=1, spill_dir=disk, verbose=0
    )
    losses = trained(lambda: compiled(convolutions()), [swap], epochs=1, steps_per_epoch=2)
    assert losses.losses == unswapped.losses[:2]
    assert tiers_of(swap)["file"].bytes_out > 0
    assert max(losses.peaks) <= swap.report.budget_bytes


@pytest.mark.parametrize(
    ("folder", "text"), [("/nonexistent/folder", "/nonexistent/folder"), ("/proc", "/proc")]
)
def test_a_folder_that_allows_no_file_is_refused_before_training(unswapped, folder, text):
    with pytest.raises(tfswap.LibraryError, match=text):
        swapped(unswapped, spill_dir=folder)
    assert tfswap.memory_stats()["budget_bytes"] is None
    assert not tfswap.status()["trainings"]


class Fault(tf.keras.callbacks.Callback):
    """Inject a fault into the file tier from the beginning of a step on."""

    def __init__(self, lib, kind: str, step: int = 3) -> None:
        super().__init__()
        self._lib, self._kind, self._step, self._begun = lib, kind, step, 0

    def on_train_batch_begin(self, batch, logs=None):
        self._begun += 1
        if self._begun == self._step:
            self._lib.set_faults(self._kind)


def with_fault(lib, unswapped, disk, kind, **options) -> tuple[Losses, tfswap.AutoSwap]:
    budget = budget_of(unswapped, 0.6)
    swap = tfswap.AutoSwap(budget=budget, spill_dir=disk, verbose=0, codec=None, **options)
    faults = Fault(lib, kind)
    return trained(lambda: compiled(convolutions()), [swap, faults], epochs=2), swap


def test_full_far_memory_is_an_error_with_advice(unswapped):
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Far memory is full") as error:
        swapped(unswapped, host_limit=1)
    said = str(error.value)
    assert re.search(r"raise host_limit to [0-9.]+ [MK]iB or more, or give a spill_dir", said)
    assert re.search(r"recompute activations of [0-9.]+ [MK]iB or more", said)


def test_a_full_disk_is_an_error_with_advice(lib, unswapped, disk):
    swap = tfswap.AutoSwap(
        budget=budget_of(unswapped, 0.6), spill_dir=disk, host_limit=1, verbose=0
    )
    with pytest.raises(tf.errors.ResourceExhaustedError, match="Far memory is full") as error:
        trained(lambda: compiled(convolutions()), [swap, Fault(lib, "disk-full", step=1)])
    assert "or more. The file tier is full as well: no space" in str(error.value)
    assert "No space left on device" in str(error.value)
    assert tfswap.memory_stats()["budget_bytes"] is None


@pytest.mark.parametrize(
    "kind",
    [
        "write-error",
        "disk-full",
        *(pytest.param(kind, marks=SLOW) for kind in ("write-full", "short-write", "slow-disk")),
    ],
)
def test_tensors_that_cannot_be_written_stay_in_memory(lib, unswapped, disk, kind):
    """Fill the file first; the rest then goes to host memory, which has room."""

    class Later(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            lib.set_host_limit(None)

    budget = budget_of(unswapped, 0.6)
    options = {"policy": "greedy", "codec": None, "host_limit": 1, "slab": False}
    swap = tfswap.AutoSwap(budget=budget, spill_dir=disk, verbose=0, **options)
    callbacks = [swap, Later(), Fault(lib, kind, step=1)]
    if kind in ("slow-disk", "short-write"):
        losses = trained(lambda: compiled(convolutions()), callbacks, epochs=2)
        assert losses.losses == unswapped.losses
        return
    with pytest.warns(UserWarning, match="the file tier failed"):
        losses = trained(lambda: compiled(convolutions()), callbacks, epochs=2)
    assert losses.losses == unswapped.losses


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("read-error", "Input/output error", marks=SLOW),
        pytest.param("end-of-file", "swapping in", marks=SLOW),
        ("file-bit-flip", "checksum"),
    ],
)
def test_a_failed_read_is_an_error_never_a_wrong_number(lib, unswapped, disk, kind, text):
    with pytest.raises(tf.errors.OpError, match="tfswap: swapping in") as error:
        with_fault(lib, unswapped, disk, kind, host_limit=1)
    assert text in str(error.value)
    lib.set_faults("")
    # All memory is released, and the same process can train again.
    assert tfswap.memory_stats()["budget_bytes"] is None
    again, _ = swapped(unswapped, host_limit=4 * MIB, spill_dir=disk)
    assert again.losses == unswapped.losses


@pytest.mark.slow
def test_tiers_are_planned_again_when_the_disk_slows_down(lib, unswapped, disk, monkeypatch):
    """Encode what went to a fast file once the file is slow."""
    fast = FarTier(FILE, 20e9, 20e9, 0, 0, 1 << 40)
    monkeypatch.setattr(managed_devices, "measure_file_tier", lambda folder, limit_bytes: fast)
    monkeypatch.setattr(RatioSamples, "of", lambda self, tensor: {"zvc": 0.9})
    monkeypatch.setattr(transitions, "_STEPS_BETWEEN", 1)
    swap = tfswap.AutoSwap(
        budget=budget_of(unswapped, 0.6), host_limit=16 * MIB, spill_dir=disk, verbose=0
    )
    losses = trained(
        lambda: compiled(convolutions()), [swap, Fault(lib, "slow-disk", 17)], epochs=5
    )
    assert losses.losses[: len(unswapped.losses)] == unswapped.losses
    said = [note for note in swap.report.notes if note.startswith("the disk gave ")]
    assert said and "where 20000 were expected" in said[0], swap.report.notes
    assert max(losses.peaks) <= swap.report.budget_bytes


def test_sigkill_during_a_step_leaves_nothing(disk, tmp_path):
    folder = disk / f"tfswap-kill-{os.getpid()}"
    folder.mkdir()
    script = textwrap.dedent(
        f"""
        import sys
        sys.path[:0] = {sys.path!r}
        import tfswap, keras
        from models import compiled, convolutions, trained
        class Say(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if tfswap.memory_stats()["far_file_bytes_out"] > 0:
                    print("swapping", flush=True)
        swap = tfswap.AutoSwap(budget="60MiB", host_limit=1, spill_dir={str(folder)!r}, verbose=0)
        trained(lambda: compiled(convolutions()), [swap, Say()], epochs=100)
        """
    )
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "swapping"
        time.sleep(0.05)  # in the middle of a step
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert os.listdir(folder) == []
    finally:
        child.kill()
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
