"""`python -m benchmarks`: benchmark output is stored, compared with expectations, and shown."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import expectations
from benchmarks.__main__ import main, parse, why_not
from benchmarks.benchmark import Benchmark, Column, Plot, Table
from benchmarks.catalog import BENCHMARKS, named
from benchmarks.document import document, section, shown, table_of
from benchmarks.expectations import EXPECTED, Verdict, judge
from benchmarks.measurements import Measured, Run, lines_of, load, machine, printed_by, save
from benchmarks.plots import draw, points
from benchmarks.reasons import reason
from benchmarks.tally import Tally

MIB = 1 << 20
TABLE = Table((Column("model", "model"), Column("peak", "peak_bytes", "MiB"), Column("odd", "odd")))
BARS = Plot("bars", ("model",), "mode", "step_ratio", "x", "step", 1.0)
BENCHMARK = Benchmark("ours", "Ours", "Beside theirs.", ("",), ("",), (TABLE,), (BARS,))


def measured(*lines: dict[str, object], problem: str = "") -> Measured:
    run = Run("python -m benchmarks.ours", 12.3, problem)
    return Measured("ours", "2026-01-02", {"processor": "fast"}, True, [run], list(lines))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "", ""),
        (True, "", "yes"),
        (False, "", "**no**"),
        (False, "fact", "no"),
        (5 * MIB, "MiB", "5.0 MiB"),
        (5000 * MIB, "MiB", "5000 MiB"),
        (0.256, "%", "26 %"),
        (1.234, "x", "1.23"),
        (0.01234, "s", "0.0123 s"),
        (12, "", "12"),
        ([1, None, 2.5], "", "1, , 2.5"),
        ("a | b <c>", "", "a \\| b &lt;c>"),
        ("x" * 200, "", "x" * 159 + "…"),
    ],
)
def test_values_are_shown_in_their_unit(value: object, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_a_table_has_the_lines_with_its_keys_and_no_empty_columns() -> None:
    lines = [{"model": "A", "peak_bytes": MIB, "odd": None}, {"model": "B"}]
    assert table_of(TABLE, lines) == ["| model | peak |", "| --- | --- |", "| A | 1.0 MiB |"]
    assert table_of(TABLE, [{"model": "B"}]) == []


def test_a_line_is_in_one_table_at_most(tmp_path: Path) -> None:
    benchmark = Benchmark("ours", "Ours", "", ("",), ("",), (TABLE, TABLE))
    found = section(
        benchmark,
        measured({"model": "A", "peak_bytes": MIB, "odd": 3}),
        tmp_path,
        tmp_path / "x.md",
    )
    assert sum("| A |" in line for line in found) == 1


def test_failures_are_named_and_their_output_is_shown(tmp_path: Path) -> None:
    lines = ({"model": "A", "peak_bytes": MIB, "odd": 3, "error": "no plan"},)
    found = measured(*lines, problem="not done after 5 s")
    theirs = Benchmark("theirs", "Theirs", "", (), (), ())
    why = {"theirs": "it needs root"}
    text = document([(BENCHMARK, found)], why, [], tmp_path / "page.md", [BENCHMARK, theirs])
    assert "* `theirs`: it needs root" in text
    assert "**not done after 5 s**, 12 s, 2026-01-02" in text
    assert "| A | 1.0 MiB | 3 |" in text and "* no plan" in text
    assert "* On: processor fast" in text


def test_results_that_were_not_measured_again_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    theirs = Benchmark("theirs", "Theirs", "", (), (), ())
    both = [BENCHMARK, theirs]
    good = [Verdict(True, "good")]
    first = measured({"model": "A", "peak_bytes": MIB, "odd": 3})
    page.write_text(document([(BENCHMARK, first), (theirs, first)], {}, good, page, both))
    again = document([], {}, [], page, both)
    assert again == page.read_text()
    assert "1 of 1 expected" in again
    second = measured({"model": "B", "peak_bytes": MIB, "odd": 3})
    text = document([(theirs, second)], {}, [], page, both)
    assert "| A | 1.0 MiB | 3 |" in text and "| B |" not in text
    text = document([(BENCHMARK, second)], {}, [], page, both)
    assert "| B | 1.0 MiB | 3 |" in text and "| A |" not in text


def test_outcomes_are_counted_by_kind() -> None:
    lines = [{"kind": k, "outcome": o} for k, o in ("ab", "ab", "ac", "dc")]
    assert Tally("kind", "outcome").rows(lines) == [
        ["kind", "count", "b", "c"],
        ["a", "3", "2", "1"],
        ["d", "1", "0", "1"],
        ["all", "4", "2", "2"],
    ]
    ordered = Tally("kind", "outcome", ("d", "never"), ("c", "e"))
    assert ordered.rows(lines) == [
        ["kind", "count", "c", "e", "b"],
        ["d", "1", "1", "0", "0"],
        ["a", "3", "1", "0", "2"],
        ["all", "4", "2", "0", "2"],
    ]
    assert Tally("kind", "outcome").rows([]) == []


def test_a_tally_is_a_table_of_its_section(tmp_path) -> None:
    benchmark = Benchmark("its_faults", "Faults", "", (), (), (), tally=Tally("kind", "outcome"))
    lines = [{"kind": "a", "outcome": "correct"}, {"kind": "b", "outcome": "wrong"}]
    page = tmp_path / "page.md"
    text = "\n".join(section(benchmark, measured(*lines), page.parent, page))
    assert "| kind | count | correct | wrong |\n| --- | --- | --- | --- |" in text
    assert "| a | 1 | 1 | 0 |" in text


def test_the_reason_is_the_error_that_ended_a_training_not_a_warning() -> None:
    log = "UserWarning: tfswap: A budget is too small\nTraceback (most recent call last):\n  x\n"
    assert reason(log + "Error: tfswap: the budget is exceeded") == "tfswap: the budget is exceeded"
    assert reason(log + "ValueError: no such file") == "ValueError: no such file"
    assert reason("no plan") == "no plan"
    refusal = "tfswap: the memory budget of 25 MiB is exceeded: op 'X' asks for 7 MiB."
    text = f"Graph execution error:\n\n  File\n\nOOM ... tfswap_cpu. {refusal}\n\t [[X]]"
    assert reason(text) == refusal


def test_figures_that_do_not_hold_are_named(tmp_path: Path) -> None:
    verdicts = [Verdict(True, "good"), Verdict(False, "peak is 9, expected at most 8")]
    text = document([], {}, verdicts, tmp_path / "page.md", [])
    assert "1 of 2 expected figures hold" in text
    assert "* peak is 9, expected at most 8" in text and "* good" not in text


def test_points_are_by_series_and_place() -> None:
    lines = [
        {"model": "A", "mode": "ours", "step_ratio": 1.5},
        {"model": "A", "mode": "theirs", "step_ratio": None},
        {"model": "B", "mode": "theirs", "step_ratio": 2},
        {"mode": "ours", "step_ratio": 3},
    ]
    assert points(BARS, lines) == {"ours": {"A": 1.5}, "theirs": {"B": 2.0}}


def test_points_come_from_lines_that_the_plot_shows() -> None:
    plot = dataclasses.replace(BARS, only=(("model", "A"),), having=("link",))
    lines = [
        {"model": "A", "mode": "ours", "step_ratio": 1.5, "link": None},
        {"model": "B", "mode": "ours", "step_ratio": 2.5, "link": "1GB/s"},
        {"model": "A", "mode": "ours", "step_ratio": 3.5, "link": "1GB/s"},
    ]
    assert points(plot, lines) == {"ours": {"A": 3.5}}


def test_names_that_would_overlap_are_slanted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    heights = []
    for count in (2, 12):
        lines = [{"model": f"a long name {k}", "step_ratio": 1.0} for k in range(count)]
        path = tmp_path / f"{count}.svg"
        assert draw(BARS, lines, path)
        found = re.search(r'height="([\d.]+)pt"', path.read_text())
        assert found is not None
        heights.append(float(found[1]))
    assert heights[1] > heights[0] + 20


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_equal_lines_make_equal_pictures(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    plot = Plot(kind, ("limit_mib",), "policy", "overhead_ms", "", "waits, ms")
    lines = [
        {"limit_mib": limit, "policy": policy, "overhead_ms": limit / 10}
        for limit in (100, 50)
        for policy in ("ours", "theirs")
    ]
    pictures = [tmp_path / "one.svg", tmp_path / "other.svg"]
    assert all(draw(plot, lines, path) for path in pictures)
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert "<svg" in pictures[0].read_text() and pictures[0].stat().st_size < 60_000


def test_one_point_makes_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "one.svg"
    assert not draw(BARS, [{"model": "A", "step_ratio": 1.0}], path)
    assert not path.exists()


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = measured({"model": "A"}, {"model": "B"})
    save(found, tmp_path)
    assert load("ours", tmp_path) == found
    assert load("theirs", tmp_path) is None


def test_a_truncated_line_is_skipped() -> None:
    assert lines_of('{"a": 1}\nwords\n[2]\n{"a": 2, "b') == [{"a": 1}]


def test_a_process_that_fails_or_times_out_keeps_its_output(tmp_path: Path) -> None:
    code = 'import sys, time; print({!r}, flush=True); print("why", file=sys.stderr); {}'
    with (tmp_path / "said.log").open("w") as log:
        failing = [sys.executable, "-c", code.format('{"a": 1}', "sys.exit(3)")]
        assert printed_by(failing, 60, log) == ([{"a": 1}], "ended with status 3: why")
        hanging = [sys.executable, "-c", code.format('{"a": 2}', "time.sleep(60)")]
        assert printed_by(hanging, 2, log) == ([{"a": 2}], "not done after 2 s: why")
        good = [sys.executable, "-c", code.format('{"a": 3}', "")]
        assert printed_by(good, 60, log) == ([{"a": 3}], "")


def test_the_machine_is_described_without_tensorflow() -> None:
    found = machine()
    assert {"processor", "memory", "system", "Python", "TensorFlow", "tfswap"} <= set(found)
    assert "cores" in found["processor"]


def test_the_document_can_be_made_again_without_measuring(tmp_path: Path) -> None:
    found = measured({"instance": "A", "buffers": 3, "max_live": MIB, "height": MIB})
    save(Measured("packing", *list(found.__dict__.values())[1:]), tmp_path)
    page = tmp_path / "docs" / "page.md"
    arguments = ["--document-only", "--only", "packing", "--page", str(page)]
    main([*arguments, "--folder", str(tmp_path)])
    assert "## Packing" in page.read_text()


def test_unknown_benchmarks_are_an_error() -> None:
    assert [benchmark.name for benchmark in named(["jobs", "codecs"])] == ["jobs", "codecs"]
    assert named([]) == list(BENCHMARKS)
    with pytest.raises(ValueError, match="unknown 'speed': allowed are budget_sweep, "):
        named(["speed"])


def test_benchmarks_that_cannot_run_here_are_reported_with_the_reason() -> None:
    options = parse(["--quick"])
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    assert why_not(by_name["packing"], options) == ""
    assert why_not(by_name["os_swap"], options) == "it is not among the quick ones"
    assert why_not(by_name["programs"], options) == "it needs --scripts, a checkout of Keras"
    missing = Benchmark("nothing", "", "", ("",), ("",), ())
    assert why_not(missing, options) == "there is no such benchmark yet"


# Expectations.

ENTRY = {
    "benchmark": "ours",
    "where": {"model": "A"},
    "equal": {"bits": True},
    "at_most": {"peak": 10, "foretold": "limit"},
    "at_least": {"share": 0.5},
    "near": {"foretold": ["peak", 0.1]},
}
GOOD = {"model": "A", "bits": True, "peak": 10, "share": 0.5, "foretold": 11, "limit": 11}


def test_figures_as_expected_hold() -> None:
    verdicts = judge([ENTRY], {"ours": [GOOD, {"model": "B"}]})
    assert len(verdicts) == 5 and all(verdict.holds for verdict in verdicts)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("bits", False, "ours model=A: bits is False, expected True"),
        ("bits", None, "ours model=A: bits is None, expected True"),
        ("peak", 12, "ours model=A: peak is 12, expected at most 10"),
        ("limit", 9, "ours model=A: foretold is 11, expected at most 9"),
        ("peak", None, "ours model=A: peak is None, expected at most 10"),
        ("share", 0.4, "ours model=A: share is 0.4, expected at least 0.5"),
        ("foretold", 8, "ours model=A: foretold is 8, expected within 10% of peak, 10"),
        ("foretold", None, "ours model=A: foretold is None, expected within 10% of peak, 10"),
    ],
)
def test_a_figure_that_is_worse_or_missing_does_not_hold(
    key: str, value: object, text: str
) -> None:
    failed = [v.text for v in judge([ENTRY], {"ours": [{**GOOD, key: value}]}) if not v.holds]
    assert text in failed


def test_a_missing_line_does_not_hold() -> None:
    (verdict,) = judge([ENTRY], {"ours": [{"model": "B"}]})
    assert not verdict.holds and verdict.text == "ours model=A: there is no such line"


def test_figures_of_benchmarks_that_did_not_run_are_skipped() -> None:
    assert judge([ENTRY], {"theirs": []}) == []


def test_the_expectations_are_valid_and_name_existing_benchmarks() -> None:
    names = {benchmark.name for benchmark in BENCHMARKS if benchmark.quick}
    assert {entry["benchmark"] for entry in expectations.read()} <= names


def test_an_entry_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "expected.json"
    path.write_text(json.dumps([{"benchmark": "ours", "below": {}}]))
    with pytest.raises(ValueError, match="below"):
        expectations.read(path)


def test_no_time_is_expected() -> None:
    keys = {
        key
        for entry in json.loads(EXPECTED.read_text())
        for field in ("equal", "at_most", "at_least", "near")
        for key in entry.get(field, {})
    }
    assert not [key for key in keys if "step_s" in key or "seconds" in key or "step_ratio" in key]
