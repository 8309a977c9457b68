"""Plans before the first step: foretold from the graph alone, or remembered from an earlier run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from models import Losses, budget_of, compiled, convolutions, deterministic, images, trained

import tfswap
from tfswap.ops import library
from tfswap.ops.loaded_library import Library
from tfswap.plan.schema import SwapPlan
from tfswap.training import plan_desk
from tfswap.training.batch_hint import examples_of_fit
from tfswap.training.first_plans import FirstPlans, gpu_like

EPOCHS = 3


@pytest.fixture(autouse=True)
def determinism() -> None:
    deterministic()


@pytest.fixture(scope="module")
def unswapped() -> Losses:
    deterministic()
    return trained(lambda: compiled(convolutions()), epochs=EPOCHS)


class Phases(keras.callbacks.Callback):
    """What each step was for, and what the pass had done to its graph when the first one ended.

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


def test_the_first_step_goes_by_a_plan_of_the_graph_alone(unswapped: Losses) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    losses, swap, phases = trained_under(budget_bytes, None)
    assert swap.report.first_plan == "foretold"
    assert phases.outcomes == ["planned"]
    # It is profiled all the same: nobody has measured anything.
    assert phases.seen[:4] == ["first", "warm", "profile", "profile"]
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget_bytes
    assert swap.report.outcome == "swapped"


def test_batches_of_unknown_size_are_told_by_keras(unswapped: Losses) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    x, y = images(256 + 8)  # the last batch is smaller
    build = lambda: compiled(convolutions())  # noqa: E731
    reference = trained(build, data=(x, y))
    swap = tfswap.AutoSwap(budget=budget_bytes, verbose=0)
    losses = trained(build, [swap], data=(x, y))
    assert swap.report.first_plan == "foretold"
    assert losses.losses == reference.losses
    assert max(losses.peaks) <= budget_bytes


def test_a_step_whose_sizes_nobody_knows_goes_by_lazy_swaps(unswapped: Losses) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    x, y = images(256 + 8)
    signature = (tf.TensorSpec([None, *x.shape[1:]]), tf.TensorSpec([None], tf.int64))

    def batches() -> Any:
        for begin in range(0, len(x), 32):
            yield x[begin : begin + 32], y[begin : begin + 32]

    swap = tfswap.AutoSwap(budget=budget_bytes, verbose=0)
    model = compiled(convolutions())
    model.fit(
        tf.data.Dataset.from_generator(batches, output_signature=signature),
        verbose=0,
        callbacks=[swap],
    )
    assert swap.report.first_plan == "lazy"
    assert swap.report.outcome == "swapped"


def test_a_later_training_begins_with_the_plan(unswapped: Losses, tmp_path: Path) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    _, first, phases = trained_under(budget_bytes, tmp_path)
    assert "profile" in phases.seen
    losses, later, phases = trained_under(first.report.plan.budget_bytes, tmp_path)
    assert later.report.first_plan == "remembered"
    assert phases.seen[:2] == ["first", "measure"] and "profile" not in phases.seen
    assert later.report.outcome == "swapped"
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget_bytes
    assert later.report.least_budgets is not None and later.report.story is not None


@pytest.mark.slow
def test_so_does_a_second_fit_of_the_same_model(unswapped: Losses, tmp_path: Path) -> None:
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
    assert reports == [("foretold", True), *[("remembered", False)] * 3]
    # In the end TensorFlow has the graph as it is to be, and does not optimise it again.
    assert records[-1] == records[-2]


@pytest.mark.slow
def test_so_does_one_in_another_process(unswapped: Losses, tmp_path: Path) -> None:
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
    assert [first_plan for first_plan, _ in found] == ["foretold", "remembered"]
    assert found[0][1] == found[1][1] == unswapped.losses


@pytest.mark.slow
def test_for_another_budget_it_is_planned_from_the_remembered_step(
    unswapped: Losses, tmp_path: Path
) -> None:
    for _ in range(3):  # only a plan whose steps were as foretold is kept
        trained_under(budget_of(unswapped, 0.75), tmp_path)
        if list(tmp_path.glob("*.plan")):
            break
    budget_bytes = budget_of(unswapped, 0.65)
    losses, later, phases = trained_under(budget_bytes, tmp_path)
    assert later.report.first_plan == "remembered"
    assert "profile" not in phases.seen
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget_bytes


def test_a_remembered_plan_that_is_not_as_foretold_is_made_anew(
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
    assert any("made anew" in note for note in later.report.notes)
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget_bytes
    assert later.report.outcome == "swapped"


@pytest.mark.slow
def test_swaps_of_tensors_that_are_not_there_are_not_believed(
    unswapped: Losses, tmp_path: Path
) -> None:
    budget_bytes = budget_of(unswapped, 0.7)
    _, first, _ = trained_under(budget_bytes, tmp_path, policy="greedy")
    for path in tmp_path.glob("*.plan"):
        data = json.loads(path.read_text())
        for swap in data["plan"]["functions"][0]["swaps"]:
            swap["tensor"] = "nobody:0"
            break
        path.write_text(json.dumps(data))
    losses, later, phases = trained_under(first.report.plan.budget_bytes, tmp_path, policy="greedy")
    assert "profile" in phases.seen
    assert later.report.first_plan == "foretold"
    assert losses.losses == unswapped.losses
    assert later.report.outcome == "swapped"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("raises", marks=pytest.mark.slow),
        pytest.param("is of another graph", marks=pytest.mark.slow),
        "cannot be applied",
    ],
)
def test_an_answer_that_is_no_good_leaves_lazy_swaps(
    unswapped: Losses, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def foretold(self: FirstPlans, question: plan_desk.Question) -> Any:
        if kind == "raises":
            raise RuntimeError("no idea")
        known = found(self, question)
        assert known is not None
        if kind == "is of another graph":
            changes: dict[str, Any] = {"fingerprint": "0" * 16}
        else:
            changes = {"order": (("nobody", "nothing"),)}
        return replace(known, function=replace(known.function, **changes))

    found: Callable[..., Any] = FirstPlans._foretold
    monkeypatch.setattr(FirstPlans, "_foretold", foretold)
    budget_bytes = budget_of(unswapped, 0.7)
    losses, swap, phases = trained_under(budget_bytes, None)
    assert phases.outcomes == ["bootstrapped"]
    assert losses.losses == unswapped.losses
    assert max(losses.peaks) <= budget_bytes
    assert swap.report.outcome == "swapped"
    said = [note for note in swap.report.notes if "no plan for the first step" in note]
    assert bool(said) == (kind == "raises")


def test_nobody_waits_for_an_answer_for_ever(
    unswapped: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def foretold(self: FirstPlans, question: plan_desk.Question) -> None:
        answers.wait(60)

    monkeypatch.setattr(FirstPlans, "_foretold", foretold)
    monkeypatch.setattr(plan_desk, "_PATIENCE_S", 0.3)
    try:
        losses, _, phases = trained_under(budget_of(unswapped, 0.7), None)
    finally:
        answers.set()
    assert phases.outcomes == ["bootstrapped"]
    assert losses.losses == unswapped.losses


def test_a_training_that_ended_is_not_asked(lib: Library) -> None:
    desk = plan_desk.of_process(lib)
    desk.open("nobody", lambda question: SwapPlan(), (0.0, 0.0, 0.0), 0)
    desk.close("nobody")
    desk.close("nobody")
    assert "nobody" not in desk._answers


def test_gpus_are_known_by_name_or_generation() -> None:
    h100 = gpu_like("NVIDIA H100 80GB HBM3", (9, 0))
    assert h100 is not None and h100.product_ops_per_s > 4e14
    assert gpu_like("Tesla V100-SXM2-16GB", (7, 0)) is not None
    assert gpu_like("A GPU of 2040", (9, 0)) == h100
    assert gpu_like("A GPU of 2040", None) is None


def test_how_large_batches_are() -> None:
    class Iterator:
        def __init__(self, adapter: Any) -> None:
            self.data_adapter = adapter

    class Adapter:
        batch_size = None

        def __init__(self, dataset: Any) -> None:
            self._dataset = dataset

    numbers = tf.data.Dataset.from_tensor_slices(np.zeros((100, 3)))
    batches = numbers.shuffle(10, seed=1).batch(16).prefetch(2)
    assert examples_of_fit(Iterator(Adapter(batches))) == 16
    assert examples_of_fit(Iterator(Adapter(numbers))) == 0
    assert examples_of_fit(Iterator(None)) == 0
    assert examples_of_fit(None) == 0
