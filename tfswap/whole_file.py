"""Files that are there as a whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Of a file that is being written; where that takes longer than this, the writer has been killed.
_PARTIAL, _MOST_WRITING_S = ".partial", 600.0


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Another path beside a file, to write to; it takes the file's place at the end.

    What processes that were killed have left in that folder goes.

    Args:
        path: The file's.

    Raises:
        OSError: It cannot be written; then the file is as it was.
    """
    _remove_unfinished(path.parent)
    partial = path.with_name(f".{os.getpid()}-{threading.get_ident()}{_PARTIAL}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _remove_unfinished(folder: Path) -> None:
    for partial in folder.glob(f".*-*{_PARTIAL}"):
        writer = partial.name.removeprefix(".").partition("-")[0]
        try:
            age_s = time.time() - partial.lstat().st_mtime
        except FileNotFoundError:
            continue  # it has just been finished
        has_ended = writer.isdecimal() and not Path(f"/proc/{writer}").exists()
        if has_ended or age_s > _MOST_WRITING_S:
            partial.unlink(missing_ok=True)
