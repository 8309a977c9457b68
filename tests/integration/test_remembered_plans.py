"""Trainings that begin with a plan or a profile of an earlier training on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import pytest
from models import Losses, budget_of, compiled, convolutions, deterministic, images, trained

import tfswap
from tfswap.machine.link import Link
from tfswap.ops import library
from tfswap.plan.cache import PlanMemory, RememberedPlan

EPOCHS = 3


@pytest.fixture(autouse=True)
def determinism() -> None:
    deterministic()


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    return trained(lambda: compiled(convolutions()), epochs=EPOCHS)


class Phases(keras.callbacks.Callback):
    """Record the phase of each step, and the outcomes of the pass when the first step ends.

    Attributes:
        seen: The phase before each step.
        outcomes: Of graphs that train.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.outcomes: list[str] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append(tfswap.status()["trainings"][0]["phase"])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.outcomes:
            records = library.load().pass_records()
            self.outcomes = [record["outcome"] for record in records if record["swaps"]]


def trained_under(
    budget_bytes: int, folder: Path | None, **options: Any
) -> tuple[Losses, tfswap.AutoSwap, Phases]:
    library.load().clear_pass_records()
    swap = tfswap.AutoSwap(budget=budget_bytes, plan_cache=folder, verbose=0, **options)
    phases = Phases()
    losses = trained(lambda: compiled(convolutions()), [swap, phases], epochs=EPOCHS)
    return losses, swap, phases


@pytest.fixture(scope="module")
def kept(unswapped: Losses, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the plan for 0.7 of the peak."""
    deterministic()
    folder = tmp_path_factory.mktemp("plans")
    for _ in range(3):  # only a plan whose peak was as predicted is kept
        trained_under(budget_of(unswapped, 0.7), folder, policy="greedy")
        if list(folder.glob("*.plan")):
            break
    return folder


@pytest.fixture
def remembered(kept: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder."""
    folder = tmp_path / "plans"
    shutil.copytree(kept, folder)
    folder.chmod(0o700)
    return folder


def test_a_later_training_begins_with_the_plan(unswapped: Losses, tmp_path: Path) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    _, first, phases = trained_under(budget_bytes, tmp_path)
    assert "profile" in phases.seen
    losses, later, phases = trained_under(first.report.plan.budget_bytes, tmp_path)
    assert later.report.first_plan == "remembered"
    assert phases.seen[:2] == ["bootstrap", "measure"] and "profile" not in phases.seen
    assert later.report.outcome == "swapped"
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget_bytes
    assert later.report.least_budgets is not None and later.report.story is not None


@pytest.mark.slow
def test_a_second_fit_of_the_same_model_begins_with_the_plan(
    unswapped: Losses, tmp_path: Path
) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    model = compiled(convolutions())
    x, y = images()
    reports, records = [], []
    for _ in range(4):
        swap = tfswap.AutoSwap(budget=budget_bytes, plan_cache=tmp_path, verbose=0)
        phases = Phases()
        model.fit(x, y, epochs=2, verbose=0, callbacks=[swap, phases])
        reports.append((swap.report.first_plan, "profile" in phases.seen))
        records.append(library.load().pass_records()[-1]["serial"])
    assert reports == [("", True), *[("remembered", False)] * 3]
    # In the end TensorFlow has the final graph and does not optimize it again.
    assert records[-1] == records[-2]


@pytest.mark.slow
def test_a_fit_in_another_process_begins_with_the_plan(unswapped: Losses, tmp_path: Path) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    script = (
        "import json, sys; sys.path[:0] = sys.argv[3:]; import tfswap, models;"
        "models.deterministic();"
        "swap = tfswap.AutoSwap(budget=int(sys.argv[1]), plan_cache=sys.argv[2], verbose=0);"
        "build = lambda: models.compiled(models.convolutions());"
        f"losses = models.trained(build, [swap], epochs={EPOCHS}).losses;"
        "print(json.dumps([swap.report.first_plan, losses]))"
    )
    here = Path(__file__).resolve()
    paths = [str(here.parents[2]), str(here.parent)]
    command = [sys.executable, "-c", script, str(budget_bytes), str(tmp_path), *paths]
    found = []
    for _ in range(2):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr[-2000:]
        found.append(json.loads(ended.stdout.splitlines()[-1]))
    assert [first_plan for first_plan, _ in found] == ["", "remembered"]
    assert found[0][1] == found[1][1] == unswapped.losses


@pytest.mark.slow
def test_for_another_budget_it_is_planned_from_the_remembered_step(
    unswapped: Losses, tmp_path: Path
) -> None:
    for _ in range(3):  # only a plan whose peak was as predicted is kept
        trained_under(budget_of(unswapped, 0.75), tmp_path)
        if list(tmp_path.glob("*.plan")):
            break
    budget_bytes = budget_of(unswapped, 0.65)
    losses, later, phases = trained_under(budget_bytes, tmp_path)
    assert later.report.first_plan == "remembered"
    assert "profile" not in phases.seen
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget_bytes


def test_a_remembered_plan_with_an_unpredicted_peak_is_replaced(
    unswapped: Losses, tmp_path: Path
) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    _, first, _ = trained_under(budget_bytes, tmp_path)
    for path in tmp_path.glob("*.plan"):
        data = json.loads(path.read_text())
        data["plan"]["functions"][0]["predicted_peak_bytes"] //= 2
        path.write_text(json.dumps(data))
    losses, later, phases = trained_under(first.report.plan.budget_bytes, tmp_path)
    assert phases.seen.index("measure") < phases.seen.index("profile")
    assert any("made again" in note for note in later.report.notes)
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget_bytes
    assert later.report.outcome == "swapped"


@pytest.mark.slow
def test_swaps_of_missing_tensors_are_not_applied(unswapped: Losses, tmp_path: Path) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    _, first, _ = trained_under(budget_bytes, tmp_path, policy="greedy")
    for path in tmp_path.glob("*.plan"):
        data = json.loads(path.read_text())
        for swap in data["plan"]["functions"][0]["swaps"]:
            swap["tensor"] = "missing:0"
            break
        path.write_text(json.dumps(data))
    losses, later, phases = trained_under(first.report.plan.budget_bytes, tmp_path, policy="greedy")
    assert "profile" in phases.seen
    assert later.report.first_plan == ""
    assert losses.losses == unswapped.losses
    assert later.report.outcome == "swapped"


def spoil(path: Path, kind: str) -> None:
    """Replace a plan's file after a training has listed it, before the pass reads it."""
    text = path.read_text()
    data = json.loads(text)
    (function,) = data["plan"]["functions"]
    if kind == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    elif kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif kind == "gone":
        path.unlink()
    elif kind == "writable by others":
        path.chmod(0o666)
    elif kind == "too large":
        with path.open("ab") as file:
            file.truncate((64 << 20) + 1)
    elif kind == "not JSON":
        path.write_bytes(b"\x00\xff" + text.encode())
    elif kind == "deep":
        path.write_text("[" * 100_000)
    elif kind == "of another graph":
        function["fingerprint"] = "0" * 16
    elif kind == "of another step":
        function["swaps"][0]["tensor"] = "nothing:0"
    elif kind == "of ops that are not there":
        function["order"] = [["nothing", "nowhere"]]
    else:
        data["plan"] = [data["plan"]]
    if kind.startswith("of") or kind == "no plan":
        path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    "kind",
    [
        "link",
        pytest.param("pipe", marks=pytest.mark.slow),
        pytest.param("gone", marks=pytest.mark.slow),
        pytest.param("writable by others", marks=pytest.mark.slow),
        pytest.param("too large", marks=pytest.mark.slow),
        pytest.param("not JSON", marks=pytest.mark.slow),
        pytest.param("deep", marks=pytest.mark.slow),
        pytest.param("no plan", marks=pytest.mark.slow),
        pytest.param("of another graph", marks=pytest.mark.slow),
        "of another step",
        pytest.param("of ops that are not there", marks=pytest.mark.slow),
    ],
)
def test_a_file_that_the_pass_cannot_use_leaves_on_demand_swaps(
    unswapped: Losses, remembered: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Python lists valid files only, so replace them after it has listed them."""
    listed = PlanMemory.plans

    def plans(memory: PlanMemory, budget_bytes: int, link: Link) -> dict[str, RememberedPlan]:
        found = listed(memory, budget_bytes, link)
        assert len(found) == 1
        for plan in found.values():
            spoil(plan.path, kind)
        return found

    monkeypatch.setattr(PlanMemory, "plans", plans)
    budget_bytes = budget_of(unswapped, 0.7)
    losses, swap, phases = trained_under(budget_bytes, remembered, policy="greedy")
    assert phases.outcomes == ["bootstrapped"]
    assert phases.seen[:3] == ["bootstrap", "warm", "profile"]
    assert swap.report.first_plan == ""
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget_bytes
    assert swap.report.outcome == "swapped"


@pytest.mark.slow
def test_a_lossy_remembered_plan_is_not_used(unswapped: Losses, remembered: Path) -> None:
    for path in remembered.glob("*.plan"):
        data = json.loads(path.read_text())
        for swap in data["plan"]["functions"][0]["swaps"]:
            swap |= {"tier": "compressed", "codec": "bfp", "rate_percent": 25}
        path.write_text(json.dumps(data))
    losses, _, phases = trained_under(budget_of(unswapped, 0.7), remembered, policy="greedy")
    assert phases.outcomes == ["bootstrapped"]
    assert losses.losses == unswapped.losses


@pytest.mark.slow
def test_a_profile_of_another_step_is_forgotten(unswapped: Losses, remembered: Path) -> None:
    (path,) = remembered.glob("*.profile")
    path.write_bytes(b"no profile")
    losses, swap, phases = trained_under(budget_of(unswapped, 0.7), remembered, policy="greedy")
    assert phases.outcomes == ["planned"] and phases.seen[1] == "warm"
    assert swap.report.first_plan == ""
    assert losses.losses == unswapped.losses
