"""The allocator benchmark: how it summarizes trainings, and its output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import allocator
from benchmarks.allocator import Case

LINE = [
    "model",
    "batch",
    "image",
    "allocator",
    "budget_bytes",
    "budget_share",
    "footprint_bytes",
    "peak_load_bytes",
    "ratio",
    "slab_share",
    "planned_share",
    "step_s",
    "losses_equal",
]


def answers(case: Case) -> dict[str, Any]:
    """Answer like a model for which half of its peak is too little for BFC."""
    if case.allocator == "bfc" and case.budget_bytes is not None:
        return {"failed": "ResourceExhaustedError"}
    return {"losses": ["0x1p0", "0x1p-1"], "unswapped_peak_bytes": 1000, "step_s": 0.5}


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the load bound of the profile by a list whose only element tests can change."""
    found = [300]
    monkeypatch.setattr(allocator, "load_profile", lambda path: None)
    monkeypatch.setattr(allocator, "load_bound", lambda profile: found[0])
    return found


@pytest.mark.parametrize(("least", "limit", "share"), [(300, 500, 0.5), (600, 630, 0.63)])
def test_both_allocators_get_half_of_the_unswapped_peak(
    monkeypatch: pytest.MonkeyPatch, bound: list[int], least: int, limit: int, share: float
) -> None:
    monkeypatch.setattr(allocator, "in_a_process", answers)
    bound[0] = least
    lines = list(allocator.trainings("VGG16", 4, 32, 2, Path("profile")))
    assert [(line["allocator"], line["budget_bytes"]) for line in lines] == [
        ("bfc", None),
        ("slab", None),
        ("bfc", limit),
        ("slab", limit),
    ]
    assert [line["budget_share"] for line in lines] == [None, None, share, share]
    assert [line["losses_equal"] for line in lines] == [True, True, None, True]
    assert list(lines[0]) == LINE and list(lines[2]) == [*LINE, "failed"]


def test_losses_are_not_compared_when_unswapped_trainings_differ(
    monkeypatch: pytest.MonkeyPatch, bound: list[int]
) -> None:
    count = iter(range(10))
    unlike = lambda case: {**answers(case), "losses": [str(next(count))]}  # noqa: E731
    monkeypatch.setattr(allocator, "in_a_process", unlike)
    lines = list(allocator.trainings("VGG16", 4, 32, 2, Path("profile")))
    assert [line["losses_equal"] for line in lines] == [None] * 4


@pytest.mark.parametrize(("third", "equal"), [("0", False), ("1", None)])
def test_different_losses_count_when_more_unswapped_trainings_agree(
    monkeypatch: pytest.MonkeyPatch, bound: list[int], third: str, equal: bool | None
) -> None:
    unswapped = iter(["0", "0", third, "0", "0"])

    def of_slab_unlike(case: Case) -> dict[str, object]:
        answer = answers(case)
        if "losses" not in answer:
            return answer
        return {**answer, "losses": ["2"] if case.allocator == "slab" else [next(unswapped)]}

    monkeypatch.setattr(allocator, "in_a_process", of_slab_unlike)
    lines = list(allocator.trainings("VGG16", 4, 32, 2, Path("profile")))
    assert [line["losses_equal"] for line in lines][1::2] == [equal, equal]
    assert len(list(unswapped)) == (0 if equal is False else 2)


@pytest.mark.parametrize(
    ("least", "ratio"), [(0, 1.0), (1, 1.01), (17, 1.17), (99, 1.99), (200, None)]
)
def test_the_least_budget_is_found(
    monkeypatch: pytest.MonkeyPatch, bound: list[int], least: int, ratio: float | None
) -> None:
    tried: list[int] = []

    def trial(case: Case, profile: object, bound: int, percent: int) -> float | None:
        tried.append(percent)
        return 0.5 if percent >= least else None

    monkeypatch.setattr(allocator, "trial", trial)
    bound[0] = 1000
    for line in allocator.least_budgets("VGG16", 4, 32, 2, Path("profile")):
        assert line["ratio"] == ratio and line["load_bound_bytes"] == 1000
        assert line["least_budget_bytes"] == (None if ratio is None else 1000 + 10 * least)
    assert len(tried) <= 2 * 9


def test_a_replayed_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert allocator.main(["--parts", "replay", "--quick"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["threads"], line["allocator"]) for line in lines] == [
        (threads, name) for threads in (1, 4) for name in ("bfc", "slab", "device")
    ]
    for line in lines:
        assert line["failures"] == line["taken"] == 0 and line["ns_per_pair"] > 0


def test_invalid_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--models", "LeNet"], ["--parts", "all"]):
        with pytest.raises(SystemExit):
            allocator.main(arguments)
        assert f"unknown: {arguments[1]}" in capsys.readouterr().err
    assert allocator.main(["--parts", "replay", "--trace", "nowhere.profile"]) == 1
    assert "nowhere.profile" in capsys.readouterr().err
