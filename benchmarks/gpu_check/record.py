"""All results in one JSON file, a line for each stage, and a table at the end."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.context import as_json
from benchmarks.gpu_check.stages import MACHINE

FORMAT = 1
# A stage that was ended after this much silence was not slow: it hung.
_HUNG_S = 60.0


class Record:
    """The results so far; the file is written again after each stage."""

    def __init__(self, file: Path, minutes: float, quick: bool) -> None:
        self._file = file
        self._values: dict[str, Any] = {
            "tfswap_gpu_check": FORMAT,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "minutes": minutes,
            "quick": quick,
            "finished": False,
            "machine": {},
            "broken": [],
            "stages": [],
        }
        self.missing: str | None = None
        self.can_go_on = True

    @property
    def fake(self) -> bool:
        """Return whether the GPU computes nothing: its numbers are meaningless."""
        return bool(self._values["machine"].get("fake", False))

    @property
    def exit_status(self) -> int:
        """0 if all requirements hold, 1 if not, 2 without a GPU."""
        return 2 if self.missing is not None else int(bool(self._values["broken"]))

    def add(self, stage: dict[str, Any]) -> None:
        """Add a stage, write the file, and print the stage as a line of JSON."""
        name, status = stage["stage"], stage["status"]
        self._values["stages"].append(stage)
        if name == MACHINE:
            self._values["machine"] = stage.get("figures", {})
            self.can_go_on = status == "done"
        if status == "missing":
            self.missing = stage["why"]
            self.can_go_on = False
        if status == "failed":
            self._values["broken"].append(f"{name}: {stage['why']}")
        elif stage.get("silent_s", 0.0) >= _HUNG_S:
            self._values["broken"].append(f"{name} hung: {stage['why']}")
        self._values["broken"] += [f"{name}: {text}" for text in stage.get("broken", [])]
        self.write()
        print(json.dumps(as_json(stage)), flush=True)
        why = f": {stage['why']}" if "why" in stage else ""
        seconds = f" in {stage['seconds']:.0f} s" if "seconds" in stage else ""
        print(f"{name} {status}{seconds}{why}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Write the file for the last time."""
        self._values["finished"] = True
        self._values["exit_status"] = self.exit_status
        self.write()

    def write(self) -> None:
        """Write the file atomically."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_name(self._file.name + ".new")
        written.write_text(json.dumps(as_json(self._values), indent=1) + "\n")
        written.replace(self._file)

    def table(self) -> str:
        """Return the printed table: each figure with its target, then failed requirements."""
        rows = [("", "target", "")]
        for stage in self._values["stages"]:
            status = stage["status"]
            if status != "done":
                rows.append((stage["stage"], "", f"{status}: {stage.get('why', '')}"))
            rows += [(what, target, value) for what, value, target in stage.get("lines", [])]
        width, middle = (max(len(row[column]) for row in rows) for column in (0, 1))
        text = "\n".join(f"{a:<{width}}  {b:<{middle}}  {c}".rstrip() for a, b, c in rows)
        broken = self._values["broken"]
        if self.fake:
            text += "\n\nThis GPU computes nothing: its times and losses mean nothing."
        if broken:
            return text + "\n\nWhat must hold and does not:\n" + "\n".join(f"* {b}" for b in broken)
        return text + "\n\nAll that must hold, and was reached in time, holds."
