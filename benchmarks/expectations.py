"""Figures that must not get worse: peaks, predictions and bits of quick runs, in `expected.json`.

An entry applies to the lines of a benchmark that match `where`, of which there must be at least
one::

    {"benchmark": "budget_sweep", "where": {"model": "MobileNetV2"},
     "equal": {"loss_bit_equal": true},            exactly this
     "at_most": {"measured_peak_bytes": "budget_bytes"},   so much or less; or another key's value
     "at_least": {"planned_share": 0.95},
     "near": {"predicted_peak_bytes": ["settled_peak_load_bytes", 0.03]}}   but for such a part

Times are not included: a slower step is shown, but is no failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXPECTED = Path(__file__).parent / "expected.json"
_FIELDS = {"benchmark", "where", "equal", "at_most", "at_least", "near"}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one figure of one line.

    Attributes:
        holds: Whether it is as expected.
        text: The expected and the actual value.
    """

    holds: bool
    text: str


def read(path: Path = EXPECTED) -> list[dict[str, Any]]:
    """Return the entries.

    Raises:
        ValueError: An entry has an unknown field.
    """
    entries: list[dict[str, Any]] = json.loads(path.read_text())
    for entry in entries:
        if not _FIELDS.issuperset(entry):
            raise ValueError(f"{path}: {sorted(set(entry) - _FIELDS)} are no fields of an entry")
    return entries


def judge(
    entries: Sequence[Mapping[str, Any]], lines: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Verdict]:
    """Compare measurements with expectations.

    Args:
        entries: Entries from `read`.
        lines: Lines by benchmark; entries of other benchmarks are skipped.
    """
    found = []
    for entry in entries:
        if entry["benchmark"] not in lines:
            continue
        where = entry.get("where", {})
        those = [
            line
            for line in lines[entry["benchmark"]]
            if all(line.get(key) == value for key, value in where.items())
        ]
        name = " ".join([entry["benchmark"], *(f"{key}={value}" for key, value in where.items())])
        if not those:
            found.append(Verdict(False, f"{name}: there is no such line"))
        for line in those:
            found += _of_line(name, entry, line)
    return found


def _of_line(name: str, entry: Mapping[str, Any], line: Mapping[str, Any]) -> list[Verdict]:
    """Judge each figure of an entry for a line."""
    found = []
    rules: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
        ("equal", "", lambda value, limit: value == limit),
        ("at_most", "at most ", lambda value, limit: value <= limit),
        ("at_least", "at least ", lambda value, limit: value >= limit),
    )
    for field, words, holds in rules:
        for key, said in entry.get(field, {}).items():
            value, limit = line.get(key), said
            if field != "equal":
                limit = line.get(said) if isinstance(said, str) else said
            compares = field == "equal" or None not in (value, limit)
            text = f"{name}: {key} is {value}, expected {words}{limit}"
            found.append(Verdict(compares and holds(value, limit), text))
    for key, (other, part) in entry.get("near", {}).items():
        value, beside = line.get(key), line.get(other)
        near = None not in (value, beside) and abs(value - beside) <= part * beside
        text = f"{name}: {key} is {value}, expected within {part:.0%} of {other}, {beside}"
        found.append(Verdict(near, text))
    return found
