"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tfswap.whole_file import whole_file


def test_the_file_is_as_it_was_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with whole_file(path) as partial:
        partial.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_leaves_nothing_but_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        with whole_file(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["file"]


def test_what_a_killed_process_did_not_finish_goes(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = (f"{ended.pid}-1", f"{os.getpid()}-2", "1-3")
    unfinished, under_way, stuck = (tmp_path / f".{name}.partial" for name in names)
    for path in (unfinished, under_way, stuck):
        path.write_text("{")
    os.utime(stuck, (0, 0))
    with whole_file(tmp_path / "file") as partial:
        partial.write_text("whole")
    assert not unfinished.exists() and not stuck.exists() and under_way.exists()
