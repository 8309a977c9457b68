"""Run one stage after the other, within the available time."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.record import Record
from benchmarks.gpu_check.stage_process import StageProcess
from benchmarks.gpu_check.stages import MACHINE, Stage

# A stage that would get less than this is not started.
_MIN_S = 8.0
# A stage that hangs may take this many times its planned share.
_MAX_SHARES = 3.0
_PLANNED_S = 480.0
# The first import of TensorFlow reads a gigabyte.
_MACHINE_S = 150.0
# For the record and its table.
_RESERVE_S = 2.0


def share_of(left_s: float, stage: Stage, following: Sequence[Stage]) -> float:
    """Return a stage's time limit: its share of the time left for it and later ones."""
    return left_s * stage.share / (stage.share + sum(other.share for other in following))


def run_stages(
    stages: Sequence[Stage], total_s: float, quick: bool, record: Record, logs: Path
) -> None:
    """Run all stages for which there is time, and add each one's result to the record."""
    begun_s = time.monotonic()
    prepared: dict[str, StageProcess] = {}
    try:
        for position, stage in enumerate(stages):
            following = stages[position + 1 :]
            left_s = total_s - _RESERVE_S - (time.monotonic() - begun_s)
            most_s = _MAX_SHARES * stage.share * max(total_s / _PLANNED_S, 1.0)
            seconds = min(share_of(left_s, stage, following), most_s)
            if stage.name == MACHINE:  # all that need tfswap depend on it
                seconds = min(left_s, _MACHINE_S)
            if seconds < _MIN_S:
                record.add({"stage": stage.name, "status": "skipped", "why": "time"})
                continue
            print(f"{stage.name}, at most {seconds:.0f} s ...", file=sys.stderr, flush=True)
            process = prepared.pop(stage.name, None) or StageProcess(stage, quick, logs)
            prepared[stage.name] = process
            if not stage.quiet and stage.name != MACHINE:
                _prepare(following, prepared, quick, logs)
            record.add(process.run(seconds, record.fake))
            prepared.pop(stage.name).end()
            if not record.can_go_on:
                return
    finally:
        for process in prepared.values():
            process.end()


def _prepare(
    following: Sequence[Stage], prepared: dict[str, StageProcess], quick: bool, logs: Path
) -> None:
    """Start the next process, and the one after it, too, if the next stage must be alone."""
    for stage in following:
        if stage.name not in prepared:
            prepared[stage.name] = StageProcess(stage, quick, logs)
        if not stage.quiet:
            return
