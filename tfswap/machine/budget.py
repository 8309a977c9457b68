"""Parse memory budgets, host limits and bandwidths, and resolve them to bytes on a device."""

from __future__ import annotations

import operator
import re
import reprlib
from collections.abc import Mapping
from fractions import Fraction
from typing import SupportsIndex

from tfswap.machine.host_memory import available_host_bytes, cgroup_memory, host_memory

Budget = str | int | float | SupportsIndex

AUTO_BUDGET = Fraction(9, 10)
"""The fraction of the available memory that "auto" gives to the device."""

GROWTH_BYTES = 384 << 20
"""Memory that the process still allocates for itself when training starts (graphs and their
optimisation). Where device and host share memory, "auto" leaves it free, up to half of what is
available."""

AUTO_HOST_LIMIT = Fraction(8, 10)
"""The fraction of the memory left by the budget that "auto" gives to far memory."""

_UNITS = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_UNIT_BYTES = {unit.lower(): factor for unit, factor in _UNITS.items()}
# The number of digits is bounded: a large power of ten takes as much memory and time to expand.
_NUMBER = re.compile(
    r"\s*([0-9]{1,30}(?:\.[0-9]{0,30})?(?:e\+?[0-9]{1,2})?|\.[0-9]{1,30})\s*([a-z%/]*)\s*",
    re.IGNORECASE,
)
_DEVICE = re.compile(r"[CG]PU:\d+")

# The library counts in 64 bits.
_MAX_BYTES = 1 << 60


def parse_bytes(amount: Budget) -> int:
    """Return the bytes that a number, or a string with a unit ("900MiB", "1.5 GiB"), stands for.

    kB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024. Case does not
    matter. Fractions of a byte are dropped.

    Raises:
        ValueError: `amount` is not such an amount, or not above zero.
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
    """Do what `parse_bytes` does, for an amount that the library counts in 64 bits.

    Raises:
        ValueError: `amount` is not such an amount, or more than 2^60 bytes.
    """
    size_bytes = parse_bytes(amount)
    if size_bytes > _MAX_BYTES:
        raise ValueError(f"{reprlib.repr(amount)} is more than the maximum of 2^60 bytes")
    return size_bytes


def parse_limit(amount: int | str) -> int:
    """Do what `parse_amount` does, and accept 0.

    Raises:
        ValueError: `amount` is not such an amount, or below zero.
    """
    return 0 if amount == 0 and not isinstance(amount, bool) else parse_amount(amount)


def _not_bytes(amount: object) -> ValueError:
    return ValueError(
        f"{amount!r} is not an amount of memory. Allowed: bytes as an integer, or a string with a "
        f'number and one of {", ".join(_UNITS)}, such as "900MiB" or "1.5 GiB"'
    )


def check_each(budget: Budget | Mapping[str, Budget], name: str) -> None:
    """Check one budget, or a mapping from device names to budgets.

    Raises:
        ValueError: A budget or a device name is invalid; the message lists what is allowed.
    """
    if not isinstance(budget, Mapping):
        check(budget, name)
        return
    for device, amount in budget.items():
        if not _DEVICE.fullmatch(str(device)):
            raise ValueError(
                f"{name}: {device!r} is not a device name; use names such as 'GPU:0' or 'CPU:0'"
            )
        check(amount, f"{name} of {device}")
    if not budget:
        raise ValueError(f"{name}: the mapping has no device")


def check(amount: Budget, name: str) -> None:
    """Reject what `resolve` and `resolve_host_limit` reject, without measuring anything.

    Args:
        amount: A budget or a host limit.
        name: The name of the option in error messages.

    Raises:
        ValueError: `amount` is invalid; the message lists what is allowed.
    """
    try:
        if not is_auto(amount) and _fraction(amount) is None:
            parse_amount(amount)
    except ValueError as error:
        raise ValueError(f"{name}: {error}. {_ALSO_ALLOWED}") from None


def resolve(
    budget: Budget,
    device_limit_bytes: int | None = None,
    cgroup_limit_bytes: int | None = None,
    *,
    available_bytes: int | None = None,
    in_use_bytes: int = 0,
) -> int:
    """Return the bytes that a budget stands for on one device.

    Args:
        budget: Bytes as an integer or a string ("900MiB"); "80%" or a float in (0, 1]: that
            fraction of the device's memory; "auto": 0.9 of the memory that is available on the
            device, including what it already holds.
        device_limit_bytes: The device's memory; 0: unknown, so that only bytes are accepted.
            Default: for the CPU, the smaller of the machine's memory and this cgroup's limit.
        cgroup_limit_bytes: An additional limit, for a device whose memory is the host's.
        available_bytes: The memory that is free on the device. Default: for the CPU, measured; for
            another device, all of its memory but `in_use_bytes`.
        in_use_bytes: The memory that the device already holds. It counts against the budget, so
            "auto" counts it as available. Defaults to 0.

    Raises:
        ValueError: `budget` is invalid; the message lists what is allowed.
    """
    check(budget, "budget")
    if device_limit_bytes == 0 and (is_auto(budget) or _fraction(budget) is not None):
        raise ValueError(
            f"budget={budget!r} is relative to the device's memory, whose size its allocator does "
            'not report: give bytes, such as "8GiB"'
        )
    if is_auto(budget):
        if available_bytes is None:
            if device_limit_bytes is None:
                available_bytes = without_growth(available_host_bytes())
            else:
                limits = [device_limit_bytes, cgroup_limit_bytes or device_limit_bytes]
                available_bytes = min(limits) - in_use_bytes
        return max(1, int(AUTO_BUDGET * (available_bytes + in_use_bytes)))
    fraction = _fraction(budget)
    if fraction is None:
        return parse_bytes(budget)
    if device_limit_bytes is None:
        device_limit_bytes = host_memory().total_bytes
        cgroup_limit_bytes = cgroup_limit_bytes or cgroup_memory().limit_bytes
    limit_bytes = min(device_limit_bytes, cgroup_limit_bytes or device_limit_bytes)
    return max(1, int(fraction * limit_bytes))


def resolve_host_limit(
    host_limit: Budget,
    budget_bytes: int | None = None,
    *,
    in_use_bytes: int = 0,
    available_bytes: int | None = None,
) -> int:
    """Return the bytes of host memory that swapped buffers may occupy.

    "auto" reserves what the device's budget can still claim of the same memory, and gives 80 % of
    the rest to far memory; the other 20 % are for Python, the input pipeline and the system.

    Args:
        host_limit: Like a budget: bytes, a string, a fraction of the host's memory, or "auto".
        budget_bytes: The budget of a device whose memory is the host's; None for a GPU.
        in_use_bytes: The memory that the device already holds. Defaults to 0.
        available_bytes: Free host memory. Default: measured.

    Raises:
        ValueError: `host_limit` is invalid; the message lists what is allowed.
    """
    check(host_limit, "host_limit")
    if not is_auto(host_limit):
        return resolve(host_limit)
    if available_bytes is None:
        available_bytes = without_growth(available_host_bytes())
    unclaimed_bytes = max(0, (budget_bytes or 0) - in_use_bytes)
    return max(1, int(AUTO_HOST_LIMIT * max(0, available_bytes - unclaimed_bytes)))


def without_growth(available_bytes: int, growth_bytes: int = GROWTH_BYTES) -> int:
    """Return the available bytes less the process's own growth in training (`GROWTH_BYTES`)."""
    return available_bytes - min(growth_bytes, available_bytes // 2)


def is_auto(amount: Budget) -> bool:
    """Return whether an amount is "auto"."""
    return isinstance(amount, str) and amount.strip().lower() == "auto"


def parse_bandwidth(bandwidth: str | float | None) -> float | None:
    """Return bytes per second from a number or a string: "12GB/s", "12e9", 12e9; None stays None.

    Raises:
        ValueError: `bandwidth` is not a bandwidth above zero; the message lists what is allowed.
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
            f"0, or a string with a number and one of {', '.join(f'{unit}/s' for unit in _UNITS)}, "
            'such as "12GB/s"'
        )
    return bytes_per_s


_ALSO_ALLOWED = (
    'Also allowed: a fraction of the device\'s memory, "80%" or a float above 0 and up to 1.0, or '
    '"auto"'
)


def _fraction(amount: Budget) -> Fraction | None:
    """Return the fraction of the device's memory that is asked for; None for other amounts."""
    if isinstance(amount, str):
        match = _NUMBER.fullmatch(amount)
        if match is None or match[2] != "%":
            return None
        fraction = Fraction(match[1]) / 100
    elif isinstance(amount, float):
        if not 0 < amount <= 1:
            raise ValueError(
                f"{amount!r} is not allowed: a float is a fraction of the memory, above 0 and up "
                'to 1.0. Write bytes as an integer or with a unit, such as 6 * 1024**3 or "6GiB"'
            )
        fraction = Fraction(amount)
    else:
        return None
    if not 0 < fraction <= 1:
        raise ValueError(f"{amount!r} is not allowed: a percentage is above 0 and up to 100%")
    return fraction
