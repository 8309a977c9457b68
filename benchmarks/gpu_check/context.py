"""The context of a stage: its time, and its results."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any


class Skip(Exception):
    """The stage cannot run here; the text says why."""


class Missing(Exception):
    """There is no GPU to check; the text says what to do."""


class Context:
    """The time and results of one stage.

    Attributes:
        quick: Small shapes and few steps, to try the check itself.
        figures: Measured values by name; written as JSON.
        lines: Rows of the printed table: title, value, target.
        broken: Requirements that do not hold, each a sentence.
        notes: Further remarks.
        fake: The GPU is that of ``tests/gpu/fake_cuda``, which computes nothing.
    """

    def __init__(self, result_file: Path, deadline_s: float, quick: bool, fake: bool) -> None:
        self._result_file = result_file
        self._deadline_s = deadline_s
        self.quick = quick
        self.fake = fake
        self.figures: dict[str, Any] = {}
        self.lines: list[tuple[str, str, str]] = []
        self.broken: list[str] = []
        self.notes: list[str] = []

    def seconds_left(self) -> float:
        """Return the seconds until the stage should have ended by itself."""
        return self._deadline_s - time.monotonic()

    def line(self, what: str, value: str, target: str = "") -> None:
        """Add a row to the table."""
        self.lines.append((what, value, target))

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def save(self, **outcome: Any) -> None:
        """Write the results so far: a stage that is ended early leaves what it saved last."""
        result = {
            "figures": self.figures,
            "lines": self.lines,
            "broken": self.broken,
            "notes": self.notes,
            **outcome,
        }
        written = self._result_file.with_suffix(".new")
        written.write_text(json.dumps(as_json(result)))
        written.replace(self._result_file)


def as_json(value: Any) -> Any:
    """Return the value with None for numbers that JSON does not support."""
    if isinstance(value, dict):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return str(value)
