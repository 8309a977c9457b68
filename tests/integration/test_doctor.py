"""``tfswap doctor``: whether swapping works here, and every cause that prevents it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python_path import python_path
from tfswap.commands.doctor import GpuFacts, environment_problems, problems
from tfswap.machine.host_memory import CgroupMemory, HostMemory

ROOT = Path(__file__).resolve().parents[2]
PLENTY = HostMemory(8 << 30, 4 << 30)
NO_LIMIT = CgroupMemory(None, None)
WELL = {
    "loaded": True,
    "problem": None,
    "device_is_ours": True,
    "tensorflow": "2.21.0",
    "plan_in_force": False,
    "trainings": [],
    "functions": [],
}
NOT_IN_FORCE = {"phase": "steady", "outcome": "swapped", "in_force": False, "budget_bytes": 1}
REFUSED = {"fingerprint": "f00", "outcome": "refused", "reason": "no node 'x'", "nodes": 1}


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": python_path(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(
        [sys.executable, "-m", "tfswap", "doctor", *arguments],
        env={**os.environ, **paths, **environment},
        capture_output=True,
        text=True,
    )


def test_a_small_training_runs():
    found = doctor("--json")
    diagnosis = json.loads(found.stdout)
    assert diagnosis["problems"] == [] and found.returncode == 0
    trial = diagnosis["trial"]
    assert trial["device"] == "CPU:0" and not trial["problem"]
    assert 0 < trial["peak_bytes"] <= trial["budget_bytes"] < trial["unswapped_peak_bytes"]


def test_a_keras_that_does_not_run_on_tensorflow():
    found = doctor(KERAS_BACKEND="numpy")
    assert found.returncode == 1
    assert "PROBLEM: KERAS_BACKEND is 'numpy'" in found.stdout
    assert "PROBLEM: A small training under a budget failed: " in found.stdout


def test_the_environment_enables_xla():
    found = doctor("--no-trial", TF_XLA_FLAGS="--tf_xla_auto_jit=2")
    assert found.returncode == 1
    assert "PROBLEM: TF_XLA_FLAGS makes XLA compile parts of graphs" in found.stdout
    assert "trial" not in found.stdout
    assert not environment_problems({"TF_XLA_FLAGS": "--tf_xla_auto_jit=0"})


def test_unknown_options_in_the_environment():
    found = doctor(TFSWAP_BUGDET="6GiB")
    assert found.returncode == 1
    assert "unknown environment variable TFSWAP_BUGDET" in found.stderr


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"loaded": False}, "import tfswap first"),
        ({"loaded": False, "problem": "built for 2.20"}, "built for 2.20"),
        ({"device_is_ours": False}, "Import tfswap before that library"),
        ({"trainings": [NOT_IN_FORCE]}, "Do not change tf.config.optimizer's options"),
        ({"functions": [REFUSED]}, "no node 'x'. Train without plan="),
    ],
)
def test_causes_in_the_process(state, said):
    (problem,) = problems({**WELL, **state}, PLENTY, NO_LIMIT)
    assert said in problem


def test_causes_on_the_machine():
    assert problems(WELL, PLENTY, NO_LIMIT) == []
    (scarce,) = problems(WELL, PLENTY, CgroupMemory(1 << 30, 1 << 20))
    assert "raise the limit of this cgroup" in scarce
    (not_ours,) = problems(WELL, PLENTY, NO_LIMIT, [GpuFacts("GPU:0", False, None, None)])
    assert "GPU" in not_ours
