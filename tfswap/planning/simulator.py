"""What a step would do under a set of swaps: the native simulator, called with Python's values."""

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
    """One absence put to use.

    Attributes:
        absence: index into ``Timeline.absences``.
        gate_op: index of the op that does not start before the copy-out has ended; -1: none.
        trigger_op: index of the op whose end starts the copy-in; -1: the copy-out's end does.
        tier: index of the far memory that it goes to.
        sections: pieces in which it moves, each freed and filled on its own; 0: one, or where the
            link moves large buffers ``in_sections``, what the engine makes of it.
        far_bytes: its size in far memory; -1: as on the device.
        encode_ns: time of a codec for the whole buffer, before the bytes go out.
        decode_ns: time of a codec for the whole buffer, after the bytes came in.
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

    The recorded step is replayed. A stall shifts everything after it, also ops that are running
    already. A buffer that is copied in occupies memory from the start of its copy. Each direction
    of each tier's link is first come, first served. The step is one of many alike: what crosses its
    end is far when it begins.

    Args:
        timeline: the unswapped step.
        swaps: at most one per absence, in any order.
        machine: speeds of the link in bytes per second, latencies in ns; or one for each tier.
        budget_bytes: allocations beyond it wait for copies-out; ``None``: nothing waits.
        order: pairs of ops, the first to end before the second starts.

    Raises:
        ValueError: if the timeline is malformed, a swap names something that is not there, a gate
            starts before the tensor's producer has ended, or an order edge points backwards.
    """
    return _core.simulate(
        timeline.core, swap_rows(swaps), core_tiers(machine), budget_bytes, list(order)
    )


def swap_rows(swaps: Iterable[Swap]) -> NDArray[np.int64]:
    """A row per swap, with all of its fields."""
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
    """The links as the native simulator takes them, one a tier."""
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
