"""The document about the measurements: `docs/benchmarks.md` and its pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.expectations import Verdict
from benchmarks.measurements import Measured
from benchmarks.plots import draw
from benchmarks.reasons import reason
from benchmarks.ruler import MIB, Column, Ruler, Table
from benchmarks.rulers import RULERS

_MAX_CHARACTERS = 160
_HEAD = """\
# Benchmarks

`make bench` makes this page of what `python -m benchmarks` measures; nothing in it is written by
hand. Each section is a benchmark of `benchmarks/`, whose docstring says what its keys mean, beside
its rival in the same run; one that was not measured again stays as it was. Times hang on the
machine and on what else it did; peaks and bits do not.
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


def section(ruler: Ruler, measured: Measured, pictures: Path, page: Path) -> list[str]:
    """Return the section of one benchmark: runs, problems, tables and pictures.

    Args:
        ruler: The benchmark.
        measured: Its results.
        pictures: Folder for pictures.
        page: The document, which links to the pictures.
    """
    found = [f"## {ruler.title}", "", ruler.text, ""]
    for run in measured.runs:
        ended = f"**{run.problem}**" if run.problem else "done"
        took = f", {run.seconds:.0f} s" if run.seconds else ""
        found.append(f"* `{run.command}`: {shown(ended)}{took}, {measured.date}")
    found.append(f"* On: {', '.join(f'{key} {value}' for key, value in measured.machine.items())}")
    left = list(measured.lines)
    for table in ruler.tables:
        rows = table_of(table, left)
        left = [line for line in left if not table.shows(line)]
        found += ["", *rows] if rows else []
    rows = ruler.tally.rows(left) if ruler.tally is not None else []
    found += ["", *_markdown(rows)] if rows else []
    errors = [reason(line["error"]) for line in measured.lines if line.get("error")]
    found += ["", *(f"* {shown(each)}" for each in dict.fromkeys(errors))] if errors else []
    for index, plot in enumerate(ruler.plots):
        path = pictures / f"{ruler.name}{index or ''}.svg"
        path.unlink(missing_ok=True)
        if draw(plot, measured.lines, path):
            where = path.relative_to(page.parent).as_posix()
            found += ["", f"![{ruler.title}: {plot.title}]({where})"]
    return [*found, ""]


def document(
    measured: Sequence[tuple[Ruler, Measured]],
    left_out: Mapping[str, str],
    verdicts: Sequence[Verdict],
    page: Path,
    rulers: Sequence[Ruler] = RULERS,
) -> str:
    """Return the whole text, and write its pictures.

    Args:
        measured: New results.
        left_out: Reasons why the others were not run, by name.
        verdicts: Results of the expectations.
        page: The document's path; its sections of other benchmarks stay.
        rulers: All benchmarks, in the order of their sections. Defaults to `RULERS`.
    """
    before = sections_of(page.read_text()) if page.exists() else {}
    parts: list[list[str]] = []
    missing = []
    anew = {ruler.name: each for ruler, each in measured}
    if verdicts:
        parts.append(_of_verdicts(verdicts))
    elif _EXPECTED in before:
        parts.append([before[_EXPECTED]])
    for ruler in rulers:
        if ruler.name in anew:
            parts.append(section(ruler, anew[ruler.name], page.with_suffix(""), page))
        elif ruler.title in before:
            parts.append([before[ruler.title]])
        else:
            missing.append(f"* `{ruler.name}`: {shown(left_out.get(ruler.name, 'it was not run'))}")
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
