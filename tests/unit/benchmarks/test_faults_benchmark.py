"""The cases that `benchmarks.faults` draws, and its table of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import residue
from benchmarks.faults.__main__ import cases, parse, strikes, table
from benchmarks.faults.cases import KINDS, STEPS, SUBJECTS, drawn
from benchmarks.faults.residue import Held
from tfswap._core import set_faults


def test_a_seed_draws_the_same_cases_again() -> None:
    assert drawn(3, 50) == drawn(3, 50)
    assert drawn(3, 50) != drawn(4, 50)
    assert drawn(3, 20) == drawn(3, 50)[:20]


def test_a_thousand_cases_include_every_kind_with_its_options() -> None:
    found = drawn(0, 1000)
    assert {case.kind for case in found} == set(KINDS)
    assert {case.subject for case in found} == set(SUBJECTS)
    assert {case.start for case in found} == set(STEPS)
    for case in found:
        assert set(KINDS[case.kind].needs) <= set(case.options)
        assert 0 <= case.step < case.steps
        assert 0 <= case.after <= KINDS[case.kind].most


def test_the_core_accepts_each_of_its_faults_as_drawn() -> None:
    for case in drawn(0, 500):
        if KINDS[case.kind].in_core:
            set_faults(case.fault)
    set_faults("")


def test_each_fault_of_the_core_is_drawn() -> None:
    with pytest.raises(ValueError, match="the faults are ") as error:
        set_faults("no-such")
    known = str(error.value).partition("the faults are ")[2].split(", ")
    assert set(known) == {name for name, kind in KINDS.items() if kind.in_core}


def test_the_command_line_selects_kinds_and_numbers() -> None:
    options = parse(["--count", "40", "--kinds", "cancel,interrupt"])
    assert {case.kind for case in cases(options)} == {"cancel", "interrupt"}
    assert [case.number for case in cases(parse(["--count", "40", "--only", "7"]))] == [7]
    assert "kill-9" not in {case.kind for case in cases(parse(["--quick"]))}
    with pytest.raises(SystemExit):
        parse(["--kinds", "no-such"])


def test_the_table_counts_outcomes_by_kind_and_in_total() -> None:
    lines = [
        {"kind": "cancel", "outcome": "correct"},
        {"kind": "cancel", "outcome": "clear error"},
        {"kind": "copy-in-fails", "outcome": "clear error"},
        {"kind": "fork", "outcome": "hang"},
    ]
    rows = [re.split(r"  +", row) for row in table(lines).splitlines()]
    assert rows == [
        ["kind", "count", "correct", "clear error", "wrong", "crash", "hang"],
        ["copy-in-fails", "1", "0", "1", "0", "0", "0"],
        ["cancel", "2", "1", "1", "0", "0", "0"],
        ["fork", "1", "0", "0", "0", "0", "1"],
        ["all", "4", "1", "2", "0", "0", "1"],
    ]


def test_faults_that_never_took_effect_are_counted() -> None:
    struck = [{"struck": 2}, {"struck": 0}, {"struck": -1}, {"struck": 1}]
    assert strikes(struck) == "2 of 3 faults of the core struck"


def test_the_documentation_names_every_kind() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "reliability.md").read_text()
    for name in KINDS:
        assert f"`{name}`" in text, f"docs/reliability.md says nothing of {name}"


@pytest.mark.parametrize(
    ("first", "before", "after", "said"),
    [
        (1 << 20, 1 << 20, 2 << 20, ""),  # a little may stay
        (1 << 20, 1 << 20, 4 << 20, "load_bytes 1048576 -> 4194304"),
        (1 << 20, 4 << 20, 4 << 20, ""),  # in use before the case
        # Many small increases add up to too much.
        (1 << 20, 3 << 20, (3 << 20) + 1, "load_bytes 3145728 -> 3145729"),
    ],
)
def test_memory_that_a_case_leaves_is_reported(
    first: int, before: int, after: int, said: str, tmp_path: Path, monkeypatch: Any
) -> None:
    def held(load_bytes: int) -> Held:
        return Held({}, {}, {"load_bytes": load_bytes}, 0, 0)

    monkeypatch.setattr(residue, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(Held, "now", lambda folder: held(after))
    assert residue.left_behind(held(before), tmp_path, held(first)) == said


def test_the_process_of_cases_reports_how_it_ended(tmp_path: Path, monkeypatch) -> None:
    """Count a crash and a hang as outcomes; another process continues."""
    from benchmarks.faults import process as module
    from benchmarks.faults.process import FaultProcess

    (tmp_path / "served.py").write_text(
        "import json, os, signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('in sleep', file=sys.stderr, flush=True))\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    kind = json.loads(line)['kind']\n"
        "    if kind == 'fork':\n"
        "        print('the last words', file=sys.stderr, flush=True)\n"
        "        os._exit(9)\n"
        "    while kind == 'cancel':\n"
        "        time.sleep(0.1)\n"
        "    print(json.dumps({'outcome': 'correct', 'pid': os.getpid()}), flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    monkeypatch.setattr(module, "_MODULE", "served")
    by_kind = {case.kind: case for case in drawn(0, 300)}
    with FaultProcess(tmp_path, 0.5) as process:
        first = process.run(by_kind["interrupt"])
        assert first["outcome"] == "correct"
        assert process.run(by_kind["interrupt"])["pid"] == first["pid"]
        crash = process.run(by_kind["fork"])
        assert crash["outcome"] == "crash" and "9: the last words" in crash["why"]
        assert process.run(by_kind["interrupt"])["pid"] != first["pid"]
        hang = process.run(by_kind["cancel"])
        assert hang["outcome"] == "hang" and "in sleep" in hang["why"]
        assert process.run(by_kind["interrupt"])["outcome"] == "correct"
