"""Host memory that this process may use: of the machine, and within its cgroup's limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# For "no limit", version 1 of cgroups reports a huge number, rounded to pages.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True)
class CgroupMemory:
    """The tightest memory limit of this process's cgroups.

    Attributes:
        limit_bytes: The lowest limit from the process's own cgroup up to the root; None: no limit.
        available_bytes: The memory that all of these limits still leave, including file cache that
            the kernel can drop; None: no limit.
    """

    limit_bytes: int | None
    available_bytes: int | None


@dataclass(frozen=True)
class HostMemory:
    """The machine's memory, and how much of it can be allocated without paging; in bytes."""

    total_bytes: int
    available_bytes: int


def host_memory(root: str | Path = "/") -> HostMemory:
    """Return the machine's memory as the kernel reports it, without cgroup limits."""
    kibibytes = {}
    for line in (Path(root) / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        kibibytes[name] = int(value.split()[0]) if value.split() else 0
    total = kibibytes["MemTotal"] * 1024
    return HostMemory(total, kibibytes.get("MemAvailable", kibibytes["MemFree"]) * 1024)


def cgroup_memory(root: str | Path = "/") -> CgroupMemory:
    """Return the memory limits of this process's cgroup and its ancestors, versions 1 and 2.

    In a container, /proc/self/cgroup may hold the host's path while the mounted tree starts at the
    container, so missing folders are skipped.

    Args:
        root: The folder that contains /proc and /sys.
    """
    root = Path(root)
    limits: list[int] = []
    available: list[int] = []
    for top, folder, (limit_name, usage_name, cache_name) in _memory_cgroups(root):
        while True:
            limit_bytes = _read_limit(folder / limit_name)
            if limit_bytes is not None:
                limits.append(limit_bytes)
                used_bytes = _read_limit(folder / usage_name) or 0
                used_bytes -= _statistic(folder / "memory.stat", cache_name)
                available.append(max(0, limit_bytes - max(0, used_bytes)))
            if folder == top:
                break
            folder = folder.parent
    return CgroupMemory(min(limits, default=None), min(available, default=None))


_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def _memory_cgroups(root: Path) -> list[tuple[Path, Path, tuple[str, str, str]]]:
    """Return, for each cgroup tree: its root, this process's folder, and the file names."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mounted = root / "sys/fs/cgroup"
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # A path that begins with ".." is outside this process's cgroup namespace: use the root.
        inside = [part for part in path.split("/") if part not in ("", "..")]
        if controllers == "":
            top, names = mounted, _VERSION_2
        elif "memory" in controllers.split(","):
            top, names = mounted / "memory", _VERSION_1
        else:
            continue
        found.append((top, top.joinpath(*inside), names))
    return found


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    value = int(text) if text.isdigit() else None
    return None if value is None or value >= _NO_LIMIT_BYTES else value


def _statistic(file: Path, name: str) -> int:
    try:
        pairs = dict(line.split(" ", 1) for line in file.read_text().splitlines() if " " in line)
    except OSError:
        return 0
    return int(pairs.get(name, 0))


def available_host_bytes(root: str | Path = "/") -> int:
    """Return the host memory that the machine and the cgroup limits still leave this process."""
    available = host_memory(root).available_bytes
    within = cgroup_memory(root).available_bytes
    return available if within is None else min(available, within)


def free_swap_bytes(root: str | Path = "/") -> int:
    """Return how many bytes of this process the kernel can still page out to its swap space."""
    root = Path(root)
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("SwapFree:"):
            free_bytes = int(line.split()[1]) * 1024
            break
    else:
        return 0
    for _, folder, (limit_name, _, _) in _memory_cgroups(root):
        limit_bytes = _read_limit(folder / limit_name)
        if limit_name == _VERSION_1[0]:
            memory_and_swap_bytes = _read_limit(folder / "memory.memsw.limit_in_bytes")
            if limit_bytes is not None and memory_and_swap_bytes is not None:
                free_bytes = min(free_bytes, memory_and_swap_bytes - limit_bytes)
        else:
            swap_limit_bytes = _read_limit(folder / "memory.swap.max")
            if swap_limit_bytes is not None:
                free_bytes = min(free_bytes, swap_limit_bytes)
    return max(0, free_bytes)
