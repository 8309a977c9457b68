"""Chains of allocators under test."""

from __future__ import annotations

import ctypes

MIB = 1 << 20
BUDGET = 64 * MIB
GRAPH, OP = "graph", "op"


def slots(*places: tuple[str, int, int] | tuple[str, int, int, int]) -> str:
    """Return a layout of outputs: op, ordinal, offset, and bytes (1 MiB)."""
    return "\n".join(
        f"{place[0]}\t0\t{place[1]}\t{place[2]}\t{place[3] if len(place) > 3 else MIB}"
        for place in places
    )


def fill(address: int, size: int, value: int) -> None:
    ctypes.memset(address, value, size)


def holds(address: int, size: int, value: int) -> bool:
    return ctypes.string_at(address, size) == bytes([value]) * size
