"""The resources that a process holds, before a fault and after it."""

from __future__ import annotations

import collections
import gc
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tfswap

# Some optimized graphs of trainings stay with their constants, the newest of each function; their
# size varies from case to case, but never exceeds this.
_MAX_LEFT_BYTES = 2 << 20
_PATIENCE_S = 3.0
# Created on first use, and kept: a thread for the swap-ins of each possible concurrent job.
_MAX_KEPT = {"tfswap_in": 17}
# Thread pools that TensorFlow and Python fill on first use, and keep.
_POOLS = ("tf_", "Thread-", "ThreadPool", "python", "asyncio", "Eigen")


@dataclass(frozen=True)
class Held:
    """The resources at one moment.

    Attributes:
        threads: How many there are of each name.
        handles: Number of open files by kind or path.
        bytes: Memory and far memory in use, by name.
        files: Files in the folder of the file tier.
        trainings: Trainings in progress, according to tfswap.
    """

    threads: Mapping[str, int]
    handles: Mapping[str, int]
    bytes: Mapping[str, int]
    files: int
    trainings: int

    @classmethod
    def now(cls, folder: Path) -> Held:
        """Return the present resources, after garbage collection."""
        gc.collect()
        stats = tfswap.memory_stats()
        kept = ("load_bytes", "host_bytes_in_use", "host_bytes_cached", "far_buffers")
        held = {name: int(stats[name]) for name in kept}
        held["far_file_bytes_in_use"] = int(stats["far_file_bytes_in_use"])
        held["budget_bytes"] = stats["budget_bytes"] or 0
        # The budget's count without idle pages of the slab.
        idle_bytes = stats["slab_bytes"] - stats["slab_claimed_bytes"]
        held["counted_bytes"] = int(stats["bytes_in_use"] - idle_bytes)
        return cls(
            _threads(), _handles(), held, len(os.listdir(folder)), len(tfswap.status()["trainings"])
        )


def left_behind(before: Held, folder: Path, first: Held | None = None) -> str:
    """Describe resources that are new since `before`; "" for none.

    Resources that are being released have some time for it.

    Args:
        before: The resources before the case.
        folder: Folder of the file tier.
        first: Resources before the first case of the process with these models, so that small
            leftovers of cases do not add up.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        said = _compared(before, Held.now(folder), first or before)
        if not said or time.monotonic() > until_s:
            return said
        time.sleep(0.05)


def _compared(before: Held, after: Held, first: Held) -> str:
    said = []
    for name, value in after.bytes.items():
        allowed = before.bytes[name]
        if name in ("load_bytes", "counted_bytes"):
            # A case may not add to an earlier excess.
            allowed = max(first.bytes[name] + _MAX_LEFT_BYTES, before.bytes[name])
        if value > allowed:
            said.append(f"{name} {before.bytes[name]} -> {value}")
    if after.files > before.files:
        said.append(f"{after.files} files in the folder")
    if after.trainings:
        said.append(f"{after.trainings} trainings under way")
    for what, was, there in (
        ("threads", before.threads, after.threads),
        ("handles", before.handles, after.handles),
    ):
        more = {
            name: n - was.get(name, 0)
            for name, n in there.items()
            if n > max(was.get(name, 0), _MAX_KEPT.get(name, 0))
        }
        if more:
            said.append(f"{what} {more}")
    return "; ".join(said)


def _threads() -> dict[str, int]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except OSError:
            continue  # it has just ended
        if not name.startswith(_POOLS):
            names.append(name)
    # All threads of Python have one name there; those known by their number are left out.
    names += [re.sub(r"\d+", "", each.name) for each in threading.enumerate()]
    return dict(collections.Counter(names))


def _handles() -> dict[str, int]:
    targets = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(handle)
        except OSError:
            continue
        # The numbers of pipes and sockets are irrelevant.
        targets.append(target.partition(":")[0] if not target.startswith("/") else target)
    return dict(collections.Counter(targets))
