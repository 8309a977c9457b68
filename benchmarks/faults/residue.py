"""What a process has in its hands, before a fault and after it."""

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

# A few graphs that were optimised for trainings stay with their constants, the newest of each
# function; from one case to the next that is more or less, but never more than this.
_MAX_LEFT_BYTES = 2 << 20
_PATIENCE_S = 3.0
# Made when they are first needed, and kept: a thread for the swap-ins of each job that there may be
# at once, and the memory that crashing kernels get where there is none.
_MAX_KEPT = {"tfswap_in": 17, "/memfd:tfswap_stand_in (deleted)": 1}
# Pools that TensorFlow and Python fill up when they are first needed, and keep.
_POOLS = ("tf_", "Thread-", "ThreadPool", "python", "asyncio", "Eigen")


@dataclass(frozen=True)
class Held:
    """At one moment.

    Attributes:
        threads: How many there are of each name.
        handles: How many open files there are of each kind or path.
        bytes: Memory and far memory in use, by name.
        files: In the folder of the file tier.
        trainings: That are under way, as tfswap says.
    """

    threads: Mapping[str, int]
    handles: Mapping[str, int]
    bytes: Mapping[str, int]
    files: int
    trainings: int

    @classmethod
    def now(cls, folder: Path) -> Held:
        """As it is, after what is garbage has gone."""
        gc.collect()
        stats = tfswap.memory_stats()
        kept = ("load_bytes", "host_bytes_in_use", "host_bytes_cached", "far_buffers")
        held = {name: int(stats[name]) for name in kept}
        held["far_file_bytes_in_use"] = int(stats["far_file_bytes_in_use"])
        held["budget_bytes"] = stats["budget_bytes"] or 0
        # What the budget counts, but for idle pages of the slab beside what still lies there.
        idle_bytes = stats["slab_bytes"] - stats["slab_claimed_bytes"]
        held["counted_bytes"] = int(stats["bytes_in_use"] - idle_bytes)
        return cls(
            _threads(), _handles(), held, len(os.listdir(folder)), len(tfswap.status()["trainings"])
        )


def left_behind(before: Held, folder: Path, first: Held | None = None) -> str:
    """What there is now that there was not before, in words; "" for nothing.

    What is on its way has some time to go.

    Args:
        before: What there was.
        folder: Of the file tier.
        first: What there was before the first case of the process with these models, so that what
            little each case may leave does not add up.
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
            # What was more before the case is not the case's; it is to add nothing to that.
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
    # All of Python's have one name there; those have none here that are known by their number.
    names += [re.sub(r"\d+", "", each.name) for each in threading.enumerate()]
    return dict(collections.Counter(names))


def _handles() -> dict[str, int]:
    targets = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(handle)
        except OSError:
            continue
        # Of pipes and sockets, the number says nothing.
        targets.append(target.partition(":")[0] if not target.startswith("/") else target)
    return dict(collections.Counter(targets))
