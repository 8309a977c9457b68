"""What-if answers about a recorded step, and the command that prints them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from timelines import MIB, training_step

from tfswap.__main__ import main
from tfswap.machine.machine import Machine
from tfswap.planning import whatif
from tfswap.step.op_floor import OpFloor, StepFloor
from tfswap.step.profile import Profile
from tfswap.step.section_floor import SectionFloor
from tfswap.step.timeline import peak_load
from tfswap.traces.timeline_file import save_profile, save_timeline

LINK = Machine("a link", 4e9, 4e9)


def test_least_budget_is_tight() -> None:
    timeline = training_step(blocks=3)
    least = whatif.least_budget_bytes(timeline, LINK)
    assert whatif.at_budget(timeline, LINK, least).peak_bytes == least
    answer = whatif.at_budget(timeline, LINK, least - MIB)
    assert answer.step_ns is None and "is too small" in answer.problem


def test_step_within_budget_keeps_its_time() -> None:
    timeline = training_step(blocks=2)
    answer = whatif.at_budget(timeline, LINK, 2 * peak_load(timeline))
    assert (answer.step_ns, answer.swaps, answer.policy) == (timeline.step_ns, 0, "")


def test_a_faster_link_is_no_slower() -> None:
    timeline = training_step(blocks=3)
    slow = Machine("slow", 0.5e9, 0.5e9)
    budget = peak_load(timeline) * 7 // 10
    now = whatif.at_budget(timeline, slow, budget, "greedy")
    faster = whatif.with_faster_links(timeline, slow, budget, (4.0, 16.0), "greedy")
    steps = [answer.step_ns for answer in (now, *faster)]
    assert steps == sorted(steps, reverse=True) and steps[-1] < steps[0]
    assert faster[0].link == "slow x 4"
    assert all(answer.least_step_ns <= answer.step_ns for answer in (now, *faster))


def test_command_prints_one_line_per_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_timeline(training_step(blocks=3), tmp_path / "step")
    arguments = ["simulate", str(tmp_path / "step"), "--budget", "80%", "--budget", "10MiB"]
    assert main([*arguments, "--policy", "greedy", "--link-bandwidth", "4GB/s"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("129 ops") or " ops, " in lines[0]
    assert lines[1:3] == [
        "least budget without swapping     510 MiB, set by loss",
        "least budget with swapping        282 MiB, set by block0/layer2/relu_grad",
    ]
    assert lines[5].endswith("greedy")
    assert "A budget of 10.0 MiB is too small" in lines[6]


@pytest.mark.parametrize(
    ("floors", "line"),
    [
        (
            [(2, 300), (4, 250), (8, 250)],
            "least budget with sections        250 MiB by AutoSwap(sections=4) (best of 3 "
            "tried), set by op4",
        ),
        (
            [(2, 400)],
            "least budget with sections        400 MiB, which does not help (best of 1 "
            "tried), set by op2",
        ),
    ],
)
def test_known_sections_are_printed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    floors: list[tuple[int, int]],
    line: str,
) -> None:
    known = tuple(SectionFloor(n, mib * MIB, f"op{n}") for n, mib in floors)
    timeline = training_step(blocks=3)
    peak_bytes = peak_load(timeline)
    profile = Profile(timeline, "0123", (), peak_bytes, peak_bytes, section_floors=known)
    save_profile(profile, tmp_path / "step")
    arguments = ["simulate", str(tmp_path / "step"), "--budget", "80%", "--policy", "greedy"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[3] == line
    assert main([*arguments, "--json"]) == 0
    floors_json = json.loads(capsys.readouterr().out)["least_budgets"]["sections"]
    assert floors_json == [{"sections": n, "bytes": mib * MIB, "op": f"op{n}"} for n, mib in floors]


def test_the_floor_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline = training_step(blocks=3)
    floor = StepFloor(
        OpFloor("s", "Sub", 0, 4 * MIB, 0, 0, 50 * MIB), OpFloor("t", "Mul", 4 * MIB, 0, 0, 0, MIB)
    )
    save_profile(Profile(timeline, "0123", (), 1, 1, floor=floor), tmp_path / "step")
    arguments = ["simulate", str(tmp_path / "step"), "--budget", "80%", "--policy", "greedy"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[3:5] == [
        "floor, weights staying             54 MiB: op 's' (Sub) needs 4 MiB of inputs; 50 MiB "
        "cannot leave meanwhile",
        "floor, weights streamed             5 MiB: op 't' (Mul) needs 4 MiB of weights; 1 MiB "
        "cannot leave meanwhile",
    ]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["least_budgets"]["floor"]
    assert found["staying"] == {"bytes": 54 * MIB, **asdict(floor.staying)}
    assert found["streamed"] == {"bytes": 5 * MIB, **asdict(floor.streamed)}


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline = training_step(blocks=3)
    save_timeline(timeline, tmp_path / "step")
    arguments = ["simulate", str(tmp_path / "step"), "--json", "--policy", "greedy"]
    assert main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["peak_bytes"] == peak_load(timeline)
    least = answer["least_budgets"]
    assert least["unswapped"] == {"bytes": peak_load(timeline), "op": "loss"}
    assert least["swapped"]["bytes"] == answer["least_budget_bytes"] < peak_load(timeline)
    assert least["swapped"]["op"] == "block0/layer2/relu_grad" and least["sections"] == []
    assert least["floor"] is None
    assert len(answer["budgets"]) == 6 and len(answer["faster_links"]) == 2
    assert all(b["peak_bytes"] <= b["budget_bytes"] for b in answer["budgets"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere"], "No such file"),
        (["STEP", "--budget", "much"], "'much' is not an amount of memory"),
        (["STEP", "--policy", "magic"], "unknown policy 'magic': allowed are 'auto', 'greedy'"),
    ],
)
def test_errors_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    save_timeline(training_step(blocks=1), tmp_path / "step")
    arguments = [a.replace("STEP", str(tmp_path / "step")) for a in arguments]
    assert main(["simulate", *arguments]) == 1
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("memory", [100, 1000, 1007, 12345, 10**6])
@pytest.mark.parametrize("first", [1, 32, 5000])
def test_the_largest_batch_is_exact(memory: int, first: int) -> None:
    def peak(batch: int) -> int:
        return 90 + 13 * batch + (batch % 7)

    asked = []

    def counted(batch: int) -> int:
        asked.append(batch)
        return peak(batch)

    largest = whatif.largest_batch(counted, memory, first)
    assert (largest == 0 or peak(largest) <= memory) and peak(largest + 1) > memory
    assert len(asked) <= 24


def test_no_batch_fits() -> None:
    assert whatif.largest_batch(lambda batch: 100, 99) == 0
