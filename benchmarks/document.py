"""The document about the measurements: `docs/benchmarks.md` and its pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import MIB, Benchmark, Column, Table
from benchmarks.catalog import BENCHMARKS
from benchmarks.expectations import Verdict
from benchmarks.measurements import Measured
from benchmarks.plots import draw
from benchmarks.reasons import reason

_MAX_CHARACTERS = 160
_HEAD = """\
# Benchmarks

`make bench` makes this page of what `python -m benchmarks` measures; nothing in it is written by
hand. Each section is a benchmark of `benchmarks/`, whose docstring says what its keys mean, beside
its rival in the same run; one that was not measured again stays as it was. Times depend on the
machine and on what else it did; peaks and bits do not. [Questions and answers](questions.md) has
the results in sentences.
"""
_EXPECTED = "What is expected"


def shown(value: Any, unit: str = "") -> str:
    """Format a value for a cell."""
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no" if unit == "fact" else "**no**"
    if isinstance(value, list):
        return ", ".join(shown(each) for each in value)
    if isinstance(value, int | float):
        return _number(value, unit)
    text = " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def _number(value: float, unit: str) -> str:
    if unit == "MiB":
        return f"{value / MIB:.1f} MiB" if value < 100 * MIB else f"{value / MIB:.0f} MiB"
    if unit == "%":
        return f"{100 * value:.0f} %"
    if unit == "x":
        return f"{value:.2f}" if value < 10 else f"{value:.0f}"
    if unit == "s":
        return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
    if isinstance(value, int):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = rows
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest)]


def table_of(table: Table, lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return the Markdown rows of a table without empty columns; none if no line belongs in it."""
    rows = [line for line in lines if table.shows(line)]
    columns: list[Column] = [
        column for column in table.columns if any(row.get(column.key) is not None for row in rows)
    ]
    if not columns:
        return []
    cells = [[shown(row.get(column.key), column.unit) for column in columns] for row in rows]
    heads = [column.title for column in columns]
    return _markdown([heads, *cells])


def sections_of(text: str) -> dict[str, str]:
    """Return the sections of a document by title."""
    found = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    return {each.splitlines()[0].removeprefix("## "): each for each in found}


def section(benchmark: Benchmark, measured: Measured, pictures: Path, page: Path) -> list[str]:
    """Return the section of one benchmark: runs, problems, tables and pictures.

    Args:
        benchmark: The benchmark.
        measured: Its results.
        pictures: Folder for pictures.
        page: The document, which links to the pictures.
    """
    found = [f"## {benchmark.title}", "", benchmark.text, ""]
    for run in measured.runs:
        ended = f"**{run.problem}**" if run.problem else "done"
        took = f", {run.seconds:.0f} s" if run.seconds else ""
        found.append(f"* `{run.command}`: {shown(ended)}{took}, {measured.date}")
    found.append(f"* On: {', '.join(f'{key} {value}' for key, value in measured.machine.items())}")
    left = list(measured.lines)
    for table in benchmark.tables:
        rows = table_of(table, left)
        left = [line for line in left if not table.shows(line)]
        found += ["", *rows] if rows else []
    rows = benchmark.tally.rows(left) if benchmark.tally is not None else []
    found += ["", *_markdown(rows)] if rows else []
    errors = [reason(line["error"]) for line in measured.lines if line.get("error")]
    found += ["", *(f"* {shown(each)}" for each in dict.fromkeys(errors))] if errors else []
    for index, plot in enumerate(benchmark.plots):
        path = pictures / f"{benchmark.name}{index or ''}.svg"
        path.unlink(missing_ok=True)
        if draw(plot, measured.lines, path):
            where = path.relative_to(page.parent).as_posix()
            found += ["", f"![{benchmark.title}: {plot.title}]({where})"]
    return [*found, ""]


def document(
    measured: Sequence[tuple[Benchmark, Measured]],
    left_out: Mapping[str, str],
    verdicts: Sequence[Verdict],
    page: Path,
    benchmarks: Sequence[Benchmark] = BENCHMARKS,
) -> str:
    """Return the whole text, and write its pictures.

    Args:
        measured: New results.
        left_out: Reasons why the others were not run, by name.
        verdicts: Results of the expectations.
        page: The document's path; its sections of other benchmarks stay.
        benchmarks: All benchmarks, in the order of their sections. Defaults to `BENCHMARKS`.
    """
    before = sections_of(page.read_text()) if page.exists() else {}
    parts: list[list[str]] = []
    missing = []
    anew = {benchmark.name: each for benchmark, each in measured}
    if verdicts:
        parts.append(_of_verdicts(verdicts))
    elif _EXPECTED in before:
        parts.append([before[_EXPECTED]])
    for benchmark in benchmarks:
        if benchmark.name in anew:
            parts.append(section(benchmark, anew[benchmark.name], page.with_suffix(""), page))
        elif benchmark.title in before:
            parts.append([before[benchmark.title]])
        else:
            missing.append(
                f"* `{benchmark.name}`: {shown(left_out.get(benchmark.name, 'it was not run'))}"
            )
    head = [_HEAD]
    if missing:
        head += ["What there is nothing of:", "", *missing, ""]
    return "\n".join("\n".join(part).rstrip() + "\n" for part in (head, *parts))


def _of_verdicts(verdicts: Sequence[Verdict]) -> list[str]:
    failed = [verdict for verdict in verdicts if not verdict.holds]
    text = f"{len(verdicts) - len(failed)} of {len(verdicts)} expected figures hold"
    where = "peaks, predictions and bits, in `benchmarks/expected.json`"
    lines = [f"## {_EXPECTED}", "", f"{text} ({where}){':' if failed else '.'}"]
    return [*lines, *(["", *(f"* {shown(verdict.text)}" for verdict in failed)] if failed else [])]
