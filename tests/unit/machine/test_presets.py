"""Machines by name, and machines of a user's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfswap.__main__ import main
from tfswap.machine.machine import Device
from tfswap.machine.presets import FORMAT, OWN_FILE, find_machine, load_machines

NAMES = [
    *("titan-x", "gtx-1080-ti", "p100", "v100", "t4", "a100-40gb", "a100", "rtx-4090"),
    *("h100", "h200", "gh200"),
]


def own(**changes: Any) -> dict[str, Any]:
    machine = json.loads(OWN_FILE.read_text())["machines"]["v100"]
    return {"format": FORMAT, "machines": {"mine": {**machine, **changes}}}


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_every_machine_names_the_sources_of_its_numbers() -> None:
    machines = json.loads(OWN_FILE.read_text())["machines"]
    assert list(machines) == NAMES
    for machine in machines.values():
        assert machine["memory_source"]
        assert machine["device"]["source"] and machine["link"]["source"]


@pytest.mark.parametrize(
    ("name", "float32_ops_per_s"),
    [
        # From the data sheets.
        ("titan-x", 6.6e12),
        ("gtx-1080-ti", 11.3e12),
        ("p100", 9.3e12),
        ("v100", 15.7e12),
        ("t4", 8.1e12),
        ("a100-40gb", 19.5e12),
        ("a100", 19.5e12),
        ("rtx-4090", 82.6e12),
        ("h100", 66.9e12),
        ("h200", 66.9e12),
        ("gh200", 66.9e12),
    ],
)
def test_the_peak_matches_the_data_sheet(name: str, float32_ops_per_s: float) -> None:
    device = find_machine(name).device
    assert device is not None
    assert device.ops_per_s == pytest.approx(float32_ops_per_s, rel=0.01)
    assert device.product_ops_per_s >= device.ops_per_s


def test_a_newer_link_is_faster() -> None:
    speeds = [find_machine(name).out_bytes_per_s for name in ("v100", "a100", "h100", "gh200")]
    assert speeds == sorted(speeds) and len(set(speeds)) == 4


def test_the_error_for_an_unknown_machine_lists_the_names() -> None:
    with pytest.raises(ValueError, match="unknown machine 'tpu'.*titan-x, gtx-1080-ti, p100"):
        find_machine("tpu")


def test_a_file_adds_machines(tmp_path: Path) -> None:
    path = write(tmp_path / "machines.json", own(memory_bytes=1 << 30))
    machines = load_machines(path)
    assert list(machines) == [*NAMES, "mine"]
    device = machines["mine"].device
    assert device is not None and device.memory_bytes == 1 << 30
    assert device.ops_per_s == pytest.approx(15.7e12, rel=0.01)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([], 'has no "format": "tfswap machines 1"'),
        ({"format": FORMAT}, 'has no "machines"'),
        (own(memory_bytes=0), "machine 'mine': memory_bytes must be above 0, not 0"),
        (own(speed=1), "machine 'mine': it has unknown speed"),
        (own(link={}), "machine 'mine': its link lacks in_bytes_per_s, out_bytes_per_s, source"),
        (own(device=7), "machine 'mine': its device is not an object"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, content: Any, problem: str) -> None:
    path = write(tmp_path / "machines.json", content)
    with pytest.raises(ValueError, match="machines.json") as error:
        load_machines(path)
    assert problem in str(error.value)


def test_a_file_that_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "machines.json"
    path.write_text("v100")
    with pytest.raises(ValueError, match="is not JSON"):
        load_machines(path)


def test_a_device_without_speed_is_rejected() -> None:
    with pytest.raises(ValueError, match="bytes_per_s must be above 0, not 0"):
        Device(memory_bytes=1, ops_per_s=1, product_ops_per_s=1, bytes_per_s=0)


def test_the_command_lists_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list-machines"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == NAMES


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give either a trace or --model"),
        (["trace", "--model", "file.py:f"], "give either a trace or --model"),
        (["trace", "--batch", "8"], "--batch needs --model"),
        (["trace", "--machine", "tpu"], "unknown machine 'tpu'"),
        (["--model", "file.py:f"], "--model needs --machine, one of: titan-x"),
        (["--model", "f.py:f", "--machine", "v100", "--batch", "0"], "--batch must be 1 or more"),
    ],
)
def test_wrong_arguments(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert main(["simulate", *arguments]) == 1
    assert problem in capsys.readouterr().err
