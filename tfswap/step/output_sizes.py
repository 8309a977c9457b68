"""What ops make in a run of a graph, by which runs for tensors of other shapes are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tfswap.plan.slots import OUTSIDE, Slot
from tfswap.step.trace import StepTrace

# Of what ops have in common in two runs: bytes in outputs of another size. More is another shape.
_OTHER_SHAPE = 0.05


def sizes_recorded(trace: StepTrace) -> dict[str, int]:
    """By op, the bytes of its first output in a recorded run."""
    made = trace.buffers[(trace.buffers["alloc_ns"] >= 0) & (trace.buffers["kind"] == 0)]
    sizes: dict[str, int] = {}
    for name, size in zip(made["name"].tolist(), made["bytes"].tolist(), strict=True):
        sizes.setdefault(trace.names[name], size)
    return sizes


def sizes_planned(layout: Iterable[Slot]) -> dict[str, int]:
    """Likewise in a run that a layout is for."""
    return {
        slot.op: slot.size_bytes
        for slot in layout
        if slot.kind == 0 and slot.ordinal == 0 and slot.offset_bytes != OUTSIDE
    }


def alike(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether two runs of a graph were for tensors of the same shape."""
    common = one.keys() & other.keys()
    differ = sum(max(one[op], other[op]) for op in common if one[op] != other[op])
    return differ <= _OTHER_SHAPE * sum(max(one[op], other[op]) for op in common)
