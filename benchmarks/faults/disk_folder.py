"""Find a folder for a file of far memory."""

from __future__ import annotations

import tempfile
from pathlib import Path


def disk_folder() -> Path:
    """Return a new folder whose file system supports direct I/O.

    Raises:
        OSError: There is none.
    """
    from tfswap import _core

    for parent in (Path.cwd(), Path(tempfile.gettempdir()), Path("/var/tmp")):
        try:
            _core.SpillFile(str(parent))
        except OSError:
            continue
        return Path(tempfile.mkdtemp(prefix="tfswap-faults-", dir=parent))
    raise OSError("no disk here takes direct reads and writes")
