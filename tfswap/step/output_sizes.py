"""Sizes of the ops' outputs, which distinguish runs of a graph on batches of other shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tfswap.plan.slots import OUTSIDE, Slot
from tfswap.step.trace import StepTrace

# Largest fraction of bytes in outputs of different sizes for two runs on batches of one shape.
_MAX_DIFFERENCE = 0.05


def recorded_output_bytes(trace: StepTrace) -> dict[str, int]:
    """Return the bytes of each op's first output in a recorded run."""
    made = trace.buffers[(trace.buffers["alloc_ns"] >= 0) & (trace.buffers["kind"] == 0)]
    sizes: dict[str, int] = {}
    for name, size in zip(made["name"].tolist(), made["bytes"].tolist(), strict=True):
        sizes.setdefault(trace.names[name], size)
    return sizes


def planned_output_bytes(layout: Iterable[Slot]) -> dict[str, int]:
    """Return the bytes of each op's first output in the run that a layout is for."""
    return {
        slot.op: slot.size_bytes
        for slot in layout
        if slot.kind == 0 and slot.ordinal == 0 and slot.offset_bytes != OUTSIDE
    }


def alike(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Return whether two runs of a graph were on batches of the same shape."""
    common = one.keys() & other.keys()
    differ = sum(max(one[op], other[op]) for op in common if one[op] != other[op])
    return differ <= _MAX_DIFFERENCE * sum(max(one[op], other[op]) for op in common)
