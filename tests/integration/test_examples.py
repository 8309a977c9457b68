"""Run the examples as a user does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python_path import python_path

_ROOT = Path(__file__).parents[2]


def run(example: str, *options: str) -> str:
    """Return an example's output; the example fails if it does not show what it claims."""
    ran = subprocess.run(
        [sys.executable, f"examples/{example}.py", *options],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": python_path(_ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


_HELD = re.compile(r"([\d.]+) MiB of ([\d.]+) MiB")


@pytest.mark.slow
def test_the_custom_loop():
    printed = run("custom_loop", "--quick")
    assert printed.count("bit for bit") == 2
    for name in ("discriminator_step", "generator_step"):
        assert f"{name}:\ntfswap: " in printed
    assert " out and " in printed  # planned, or on-demand where plans are slower


@pytest.mark.slow
@pytest.mark.parametrize("example", ["transformer", "unet"])
def test_a_model_within_a_part_of_its_peak(example):
    printed = run(example, "--quick")
    assert " out and " in printed  # planned, or on-demand where plans are slower
    assert "The losses of all 18 steps are the same, bit for bit" in printed


@pytest.mark.slow
def test_fine_tuning_beyond_memory(tmp_path):
    pytest.importorskip("keras_hub")
    size = ("--layers", "6", "--width", "512", "--vocabulary", "8000")  # 174 MiB of weights
    budget = ("--budget", "50MiB", "--host-limit", "8MiB", "--folder", str(tmp_path))
    printed = run("fine_tune", *size, *budget, "--steps", "3")
    assert "step 3: " in printed and "16 tokens: " in printed
    (peak,) = re.findall(r"device peak (\d+) MiB", printed)
    assert int(peak) <= 50


@pytest.mark.slow
def test_a_budget_in_bytes():
    assert "With a budget of 60.0 MiB" in run("unet", "--quick", "--budget", "60MiB")


@pytest.mark.slow
@pytest.mark.parametrize("spilled", [False, True])
def test_two_jobs_at_once(spilled, tmp_path):
    printed = run("two_jobs", "--quick", *(["--spill-dir", str(tmp_path)] if spilled else []))
    assert len(_HELD.findall(printed)) == 3
    assert all(float(held) <= float(budget) for held, budget in _HELD.findall(printed))
    assert "the same as alone, bit for bit" in printed
