"""``tfswap plan``: a plan from a profile, and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from timelines import training_step

from tfswap.__main__ import main
from tfswap.plan.schema import SwapPlan
from tfswap.step.profile import Profile
from tfswap.step.timeline import peak_load
from tfswap.traces.timeline_file import save_profile


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    timeline = training_step(blocks=3)
    path = tmp_path / "step.profile"
    peak_bytes = peak_load(timeline)
    save_profile(Profile(timeline, "0123456789abcdef", (), peak_bytes, peak_bytes), path)
    return path


def run(profile: Path, budget: str, *more: str) -> tuple[int, Path]:
    out = profile.with_name("plan.json")
    arguments = ["plan", str(profile), "--budget", budget, "--out", str(out)]
    return main([*arguments, "--link-bandwidth", "4GB/s", *more]), out


def test_the_plan_is_written_and_described(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = run(profile, "80%")
    assert status == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["peak", "step", "moved"]
    assert lines[-1].endswith(f"tfswap.AutoSwap(budget=..., plan={str(out)!r})")
    function = SwapPlan.load(out).function("0123456789abcdef")
    assert function is not None and function.swaps
    assert function.predicted_peak_bytes <= SwapPlan.load(out).budget_bytes


def test_a_step_that_fits_gets_an_empty_plan(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = run(profile, "100%")
    assert status == 0 and "fits without swaps" in capsys.readouterr().out
    assert SwapPlan.load(out).functions[0].swaps == ()


@pytest.mark.parametrize(
    "budget, more, message",
    [
        ("1MiB", (), "too small: the least that a plan can keep is"),
        ("1MiB", (), "Or try AutoSwap(sections=2) or more"),
        ("1Mega", (), "is not an amount of memory"),
        ("80%", ("--policy", "best"), "unknown policy 'best': allowed are 'auto'"),
    ],
)
def test_errors_are_printed(
    profile: Path, capsys: pytest.CaptureFixture[str], budget: str, more: tuple[str, ...], message
) -> None:
    status, out = run(profile, budget, *more)
    assert status == 1 and not out.exists()
    assert message in capsys.readouterr().err
