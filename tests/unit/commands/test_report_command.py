"""``tfswap report``: a page about a plan and the profiled step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from timelines import training_step

from tfswap.__main__ import main
from tfswap.step.profile import Profile
from tfswap.step.timeline import peak_load
from tfswap.traces.timeline_file import save_profile


def profile_of(graph: str, folder: Path) -> Path:
    timeline = training_step(blocks=3)
    peak_bytes = peak_load(timeline)
    path = folder / f"{graph}.profile"
    save_profile(Profile(timeline, graph, (), peak_bytes, peak_bytes), path)
    return path


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return profile_of("0123456789abcdef", tmp_path)


@pytest.fixture
def plan(profile: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    assert main(["plan", str(profile), "--budget", "80%", "--out", str(path)]) == 0
    return path


def test_page_picture_and_trace(profile, plan, tmp_path, capsys) -> None:
    page, picture, trace = (tmp_path / name for name in ("page.html", "page.png", "trace.json"))
    outputs = ["--out", str(page), "--png", str(picture), "--perfetto", str(trace)]
    capsys.readouterr()
    assert main(["report", str(plan), str(profile), "--link-bandwidth", "4GB/s", *outputs]) == 0
    assert capsys.readouterr().out.strip() == f"{page}, {picture}, {trace}"
    assert page.read_text().startswith("<!doctype html>")
    assert "<h2>Least budgets</h2>" in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_plan_for_another_graph(plan, tmp_path, capsys) -> None:
    other, page = profile_of("fedcba9876543210", tmp_path), tmp_path / "page.html"
    assert main(["report", str(plan), str(other), "--out", str(page)]) == 1
    error = capsys.readouterr().err
    assert "has no plan for the graph fedcba9876543210" in error
    assert f"Plan it with tfswap plan {other} --budget" in error
    assert not page.exists()


def test_a_missing_file_is_an_error(plan, tmp_path, capsys) -> None:
    assert main(["report", str(plan), str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
