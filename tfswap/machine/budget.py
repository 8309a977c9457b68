"""What a budget means: "900MiB", 0.5, "auto", on this device and within this cgroup's limit."""

from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import SupportsIndex

Budget = str | int | float | SupportsIndex

AUTO_BUDGET = Fraction(9, 10)
"""The part of the memory available now that "auto" gives to the device."""

GROWTH_BYTES = 384 << 20
"""What a process still takes for itself when training begins (graphs, their optimisation): left
alone by "auto" where device and host share their memory, but never more than half of it."""

AUTO_HOST_LIMIT = Fraction(8, 10)
"""The part of what the budget leaves that "auto" gives to far memory."""

_UNITS = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_UNIT_BYTES = {unit.lower(): factor for unit, factor in _UNITS.items()}
# Of few digits: ten to some power takes as much memory and time to write down.
_NUMBER = re.compile(
    r"\s*([0-9]{1,30}(?:\.[0-9]{0,30})?(?:e\+?[0-9]{1,2})?|\.[0-9]{1,30})\s*([a-z%/]*)\s*",
    re.IGNORECASE,
)
_DEVICE = re.compile(r"[CG]PU:\d+")

# What version 1 of cgroups reports for "no limit" is a huge number, rounded to pages.
_NO_LIMIT_BYTES = 1 << 60

# More than there is anywhere. The library counts in 64 bits.
_MOST_BYTES = 1 << 60


@dataclass(frozen=True)
class CgroupMemory:
    """The tightest memory limit that holds for this process.

    Attributes:
        limit_bytes: the lowest limit from the process's own cgroup up to the root; None: no limit.
        available_bytes: what may still be used under every one of them, with what the kernel can
            drop from its file cache; None: no limit.
    """

    limit_bytes: int | None
    available_bytes: int | None


@dataclass(frozen=True)
class HostMemory:
    """The machine's memory, and how much of it can be taken without swapping; in bytes."""

    total_bytes: int
    available_bytes: int


def parse_bytes(amount: Budget) -> int:
    """Bytes from a number, or from a text with a unit: "900MiB", "6GB", "1.5 GiB".

    Units are exact: kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB powers of 1024. Upper
    and lower case are the same. A part of a byte is dropped.

    Raises:
        ValueError: Not such an amount, or not above zero.
    """
    if isinstance(amount, str):
        match = _NUMBER.fullmatch(amount)
        factor = _UNIT_BYTES.get((match[2] or "B").lower()) if match else None
        if match is None or factor is None:
            raise _not_bytes(amount)
        size_bytes = int(Fraction(match[1]) * factor)
    else:
        if isinstance(amount, bool):
            raise _not_bytes(amount)
        try:
            size_bytes = operator.index(amount)  # type: ignore[arg-type]  # a float is refused here
        except TypeError:
            raise _not_bytes(amount) from None
    if size_bytes <= 0:
        raise ValueError(f"an amount of memory must be above 0 bytes; {amount!r} is not")
    return size_bytes


def parse_amount(amount: Budget) -> int:
    """As `parse_bytes`, for what the library counts: in 64 bits.

    Raises:
        ValueError: Not such an amount, or more than 2^60 bytes.
    """
    size_bytes = parse_bytes(amount)
    if size_bytes > _MOST_BYTES:
        raise ValueError(
            f"{reprlib.repr(amount)} is more memory than there is anywhere: 2^60 bytes"
        )
    return size_bytes


def parse_limit(amount: int | str) -> int:
    """As `parse_amount`, and 0.

    Raises:
        ValueError: Not such an amount, or below zero.
    """
    return 0 if amount == 0 and not isinstance(amount, bool) else parse_amount(amount)


def _not_bytes(amount: object) -> ValueError:
    return ValueError(
        f"{amount!r} is not an amount of memory. Allowed: bytes as an integer, or a text with a "
        f'number and one of {", ".join(_UNITS)}, such as "900MiB" or "1.5 GiB"'
    )


def check_each(budget: Budget | Mapping[str, Budget], name: str) -> None:
    """`check` for a budget, or for those of several devices by name.

    Raises:
        ValueError: One is none, or is for no device; the text lists what is allowed.
    """
    if not isinstance(budget, Mapping):
        check(budget, name)
        return
    for device, amount in budget.items():
        if not _DEVICE.fullmatch(str(device)):
            raise ValueError(f"{name}: {device!r} is no device; they are called 'GPU:0', 'CPU:0'")
        check(amount, f"{name} of {device}")
    if not budget:
        raise ValueError(f"{name}: there is no device in it")


def check(amount: Budget, name: str) -> None:
    """Refuse what `resolve` and `resolve_host_limit` would refuse, without measuring anything.

    Args:
        amount: A budget or a host limit.
        name: What the error calls it.

    Raises:
        ValueError: Not such an amount; the text lists what is allowed.
    """
    try:
        if not is_auto(amount) and _part(amount) is None:
            parse_amount(amount)
    except ValueError as error:
        raise ValueError(f"{name}: {error}. {_ALLOWED_TOO}") from None


def resolve(
    budget: Budget,
    device_limit_bytes: int | None = None,
    cgroup_limit_bytes: int | None = None,
    *,
    available_bytes: int | None = None,
    in_use_bytes: int = 0,
) -> int:
    """Bytes that a budget stands for on one device.

    Args:
        budget: Bytes as an integer or a text ("900MiB"); "80%" or a float in (0, 1]: that part of
            the device's memory; "auto": 0.9 of what is available on it now, what the device holds
            already included.
        device_limit_bytes: The device's memory; 0: nobody knows, and only bytes are a budget.
            Default: the CPU's, which is the machine's memory or this cgroup's limit, whichever is
            less.
        cgroup_limit_bytes: A limit that counts too, for a device whose memory is the host's.
        available_bytes: What is free on the device now. Default: measured, for the CPU; for another
            device all of its memory but `in_use_bytes`.
        in_use_bytes: What the device holds already. It counts against the budget, so "auto"
            counts it as available. Defaults to 0.

    Raises:
        ValueError: Not a budget; the text lists what is allowed.
    """
    check(budget, "budget")
    if device_limit_bytes == 0 and (is_auto(budget) or _part(budget) is not None):
        raise ValueError(
            f"budget={budget!r} is relative to the device's memory, and its allocator does not say "
            'how much that is: give bytes, such as "8GiB"'
        )
    if is_auto(budget):
        if available_bytes is None:
            if device_limit_bytes is None:
                available_bytes = without_growth(available_host_bytes())
            else:
                limits = [device_limit_bytes, cgroup_limit_bytes or device_limit_bytes]
                available_bytes = min(limits) - in_use_bytes
        return max(1, int(AUTO_BUDGET * (available_bytes + in_use_bytes)))
    part = _part(budget)
    if part is None:
        return parse_bytes(budget)
    if device_limit_bytes is None:
        device_limit_bytes = host_memory().total_bytes
        cgroup_limit_bytes = cgroup_limit_bytes or cgroup_memory().limit_bytes
    return max(1, int(part * min(device_limit_bytes, cgroup_limit_bytes or device_limit_bytes)))


def resolve_host_limit(
    host_limit: Budget,
    budget_bytes: int | None = None,
    *,
    in_use_bytes: int = 0,
    available_bytes: int | None = None,
) -> int:
    """Bytes of host memory that swapped buffers may take.

    "auto" leaves to the device what its budget may still take from the same memory, then gives 80 %
    of the rest to far memory; the other 20 % are for Python, the input pipeline and the system.

    Args:
        host_limit: As a budget: bytes, a text, a part of the host's memory, or "auto".
        budget_bytes: The budget of a device whose memory is the host's; None for a GPU.
        in_use_bytes: What that device holds already. Defaults to 0.
        available_bytes: Host memory that is free now. Default: measured.

    Raises:
        ValueError: Not such a limit; the text lists what is allowed.
    """
    check(host_limit, "host_limit")
    if not is_auto(host_limit):
        return resolve(host_limit)
    if available_bytes is None:
        available_bytes = without_growth(available_host_bytes())
    still_to_come = max(0, (budget_bytes or 0) - in_use_bytes)
    return max(1, int(AUTO_HOST_LIMIT * max(0, available_bytes - still_to_come)))


def swap_bytes(root: str | Path = "/") -> int:
    """What the kernel may still swap out of this process, in bytes."""
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
            both_bytes = _read_limit(folder / "memory.memsw.limit_in_bytes")
            if limit_bytes is not None and both_bytes is not None:
                free_bytes = min(free_bytes, both_bytes - limit_bytes)
        else:
            most_bytes = _read_limit(folder / "memory.swap.max")
            if most_bytes is not None:
                free_bytes = min(free_bytes, most_bytes)
    return max(0, free_bytes)


def without_growth(available_bytes: int, growth_bytes: int = GROWTH_BYTES) -> int:
    """What of so many bytes is left when the process has grown for a training; see GROWTH_BYTES."""
    return available_bytes - min(growth_bytes, available_bytes // 2)


def is_auto(amount: Budget) -> bool:
    """Whether it says "auto"."""
    return isinstance(amount, str) and amount.strip().lower() == "auto"


def parse_bandwidth(bandwidth: str | float | None) -> float | None:
    """Bytes per second from a number or a text: "12GB/s", "12e9", 12e9; None stays None.

    Raises:
        ValueError: Not a bandwidth, or not above zero; the text lists what is allowed.
    """
    if bandwidth is None:
        return None
    bytes_per_s: float | None = None
    if isinstance(bandwidth, str):
        match = _NUMBER.fullmatch(bandwidth)
        unit = match[2].lower() if match else "?"
        factor = _UNIT_BYTES.get(unit.removesuffix("/s")) if unit.endswith("/s") else None
        if match and (factor or not unit):
            bytes_per_s = float(Fraction(match[1]) * (factor or 1))
    elif not isinstance(bandwidth, bool):
        try:
            bytes_per_s = float(bandwidth)
        except (TypeError, ValueError, OverflowError):
            bytes_per_s = None
    if bytes_per_s is None or not 0 < bytes_per_s < float("inf"):
        raise ValueError(
            f"{bandwidth!r} is not a link bandwidth. Allowed: bytes per second as a number above "
            f"0, or a text with a number and one of {', '.join(f'{unit}/s' for unit in _UNITS)}, "
            'such as "12GB/s"'
        )
    return bytes_per_s


_ALLOWED_TOO = (
    'Allowed too: a part of the device\'s memory, "80%" or a float above 0 and up to 1.0, or "auto"'
)


def _part(amount: Budget) -> Fraction | None:
    """The part of the device that a float or a percentage asks for; None for other amounts."""
    if isinstance(amount, str):
        match = _NUMBER.fullmatch(amount)
        if match is None or match[2] != "%":
            return None
        part = Fraction(match[1]) / 100
    elif isinstance(amount, float):
        if not 0 < amount <= 1:
            raise ValueError(
                f"{amount!r} is not allowed: a float is a part of the memory, above 0 and up to "
                '1.0. Bytes are written as an integer or with a unit, such as 6 * 1024**3 or "6GiB"'
            )
        part = Fraction(amount)
    else:
        return None
    if not 0 < part <= 1:
        raise ValueError(f"{amount!r} is not allowed: a percentage is above 0 and up to 100%")
    return part


def host_memory(root: str | Path = "/") -> HostMemory:
    """The machine's memory, from the kernel; cgroups do not show in it."""
    kibibytes = {}
    for line in (Path(root) / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        kibibytes[name] = int(value.split()[0]) if value.split() else 0
    total = kibibytes["MemTotal"] * 1024
    return HostMemory(total, kibibytes.get("MemAvailable", kibibytes["MemFree"]) * 1024)


def cgroup_memory(root: str | Path = "/") -> CgroupMemory:
    """The memory limits of this process's cgroup and of those above it, versions 1 and 2.

    In a container the path in /proc/self/cgroup can be the host's, and the tree that is mounted
    begins at the container: folders that are not there are passed by.

    Args:
        root: Where /proc and /sys are.
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
    """Where memory is limited: the top of the tree, our folder in it, the names of the files."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mounted = root / "sys/fs/cgroup"
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # A path that begins with ".." lies outside of what this process may see: its root is all.
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
    """Host memory that this process can still take: of the machine's and within the cgroup's."""
    available = host_memory(root).available_bytes
    within = cgroup_memory(root).available_bytes
    return available if within is None else min(available, within)
