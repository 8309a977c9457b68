"""Format sizes and times for people."""

from __future__ import annotations


def readable_bytes(size_bytes: int | None) -> str:
    """Format a size with three digits and a binary unit; "?" for None."""
    if size_bytes is None:
        return "?"
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            value = size_bytes / (1 << shift)
            return f"{value:.2f} {unit}" if unit == "GiB" else f"{value:.0f} {unit}"
    return f"{size_bytes} bytes"


def readable_seconds(seconds: float | None) -> str:
    """Format a time in seconds or milliseconds; "?" for None."""
    if seconds is None:
        return "?"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
