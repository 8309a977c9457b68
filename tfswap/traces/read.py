"""A step from any trace file that tfswap can read."""

from __future__ import annotations

import os
import zipfile

from tfswap.timeline import Timeline
from tfswap.traces.events import find_step, timeline_of
from tfswap.traces.singa import read_singa
from tfswap.traces.timeline_file import load_timeline


def read_trace(path: str | os.PathLike[str]) -> Timeline:
    """Reads a timeline of tfswap's, or an event list of SINGA's (its repeating step).

    Raises:
        ValueError: The file is neither; the text says what is wrong.
        OSError: The file cannot be read.
    """
    if zipfile.is_zipfile(path):
        return load_timeline(path)
    return timeline_of(find_step(read_singa(path)))
