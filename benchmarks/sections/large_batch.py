"""Batches that are too large for a single layer, and gradient accumulation."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.sections.accumulation import Accumulation, accumulated
from benchmarks.sections.lines import line
from benchmarks.sections.training import Case, Training, relative_error, trained
from tfswap.machine.budget import parse_bytes

MODEL, IMAGE = "VGG16", 224
# Of a training without sections, and of gradient accumulation's parts.
SMALL_BATCH = 16
CASES = "256:4GiB:32:3,512:6GiB:64:1"
QUICK_CASES = "256:4GiB:32:1"


def large_batches(cases: str) -> Iterator[dict[str, Any]]:
    """Yield a line for a batch that needs no sections, and one for each case.

    Args:
        cases: batch:budget:sections:steps, with commas.
    """
    small = Case(MODEL, SMALL_BATCH, IMAGE, steps=4)
    yield _line(small, trained(small), None)
    for text in cases.split(","):
        batch, budget, sections, steps = text.split(":")
        case = Case(MODEL, int(batch), IMAGE, int(steps), parse_bytes(budget), int(sections))
        found = trained(case)
        if found.out_of_memory:
            raise SystemExit(found.out_of_memory)
        beside = accumulated(Accumulation(MODEL, case.batch, SMALL_BATCH, IMAGE, case.steps))
        answer = _line(case, found, relative_error(found.losses, beside))
        yield {**answer, "sections": case.sections}


def _line(case: Case, found: Training, error: float | None) -> dict[str, Any]:
    times = found.steps_s
    return {
        **line(case, found, statistics.median(times[1:] or times), error),
        "steps_s": [round(each, 2) for each in times],
        "losses": found.losses,
    }
