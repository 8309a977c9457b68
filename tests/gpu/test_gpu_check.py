"""``make gpu-check`` with and without a GPU, and its decisions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_nvcomp
import pytest
import tensorflow as tf

pytest.importorskip("benchmarks.gpu_check")

from benchmarks.gpu_check import stages
from benchmarks.gpu_check.comparison import broken, figures_of, same_bits
from benchmarks.gpu_check.context import as_json
from benchmarks.gpu_check.largest_batch import Tried, next_batch
from benchmarks.gpu_check.record import Record
from benchmarks.gpu_check.schedule import share_of
from benchmarks.gpu_check.subject import Trained
from tfswap.ops import library
from tfswap.ops.gpu_codecs import NAMES

TREE = Path(__file__).resolve().parents[2]
GIB = 1 << 30

needs_cuda = pytest.mark.skipif(not tf.test.is_built_with_cuda(), reason="needs `make test-gpu`")


def checked(out: Path, *arguments: str, **environment: str | None) -> subprocess.CompletedProcess:
    changed = {**os.environ, **environment}
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--out", str(out), *arguments]
    return subprocess.run(
        command,
        cwd=TREE,
        env={key: value for key, value in changed.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=200,
    )


@needs_cuda
def test_machine_and_copies_are_checked(tmp_path: Path) -> None:
    ran = checked(tmp_path / "check.json", "--quick", "--stages", "machine,copies")
    assert ran.returncode == 0, ran.stderr
    record = json.loads((tmp_path / "check.json").read_text())
    assert record["finished"] and record["broken"] == []
    assert [stage["stage"] for stage in record["stages"]] == ["machine", "copies"]
    assert record["machine"]["device"] and record["machine"]["memory_bytes"] > GIB
    copies = record["stages"][1]["figures"]
    for size in ("1 MiB", "4 MiB"):
        assert all(rate > 0 for rate in copies[size]["plain_bytes_per_s"].values())
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [line["stage"] for line in lines] == ["machine", "copies"]
    assert "All that must hold" in ran.stdout


@needs_cuda
@pytest.mark.parametrize("of_nvcomp", [pytest.param((), marks=pytest.mark.slow), ("lz4", "ans")])
def test_codecs_are_measured(tmp_path: Path, of_nvcomp: tuple[str, ...]) -> None:
    if not (library.NATIVE / "codec_kernels.fatbin").exists():
        pytest.skip("built without nvcc")
    there = fake_nvcomp.there() if of_nvcomp else fake_nvcomp.not_there()
    ran = checked(tmp_path / "check.json", "--quick", "--stages", "codecs", **there)
    assert ran.returncode == 0, ran.stderr
    record = json.loads((tmp_path / "check.json").read_text())
    stage = record["stages"][1]
    missing = any("nvCOMP is not installed" in note for note in stage["notes"])
    assert missing == (not of_nvcomp)
    assert len(stage["figures"]["workspaces"]) == len(of_nvcomp) * 2 * 2
    assert (stage["stage"], stage["status"], stage["broken"]) == ("codecs", "done", [])
    rows = stage["figures"]["rows"]
    seen = {(row["codec"], row["dtype"]) for row in rows}
    assert seen == {
        (codec, dtype) for codec in (*NAMES, *of_nvcomp) for dtype in ("float32", "float16")
    }
    keys = {"codec", "dtype", "zeros", "blocks", "threads", "exact", "encoded_part"}
    rates = {"out_gb_s", "in_gb_s", "copy_out_gb_s", "copy_in_gb_s"}
    for row in rows:
        assert set(row) == keys | rates and row["exact"] is True
        assert all(row[rate] > 0 for rate in rates)
    assert len(stage["figures"]["launches"]) == 6 * 4


@needs_cuda
def test_without_a_gpu_the_error_says_what_is_missing(tmp_path: Path) -> None:
    # The simulated GPU is found by this path; a real one is hidden.
    hidden = {"LD_LIBRARY_PATH": None, "CUDA_VISIBLE_DEVICES": ""}
    ran = checked(tmp_path / "check.json", "--quick", **hidden)
    assert ran.returncode == 2, ran.stderr
    assert "There is no GPU to check." in ran.stderr
    record = json.loads((tmp_path / "check.json").read_text())
    assert [stage["status"] for stage in record["stages"]] == ["missing"]
    assert record["exit_status"] == 2


def test_an_unknown_stage_is_refused(tmp_path: Path) -> None:
    ran = checked(tmp_path / "check.json", "--stages", "copy")
    assert ran.returncode == 2 and "unknown stage 'copy'" in ran.stderr


def test_stages_are_chosen_with_the_machine() -> None:
    assert [stage.name for stage in stages.chosen(["copies"])] == ["machine", "copies"]
    assert len(stages.chosen(["sweep"])) == 9  # four models in two types
    every = [stage.name for stage in stages.all_stages()]
    assert [stage.name for stage in stages.chosen([])] == every
    without = ["link", "ordering"]  # of tfswap and TensorFlow
    assert [stage.name for stage in stages.chosen(without)] == every[:2] == without


def test_the_listed_commands_run_every_stage_once() -> None:
    named = [names.split(",") for names, _ in stages.COMMANDS]
    chosen = [s.name for names in named for s in stages.chosen(names) if s.name != "machine"]
    every = [stage.name for stage in stages.all_stages() if stage.name != "machine"]
    assert len(named) == 7 and sorted(chosen) == sorted(every)


@needs_cuda
def test_a_verified_training_counts_the_driver_s_memory(tmp_path: Path) -> None:
    ran = checked(tmp_path / "check.json", "--quick", "--stages", "verified")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads((tmp_path / "check.json").read_text())["stages"][1]["figures"]
    assert figures["driver_bytes"] >= figures["unswapped_peak_bytes"] > figures["peak_bytes"]
    assert figures["bytes_out"] > 0


@needs_cuda
def test_the_driver_s_stages_run_without_tensorflow(tmp_path: Path) -> None:
    ran = checked(tmp_path / "check.json", "--quick", "--stages", "link,ordering")
    assert ran.returncode == 0, ran.stderr
    link, ordering = json.loads((tmp_path / "check.json").read_text())["stages"]
    assert link["status"] == ordering["status"] == "done"
    assert link["figures"]["libraries"]["libcuda.so.1"] == ""
    assert set(link["figures"]["pinned_gb_per_s"]) == {"1 MiB", "4 MiB"}
    assert "register huge pages, untouched" in link["figures"]["pinning_s_per_gib"]
    assert ordering["figures"]["programs"] == 20 and ordering["figures"]["wrong_words"] == 0
    logs = tmp_path / "check-logs"
    assert "tensorflow" not in (logs / "link.txt").read_text().lower()


def test_shares_fit_into_the_time() -> None:
    planned = stages.all_stages()
    left_s = 478.0
    for position, stage in enumerate(planned):
        seconds = share_of(left_s, stage, planned[position + 1 :])
        assert 8 <= seconds <= left_s + 1e-6
        left_s -= seconds
    assert left_s == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ([], 1000),
        ([Tried(1000, True)], 1250),
        ([Tried(1000, True), Tried(1250, False)], 1125),
        ([Tried(1000, True), Tried(1250, False), Tried(1125, True)], 1187),
        ([Tried(1000, True), Tried(1050, False)], None),
        ([Tried(1000, False)], 500),
        ([Tried(1000, False, needed_bytes=20 * GIB)], 776),
        ([Tried(1000, True), Tried(1250, False, needed_bytes=17 * GIB)], 1141),
        ([Tried(1, False)], None),
    ],
)
def test_the_next_batch(tried: list[Tried], expected: int | None) -> None:
    assert next_batch(1000, tried, 16 * GIB) == expected


def trained(losses: list[float], **values: Any) -> Trained:
    return Trained(losses=[loss.hex() for loss in losses], steps=len(losses), **values)


def test_losses_are_compared_for_the_common_steps() -> None:
    once, again = trained([1.0, 0.5, 0.25]), trained([1.0, 0.5])
    assert same_bits([once, again], trained([1.0, 0.5, 7.0])) is True
    assert same_bits([once, once], trained([1.0, 0.5000000000000001])) is False
    assert same_bits([once, trained([1.0, 0.75])], again) is None  # unswapped ones differ
    assert same_bits([once], trained([])) is None
    nan = trained([float("nan")])
    assert same_bits([nan], nan) is None


def test_requirements() -> None:
    baseline = trained([1.0], step_s=0.1)
    kept = trained([1.0], step_s=0.15, budget_bytes=100, peak_bytes=100, resident_bytes=50)
    values = figures_of([baseline], kept, True)
    assert broken("0.5", values) == []
    assert values["step_ratio"] == pytest.approx(1.5)
    assert values["exposed_copy_s"] == pytest.approx(0.05)
    kept.peak_bytes = 101
    assert "peak 101 over 100" in broken("0.5", figures_of([baseline], kept, True))[0]
    kept.resident_bytes = 101  # not caused by a training
    assert broken("0.5", figures_of([baseline], kept, True)) == []
    assert "losses differ" in broken("0.5", figures_of([baseline], kept, False))[0]


def test_the_record_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(tmp_path / "deep" / "check.json", 8, quick=False)
    record.add({"stage": "machine", "status": "done", "figures": {"device": "H200"}})
    record.add({"stage": "copies", "status": "skipped", "why": "time"})
    record.add({"stage": "tests", "status": "cut", "why": "slow", "silent_s": 3.0})
    assert record.exit_status == 0 and not record.fake
    record.add({"stage": "sweep:A:float32", "status": "done", "broken": ["at 0.5: the losses"]})
    record.add({"stage": "vgg16_12gb", "status": "failed", "why": "it crashed"})
    record.add({"stage": "bert_max_batch", "status": "cut", "why": "silent", "silent_s": 90.0})
    assert record.exit_status == 1
    said = json.loads((tmp_path / "deep" / "check.json").read_text())["broken"]
    assert said == [
        "sweep:A:float32: at 0.5: the losses",
        "vgg16_12gb: it crashed",
        "bert_max_batch hung: silent",
    ]
    assert all(text in record.table() for text in ("skipped: time", "it crashed", "hung"))
    capsys.readouterr()


def test_json_has_no_other_numbers() -> None:
    found = as_json({"a": [float("nan"), 1.5, (True, None)], 2: float("inf"), "p": Path("x")})
    assert found == {"a": [None, 1.5, [True, None]], "2": None, "p": "x"}
