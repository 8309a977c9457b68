"""The description of a benchmark: its runs, and the tables and plots of its lines."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from benchmarks.tally import Tally

MIB = 1 << 20


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading.
        key: Its key in the JSON lines.
        unit: The unit of the value: "" (as it is), "MiB" and "GiB" (of bytes), "s", "%" (of a
            part), "x" (a ratio), "fact" (a truth value; false is not bad).
    """

    title: str
    key: str
    unit: str = ""


@dataclass(frozen=True)
class Plot:
    """A picture of the lines that have all of its keys.

    Attributes:
        kind: "bars" or "lines".
        x: Keys whose values together are the place; for lines, one with numbers.
        series: Key whose values have one color each; "": only one.
        value: Key of the height.
        unit: As in a column.
        title: Title of the vertical axis.
        at: A horizontal line, such as the baseline's 1; None: none.
        only: Values that lines must have.
        having: Keys whose values are not None.
    """

    kind: str
    x: tuple[str, ...]
    series: str
    value: str
    unit: str
    title: str
    at: float | None = None
    only: tuple[tuple[str, Any], ...] = ()
    having: tuple[str, ...] = ()

    def shows(self, line: dict[str, Any]) -> bool:
        """Return whether a line is in the plot."""
        return (
            isinstance(line.get(self.value), int | float)
            and all(key in line for key in self.x)
            and all(line.get(key) == value for key, value in self.only)
            and all(line.get(key) is not None for key in self.having)
        )


@dataclass(frozen=True)
class Table:
    """Lines that have all of some keys.

    Attributes:
        columns: Its columns.
        having: Keys of the lines, which may have others; empty: those of the columns.
        only: Values that lines must have.
    """

    columns: tuple[Column, ...]
    having: tuple[str, ...] = ()
    only: tuple[tuple[str, Any], ...] = ()

    def shows(self, line: dict[str, Any]) -> bool:
        """Return whether a line is in the table."""
        keys = self.having or tuple(column.key for column in self.columns)
        return all(key in line for key in keys) and all(line.get(k) == v for k, v in self.only)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Attributes:
        name: Its module in `benchmarks`.
        title: Title of its section.
        text: A description of the comparison.
        full: The arguments of its runs.
        quick: The arguments of quick runs; empty: it is left out there.
        limit_s: Of each run; `quick_limit_s`: of each quick one.
        tables, plots, tally: Presentation of its lines.
        needs_scripts: Whether it runs programs of a given checkout.
        needs_root: Whether it creates cgroups and swap files.
    """

    name: str
    title: str
    text: str
    full: tuple[str, ...]
    quick: tuple[str, ...]
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()
    tally: Tally | None = None
    limit_s: float = 7200.0
    quick_limit_s: float = 90.0
    needs_scripts: bool = False
    needs_root: bool = False

    @property
    def exists(self) -> bool:
        """Return whether the module exists in this tree."""
        return importlib.util.find_spec(f"benchmarks.{self.name}") is not None


def columns(text: str) -> tuple[Column, ...]:
    """Return columns from "title: key unit | ..."; the unit may be left out."""
    made = []
    for part in text.split("|"):
        title, _, rest = part.partition(":")
        key, _, unit = rest.strip().partition(" ")
        made.append(Column(title.strip(), key, unit))
    return tuple(made)


def table(text: str, having: str = "", **only: Any) -> Table:
    """Return a table of columns as text; rows need the keys in `having`."""
    return Table(columns(text), tuple(having.split()), tuple(only.items()))
