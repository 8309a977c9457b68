"""The lines that ``tfswap doctor`` prints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfswap.commands import doctor
from tfswap.commands.diagnosis import Diagnosis, GpuFacts, lines
from tfswap.commands.trial import Trial
from tfswap.machine import nvcomp
from tfswap.machine.host_memory import CgroupMemory, HostMemory
from tfswap.machine.machine import Machine

GIB, MIB = 1 << 30, 1 << 20
LINK = Machine("host memory", 8e9, 7e9)
MEMORY = {
    "budget_bytes": None,
    "host_limit_bytes": None,
    "bytes_in_use": 0,
    "host_bytes_in_use": 0,
}
HEALTHY = Diagnosis(
    status={
        "loaded": True,
        "device_is_ours": True,
        "tensorflow": "2.21.0",
        "plan_in_force": False,
    },
    built_for="2.21.0",
    compiler="g++",
    memory=MEMORY,
    host=HostMemory(8 * GIB, 4 * GIB),
    cgroup=CgroupMemory(None, None),
    link=LINK,
    gpus=(),
    cores=2,
    codecs={"zvc": (8e9, 9e9)},
    missing_codecs={},
    missing_extras={},
    file=None,
    auto_budget_bytes=3 * GIB,
    auto_host_limit_bytes=GIB,
    trial=Trial("CPU:0", 24 * MIB, 16 * MIB, 16 * MIB),
    problems=(),
)


def test_the_first_line_is_the_verdict() -> None:
    assert lines(HEALTHY) == [
        "tfswap works here: a training that needs 24 MiB on CPU:0 ran in 16 MiB with the same "
        "losses.",
        "TensorFlow  2.21.0; tfswap was built for 2.21.0",
        "devices     CPU (tfswap's)",
        'memory      8.00 GiB, 4.00 GiB available; cgroup: no limit; budget="auto" is 3.00 GiB now',
        "extras      all installed",
        "More facts: tfswap doctor --verbose",
    ]
    assert "was skipped (--no-trial)" in lines(replace(HEALTHY, trial=None))[0]


def test_problems_come_first_within_ten_lines() -> None:
    problems = tuple(f"{i} is wrong: mend it." for i in range(4))
    printed = lines(replace(HEALTHY, trial=None, problems=problems))
    assert printed[0] == "tfswap does not work here: 4 problems."
    assert printed[1:5] == [f"PROBLEM: {problem}" for problem in problems]
    assert len(printed) <= 10


def test_a_long_problem_is_shortened() -> None:
    long = replace(HEALTHY, problems=("Mend it.\n" + "reason\n" * 1000,))
    assert lines(long)[1].startswith("PROBLEM: Mend it. reason") and len(lines(long)[1]) < 700
    assert "\n".join(lines(long, verbose=True)).count("reason") == 1000


def test_without_tensorflow_there_is_no_device() -> None:
    status = {**HEALTHY.status, "loaded": False, "tensorflow": None}
    printed = lines(replace(HEALTHY, status=status, memory=None, built_for=None))
    assert "TensorFlow  not installed" in printed
    assert not [line for line in printed if line.startswith("devices")]


def test_devices_by_owner() -> None:
    gpus = (GpuFacts("GPU:0", True, 79 * GIB, LINK), GpuFacts("GPU:1", False, None, None))
    owned = replace(HEALTHY, gpus=gpus)
    assert "devices     CPU, GPU:0 (tfswap's), GPU:1 (TensorFlow's own)" in lines(owned)
    verbose = lines(owned, verbose=True)
    assert "GPU:0       tfswap's, 79.00 GiB, host memory: out 8.0 GB/s, in 7.0 GB/s" in verbose


def test_missing_extras() -> None:
    missing = replace(HEALTHY, missing_extras={"ilp": "a planner: install it", "bo": "another"})
    assert "extras      not installed: ilp, bo (--verbose has the commands)" in lines(missing)
    assert "no ilp      a planner: install it" in lines(missing, verbose=True)


def test_which_extras_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda module: None)
    monkeypatch.setattr(nvcomp, "find_nvcomp", lambda: None)
    found = doctor._missing_extras({"lz4": "no blosc2", "zstd": "no blosc2"}, with_gpus=True)
    assert list(found) == ["codecs", "report", "ilp", "bo", "gpu-codecs"]
    assert found["codecs"] == "lz4, zstd: no blosc2"
    assert 'pip install "tfswap[ilp]"' in found["ilp"]
    assert "pip install nvidia-nvcomp-cu12" in found["gpu-codecs"]
    monkeypatch.setattr(doctor, "find_spec", lambda module: object())
    assert doctor._missing_extras({}, with_gpus=False) == {}


def test_all_facts() -> None:
    printed = lines(replace(HEALTHY, file="no such folder"), verbose=True)
    assert printed[0].startswith("tfswap works here: ")
    assert [line.partition("  ")[0] for line in printed[1:]] == [
        *("library", "built for", "TensorFlow", "device", "plan", "link", "memory", "cgroup"),
        *("budget", "host limit", "trial", "codecs", "file", "in use"),
    ]
