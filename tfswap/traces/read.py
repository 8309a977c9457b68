"""Read a step from any supported trace file."""

from __future__ import annotations

import os
import zipfile

from tfswap.step.op_floor import StepFloor
from tfswap.step.section_floor import SectionFloor
from tfswap.step.timeline import Timeline
from tfswap.traces.events import find_step, timeline_of
from tfswap.traces.singa import read_singa
from tfswap.traces.timeline_file import load_floor, load_section_floors, load_timeline


def read_trace(path: str | os.PathLike[str]) -> Timeline:
    """Read a tfswap timeline, or the repeating step of a SINGA event list.

    Raises:
        ValueError: The file is neither; the message says what is wrong.
        OSError: The file cannot be read.
    """
    if zipfile.is_zipfile(path):
        return load_timeline(path)
    return timeline_of(find_step(read_singa(path)))


def read_section_floors(path: str | os.PathLike[str]) -> tuple[SectionFloor, ...]:
    """Read the smallest budgets with sections, which only tfswap profiles have.

    Raises:
        ValueError: The file is invalid; the message says what is wrong.
        OSError: The file cannot be read.
    """
    return load_section_floors(path) if zipfile.is_zipfile(path) else ()


def read_floor(path: str | os.PathLike[str]) -> StepFloor | None:
    """Read what the largest op needs at once, which only tfswap profiles have.

    Raises:
        ValueError: The file is invalid; the message says what is wrong.
        OSError: The file cannot be read.
    """
    return load_floor(path) if zipfile.is_zipfile(path) else None
