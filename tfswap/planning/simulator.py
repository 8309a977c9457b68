"""Predict a step under a set of swaps: the Python interface of the native simulator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfswap import _core
from tfswap._core import SimResult
from tfswap.machine.link import NO_LIMIT, Link
from tfswap.step.timeline import Timeline

__all__ = ["SimResult", "Swap", "core_tiers", "simulate", "swap_rows"]


@dataclass(frozen=True, order=True)
class Swap:
    """One absence that is used to swap a buffer out.

    Attributes:
        absence: index into ``Timeline.absences``.
        gate_op: index of the op that starts only after the copy-out has ended; -1: none.
        trigger_op: index of the op whose end starts the copy-in; -1: the end of the copy-out does.
        tier: index of the far memory tier that holds the buffer.
        sections: number of pieces that move one by one, each freed and filled on its own. 0: one
            piece, or as many as the copy engine uses where the link moves large buffers
            ``in_sections``.
        far_bytes: size in far memory; -1: the same as on the device.
        encode_ns: time to encode the whole buffer, before its bytes are copied out.
        decode_ns: time to decode the whole buffer, after its bytes were copied in.
    """

    absence: int
    gate_op: int = -1
    trigger_op: int = -1
    tier: int = 0
    sections: int = 0
    far_bytes: int = -1
    encode_ns: int = 0
    decode_ns: int = 0


def simulate(
    timeline: Timeline,
    swaps: Iterable[Swap],
    machine: Link | Sequence[Link],
    budget_bytes: int | None = None,
    order: Sequence[tuple[int, int]] = (),
) -> SimResult:
    """Predict memory, copies and stalls of one step.

    The simulator replays the recorded step. A stall delays everything after it, including ops that
    are already running. A buffer that is copied in occupies memory from the start of its copy. Each
    direction of each tier's link serves copies in the order of their requests. The step is
    periodic: buffers whose absence crosses the step's end are in far memory when the step begins.

    Args:
        timeline: the unswapped step.
        swaps: at most one per absence, in any order.
        machine: one link, or one per tier; speeds in bytes per second, latencies in ns.
        budget_bytes: allocations beyond it wait for copies-out; ``None``: nothing waits.
        order: pairs of ops; the first must end before the second starts.

    Raises:
        ValueError: if the timeline is malformed, a swap names an unknown absence, op or tier, a
            gate starts before the tensor's producer has ended, or an order edge points backwards.
    """
    return _core.simulate(
        timeline.core, swap_rows(swaps), core_tiers(machine), budget_bytes, list(order)
    )


def swap_rows(swaps: Iterable[Swap]) -> NDArray[np.int64]:
    """Return one row per swap, with all of its fields."""
    rows = [
        (
            s.absence,
            s.gate_op,
            s.trigger_op,
            s.tier,
            s.sections,
            s.far_bytes,
            s.encode_ns,
            s.decode_ns,
        )
        for s in swaps
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 8)


def core_tiers(machine: Link | Sequence[Link]) -> list[_core.Tier]:
    """Return the links as tiers of the native simulator."""
    links = machine if isinstance(machine, Sequence) else (machine,)
    return [
        _core.Tier(
            float(link.out_bytes_per_s),
            float(link.in_bytes_per_s),
            int(link.out_latency_ns),
            int(link.in_latency_ns),
            int(getattr(link, "capacity_bytes", NO_LIMIT)),
            bool(getattr(link, "in_sections", False)),
        )
        for link in links
    ]
