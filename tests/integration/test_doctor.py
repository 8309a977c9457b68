"""``tfswap doctor``: whether swapping works here, and every cause that prevents it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python_path import python_path
from tfswap.commands.diagnosis import GpuFacts
from tfswap.commands.doctor import environment_problems, problems
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
# Runs the command `tfswap` as if some packages were not installed.
WITHOUT = """
import importlib.metadata, sys
from importlib.machinery import PathFinder
hidden, sys.argv = sys.argv[1].split(","), [sys.argv[2], *sys.argv[3:]]
find, distributions = PathFinder.find_spec, importlib.metadata.distributions
def find_spec(name, path=None, target=None):
    return None if name in hidden else find(name, path, target)
def distributions_of(name, path):
    return [] if name.split("-")[0] in hidden else distributions(name=name, path=path)
PathFinder.find_spec, importlib.metadata.distributions = find_spec, distributions_of
from tfswap.__main__ import main
sys.exit(main())
"""
OPTIONAL = "blosc2,matplotlib,scipy,bayes_opt,nvidia"
NOT_IN_FORCE = {"phase": "steady", "outcome": "swapped", "in_force": False, "budget_bytes": 1}
REFUSED = {"fingerprint": "f00", "outcome": "refused", "reason": "no node 'x'", "nodes": 1}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": python_path(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
    found = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **paths, **environment},
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in found.stderr, found.stderr
    return found


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "tfswap", "doctor", *arguments, **environment)


def doctor_without(packages: str, folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Return the exit status and the lines without packages, given by their modules."""
    script = folder / "tfswap"  # the name of the command
    script.touch()
    found = run("-c", WITHOUT, packages, str(script), "doctor", *arguments)
    return found.returncode, found.stdout.splitlines()


def test_a_small_training_runs():
    found = doctor("--json", TFSWAP_BUDGET="10MiB")  # for other trainings
    diagnosis = json.loads(found.stdout)
    assert diagnosis["problems"] == [] and found.returncode == 0
    trial = diagnosis["trial"]
    assert trial["device"] == "CPU:0" and not trial["problem"]
    assert 0 < trial["peak_bytes"] <= trial["budget_bytes"] < trial["unswapped_peak_bytes"]


def test_without_optional_packages(tmp_path):
    status, printed = doctor_without(OPTIONAL, tmp_path)
    assert status == 0 and len(printed) <= 10, printed
    assert printed[0].startswith("tfswap works here: a training that needs ")
    (extras,) = [line for line in printed if line.startswith("extras")]
    assert "not installed: codecs, report, ilp, bo (--verbose" in extras


@pytest.mark.parametrize(
    ("packages", "problem"),
    [
        ("tensorflow", "tfswap needs TensorFlow, and none is installed."),
        ("keras", "Keras is not installed, and AutoSwap needs it: pip install keras."),
    ],
)
def test_without_packages_that_it_needs(tmp_path, packages, problem):
    status, printed = doctor_without(packages, tmp_path)
    assert status == 1 and len(printed) <= 10
    assert printed[0] == "tfswap does not work here: 1 problem."
    assert printed[1].startswith(f"PROBLEM: {problem}")
    assert not [line for line in printed[2:] if line.startswith("PROBLEM")]


def test_a_tensorflow_that_cannot_be_imported(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise OSError('no\\nlibrary')")
    broken = python_path(ROOT, tmp_path)
    found = doctor(PYTHONPATH=broken)
    assert found.returncode == 1 and "tfswap does not work here: 1 problem." in found.stdout
    assert "PROBLEM: `import tensorflow` fails. Mend that first" in found.stdout
    (problem,) = json.loads(doctor("--json", PYTHONPATH=broken).stdout)["problems"]
    assert problem.endswith("OSError: no\nlibrary")


def test_a_keras_that_does_not_run_on_tensorflow():
    found = doctor(KERAS_BACKEND="jax")  # installed or not
    assert found.returncode == 1
    assert found.stdout.count("PROBLEM") == 1
    assert "PROBLEM: KERAS_BACKEND is 'jax'" in found.stdout
    assert "Set KERAS_BACKEND=tensorflow." in found.stdout


@pytest.mark.parametrize(
    ("text", "variable", "found"),
    [
        ('{"backend": "tensorflow"}', "", None),
        ('{"backend": "jax"}', "", '"backend" in'),
        ('{"backend": "jax"}', "tensorflow", None),
        ('{"backend": "tensorflow"}', "torch", "KERAS_BACKEND is 'torch'"),
        ("{}", "", None),
        ("[]", "", None),
        ("{", "", None),
        (None, "", None),
        (None, "numpy", "KERAS_BACKEND is 'numpy'"),
    ],
)
def test_the_backend_of_keras(tmp_path, text, variable, found):
    if text is not None:
        (tmp_path / "keras.json").write_text(text)
    environment = {"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": variable}
    said = environment_problems(environment)
    assert len(said) == (found is not None)
    assert all(problem.startswith(found) for problem in said)


def test_the_file_of_keras_sets_the_backend(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    found = doctor(KERAS_HOME=str(tmp_path), KERAS_BACKEND="")
    assert found.returncode == 1 and found.stdout.count("PROBLEM") == 1
    assert f"\"backend\" in {tmp_path / 'keras.json'} is 'jax'" in found.stdout


def test_the_environment_enables_xla():
    found = doctor(TF_XLA_FLAGS="--tf_xla_auto_jit=2")
    assert found.returncode == 1
    assert "PROBLEM: TF_XLA_FLAGS makes XLA compile parts of graphs" in found.stdout
    assert "a training" not in found.stdout
    assert not environment_problems({"TF_XLA_FLAGS": "--tf_xla_auto_jit=0"})


def test_unknown_options_in_the_environment():
    found = doctor(TFSWAP_BUGDET="6GiB")
    assert found.returncode == 1
    assert "PROBLEM: unknown environment variable TFSWAP_BUGDET" in found.stdout


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
