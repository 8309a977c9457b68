"""A step from any trace file that tfswap can read."""

from __future__ import annotations

import os
import zipfile

from tfswap.step.section_floor import SectionFloor
from tfswap.step.timeline import Timeline
from tfswap.traces.events import find_step, timeline_of
from tfswap.traces.singa import read_singa
from tfswap.traces.timeline_file import load_section_floors, load_timeline


def read_trace(path: str | os.PathLike[str]) -> Timeline:
    """Reads a timeline of tfswap's, or an event list of SINGA's (its repeating step).

    Raises:
        ValueError: The file is neither; the text says what is wrong.
        OSError: The file cannot be read.
    """
    if zipfile.is_zipfile(path):
        return load_timeline(path)
    return timeline_of(find_step(read_singa(path)))


def read_section_floors(path: str | os.PathLike[str]) -> tuple[SectionFloor, ...]:
    """What a trace file says of the least budgets with sections: only tfswap's profiles do.

    Raises:
        ValueError: What the file says cannot be; the text says what is wrong.
        OSError: The file cannot be read.
    """
    return load_section_floors(path) if zipfile.is_zipfile(path) else ()
