"""The plan cache: which steps and plans it returns, and which files it ignores."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from timelines import FakeMachine, assert_same, training_step

from tfswap.plan import cache
from tfswap.plan.cache import FOLDER, PlanMemory, context_of, default_folder, parse_folder
from tfswap.plan.schema import FunctionPlan, Return, TensorSwap
from tfswap.step.profile import Profile

GRAPH, OTHER = "0123456789abcdef", "fedcba9876543210"
LINK = FakeMachine(2e9, 3e9)
CONTEXT = context_of({"machine": "this one"})
MIB = 1 << 20


def profile_of(fingerprint: str = GRAPH) -> Profile:
    return Profile(training_step(), fingerprint, (("a", "b"),), 12, 13, large_ops=(0, 2))


def plan_of(fingerprint: str = GRAPH, tensor: str = "x:0") -> FunctionPlan:
    swap = TensorSwap(tensor, 4 * MIB, ("gate",), (Return("trigger", ("reader",)),))
    return FunctionPlan(fingerprint, (swap,), (("a", "b"),), predicted_peak_bytes=7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "plans"


@pytest.fixture
def memory(folder: Path) -> PlanMemory:
    return PlanMemory(folder, CONTEXT)


def test_a_stored_plan_is_found(memory: PlanMemory, folder: Path) -> None:
    profile = profile_of()
    memory.keep(profile, plan_of(), 100 * MIB, LINK)
    plan = memory.plans(101 * MIB, LINK)[GRAPH]
    assert plan.function == plan_of() and plan.budget_bytes == 100 * MIB
    assert plan.path.parent == folder and plan.path.stat().st_mode & 0o777 == 0o600
    found = memory.profile(GRAPH)
    assert found is not None
    assert_same(found.timeline, profile.timeline)
    assert replace(found, timeline=profile.timeline) == profile
    assert os.stat(folder).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("budget_bytes", [99 * MIB, 104 * MIB, 200 * MIB])
def test_a_plan_for_another_budget_is_ignored_but_its_profile_is_used(
    memory: PlanMemory, budget_bytes: int
) -> None:
    memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)
    assert memory.plans(budget_bytes, LINK) == {}
    assert memory.profile(GRAPH) is not None


def test_each_budget_has_its_plan(memory: PlanMemory) -> None:
    memory.keep(profile_of(), plan_of(tensor="x:0"), 100 * MIB, LINK)
    memory.keep(profile_of(), plan_of(tensor="y:0"), 200 * MIB, LINK)
    for budget_bytes, tensor in ((100 * MIB, "x:0"), (200 * MIB, "y:0")):
        assert memory.plans(budget_bytes, LINK)[GRAPH].function.swaps[0].tensor == tensor


def test_another_plan_for_the_budget_has_another_path(memory: PlanMemory, folder: Path) -> None:
    paths = set()
    for tensor in ("x:0", "y:0", "y:0"):
        memory.keep(profile_of(), plan_of(tensor=tensor), 100 * MIB, LINK)
        paths.add(memory.plans(100 * MIB, LINK)[GRAPH].path)
        assert len(list(folder.glob("*.plan"))) == 1
    assert len(paths) == 2


def test_the_plans_of_all_graphs_are_listed(
    memory: PlanMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.keep(profile_of(), plan_of(), 98 * MIB, LINK)  # for less than the next one
    for graph in (GRAPH, OTHER):
        memory.keep(profile_of(graph), plan_of(graph), 100 * MIB + 1, LINK)
    plans = memory.plans(101 * MIB, LINK)
    budgets_bytes = {graph: plan.budget_bytes for graph, plan in plans.items()}
    assert budgets_bytes == {GRAPH: 100 * MIB + 1, OTHER: 100 * MIB + 1}
    os.utime(plans[GRAPH].path, (1, 1))
    monkeypatch.setattr(cache, "MAX_PLANS", 1)
    assert set(memory.plans(101 * MIB, LINK)) == {OTHER}


@pytest.mark.parametrize("kind", ["link", "pipe", "writable by others", "too large", "empty plan"])
def test_files_that_are_not_the_users_plans_are_not_listed(
    memory: PlanMemory, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)
    path = memory.plans(100 * MIB, LINK)[GRAPH].path
    if kind == "link":
        path.rename(folder / "elsewhere")
        path.symlink_to(folder / "elsewhere")
    elif kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif kind == "writable by others":
        path.chmod(0o622)
    elif kind == "too large":
        monkeypatch.setattr(cache, "MAX_BYTES", 100)
    else:
        data = json.loads(path.read_text())
        data["plan"]["functions"][0]["swaps"] = []
        path.write_text(json.dumps(data))
    assert memory.plans(100 * MIB, LINK) == {}
    assert not path.is_symlink() and not path.exists()


def test_a_plan_for_another_link_is_ignored(memory: PlanMemory) -> None:
    memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)
    for link, is_the_same in ((FakeMachine(2.4e9, 2.6e9), True), (FakeMachine(3e9, 3e9), False)):
        assert (GRAPH in memory.plans(100 * MIB, link)) == is_the_same


def test_other_graphs_and_contexts_do_not_find_it(memory: PlanMemory, folder: Path) -> None:
    memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)
    elsewhere = PlanMemory(folder, context_of({"machine": "another one"}))
    assert elsewhere.plans(100 * MIB, LINK) == {} and elsewhere.profile(GRAPH) is None
    assert memory.profile(OTHER) is None
    assert memory.profile("../" + GRAPH[3:]) is None


def test_forgotten_entries_are_removed(memory: PlanMemory, folder: Path) -> None:
    memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)
    memory.keep(profile_of(OTHER), plan_of(OTHER), 100 * MIB, LINK)
    memory.forget(GRAPH)
    assert set(memory.plans(100 * MIB, LINK)) == {OTHER}
    assert memory.profile(GRAPH) is None and memory.profile(OTHER) is not None
    assert all(path.name.startswith(OTHER) for path in folder.iterdir())


@pytest.mark.parametrize("suffix", [".profile", ".plan"])
@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 64, b"{}", b'{"format": "tfswap remembered plan 1", "plan": 7}']
)
def test_invalid_entries_are_ignored(
    memory: PlanMemory, folder: Path, suffix: str, content: bytes
) -> None:
    memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)
    (path,) = (each for each in folder.iterdir() if each.suffix == suffix)
    path.write_bytes(content)
    assert (GRAPH in memory.plans(100 * MIB, LINK)) == (suffix == ".profile")
    assert (memory.profile(GRAPH) is None) == (suffix == ".profile")
    assert not path.exists()


def test_files_under_another_graphs_name_are_not_used(memory: PlanMemory, folder: Path) -> None:
    memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)
    for path in list(folder.iterdir()):
        os.replace(path, folder / path.name.replace(GRAPH, OTHER))
    assert memory.plans(100 * MIB, LINK) == {}
    assert memory.profile(OTHER) is None


def test_a_plan_of_another_graph_in_a_file_is_ignored(memory: PlanMemory, folder: Path) -> None:
    memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)
    (path,) = (each for each in folder.iterdir() if each.suffix == ".plan")
    data = json.loads(path.read_text())
    data["plan"]["functions"][0]["fingerprint"] = OTHER
    path.write_text(json.dumps(data))
    assert memory.plans(100 * MIB, LINK) == {}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to_is_not_used(
    memory: PlanMemory, folder: Path, mode: int
) -> None:
    memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)
    folder.chmod(mode)
    assert memory.plans(100 * MIB, LINK) == {} and memory.profile(GRAPH) is None
    with pytest.raises(PermissionError, match="others may write to it.*chmod 700"):
        memory.keep(profile_of(), plan_of(), 100 * MIB, LINK)


def test_the_least_recently_used_entries_are_removed(folder: Path) -> None:
    whole = PlanMemory(folder, CONTEXT)
    graphs = [f"{place:016x}" for place in range(4)]
    for place, graph in enumerate(graphs):
        whole.keep(profile_of(graph), plan_of(graph), 100 * MIB, LINK)
        for path in folder.glob(f"{graph}*"):
            os.utime(path, (place, place))
    os.utime(next(folder.glob(f"{graphs[0]}*.plan")))  # is used again
    assert whole.profile(graphs[0]) is not None
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    small = PlanMemory(folder, CONTEXT, limit_bytes=size_bytes * 4 // 5)
    small.keep(profile_of(OTHER), plan_of(OTHER), 100 * MIB, LINK)
    known = [whole.profile(graph) is not None for graph in (*graphs, OTHER)]
    assert known == [True, False, False, True, True]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= size_bytes * 4 // 5


def test_the_location_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER, "none")
    assert default_folder() is None and parse_folder("auto") is None
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "tfswap" / "plans"
    assert parse_folder(None) is None
    assert parse_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="plan_cache is 7; it must be a folder, 'auto', or None"):
        parse_folder(7)
