"""Tests of which remembered plans a training offers to the pass."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from timelines import FakeMachine, training_step

from tfswap.devices.swap_options import AUTO_SECTIONS, SwapOptions
from tfswap.plan.cache import PlanMemory
from tfswap.plan.schema import FunctionPlan, Return, SwapPlan, TensorSwap
from tfswap.report.training_log import TrainingLog
from tfswap.step.profile import Profile
from tfswap.training.remembered_plans import RememberedPlans

GRAPH, OTHER = "0123456789abcdef", "fedcba9876543210"
BUDGET = 100 << 20
SWAP = TensorSwap("x:0", 4 << 20, ("gate",), (Return("trigger", ("reader",)),))


class Devices:
    """One CPU device with a budget."""

    numbers = (0,)
    on_cpu = True
    link = SimpleNamespace(machine=lambda: FakeMachine(2e9, 3e9))
    weights_may_leave = False

    def __init__(self) -> None:
        self.budget_bytes = BUDGET

    def covers(self, planned_bytes: int) -> bool:
        return self.budget_bytes >= planned_bytes


class Training:
    """A training's remembered plans, the paths that it offers to the pass, and its notes."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.devices = Devices()
        self.session: Any = SimpleNamespace(remembered={})
        self.notes: list[str] = []
        context: Any = SimpleNamespace(
            options=SwapOptions(budget=BUDGET, plan_cache=folder, **options),
            devices=self.devices,
            log=TrainingLog(self.notes, prints=False),
        )
        self.plans = RememberedPlans(context, self.session)
        self.plans.begin()


def keep(training: Training, graph: str, **changes: Any) -> FunctionPlan:
    function = FunctionPlan(graph, (dataclasses.replace(SWAP, **changes),))
    profile = Profile(training_step(), graph, (), 12, 13)
    training.plans.keep(profile, function, BUDGET)
    return function


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the plans of two graphs."""
    path = tmp_path / "plans"
    for graph in (GRAPH, OTHER):
        keep(Training(path), graph)
    return path


def test_the_paths_of_all_plans_that_fit_are_offered(folder: Path) -> None:
    training = Training(folder)
    assert set(training.session.remembered) == {GRAPH, OTHER}
    for graph, path in training.session.remembered.items():
        assert Path(path).is_absolute()
        plan = training.plans.plan(graph)
        assert plan is not None and plan.path == Path(path)
    assert Training(folder).session.remembered == training.session.remembered


@pytest.mark.parametrize(
    "options", [{"sections": AUTO_SECTIONS}, {"lossy": True}, {"plan": SwapPlan()}]
)
def test_some_trainings_use_no_cache(folder: Path, options: dict[str, Any]) -> None:
    training = Training(folder, **options)
    assert training.session.remembered == {} and training.plans.plan(GRAPH) is None


def test_what_is_declined_or_forgotten_is_not_offered(folder: Path) -> None:
    training = Training(folder)
    training.plans.decline(GRAPH)
    assert set(training.session.remembered) == {OTHER}
    training.plans.forget(OTHER)
    assert training.session.remembered == {}
    assert set(Training(folder).session.remembered) == {GRAPH}


def test_a_plan_for_more_than_the_budget_is_not_offered(folder: Path) -> None:
    training = Training(folder)
    training.plans.budget_changed()
    assert set(training.session.remembered) == {GRAPH, OTHER}
    training.devices.budget_bytes -= 1
    training.plans.budget_changed()
    assert training.session.remembered == {}


def test_a_plan_is_written_again_only_if_it_is_another_one(folder: Path) -> None:
    training = Training(folder)
    path = Path(training.session.remembered[GRAPH])
    keep(training, GRAPH)
    assert path.exists() and GRAPH in training.session.remembered
    keep(training, GRAPH, tensor="y:0")
    assert not path.exists() and GRAPH not in training.session.remembered
    assert Training(folder).session.remembered[GRAPH] != str(path)


def test_a_plan_with_lossy_codecs_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    keep(Training(folder), GRAPH, tier="compressed", codec="bfp", rate_percent=50)
    assert list(folder.glob("*.plan"))
    assert Training(folder).session.remembered == {}
    assert not list(folder.glob("*.plan"))


def test_a_folder_that_others_may_write_to_is_noted(folder: Path) -> None:
    folder.chmod(0o777)
    training = Training(folder)
    assert training.session.remembered == {}
    keep(training, GRAPH, tensor="y:0")
    assert "this plan is not remembered" in training.notes[0]


def test_the_cache_keeps_profiles(folder: Path) -> None:
    training = Training(folder)
    memory = training.plans._memory()
    assert isinstance(memory, PlanMemory) and memory.profile(GRAPH) is not None
