"""What a step would do under a set of swaps: the native simulator, called with Python's values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tfswap import _core
from tfswap._core import SimResult
from tfswap.timeline import Timeline

__all__ = ["Link", "SimResult", "Swap", "link_speeds", "simulate", "swap_rows"]


class Link(Protocol):
    """The part of a machine that the simulator looks at."""

    @property
    def out_bytes_per_s(self) -> float: ...
    @property
    def in_bytes_per_s(self) -> float: ...
    @property
    def out_latency_ns(self) -> int: ...
    @property
    def in_latency_ns(self) -> int: ...


@dataclass(frozen=True, order=True)
class Swap:
    """One absence put to use.

    Attributes:
        absence: index into ``Timeline.absences``.
        gate_op: index of the op that does not start before the copy-out has ended; -1: none.
        trigger_op: index of the op whose end starts the copy-in; -1: the copy-out's end does.
    """

    absence: int
    gate_op: int = -1
    trigger_op: int = -1


def simulate(
    timeline: Timeline,
    swaps: Iterable[Swap],
    machine: Link,
    budget_bytes: int | None = None,
) -> SimResult:
    """Predict memory, copies and stalls of one step.

    The recorded step is replayed. A stall shifts everything after it, also ops that are running
    already. A buffer that is copied in occupies memory from the start of its copy. Each direction
    of the link is first come, first served.

    Args:
        timeline: the unswapped step.
        swaps: at most one per absence, in any order.
        machine: speeds of the link in bytes per second, latencies in ns.
        budget_bytes: allocations beyond it wait for copies-out; ``None``: nothing waits.

    Raises:
        ValueError: if the timeline is malformed, a swap names something that is not there, or a
            gate starts before the tensor's producer has ended.
    """
    return _core.simulate(timeline.core, swap_rows(swaps), link_speeds(machine), budget_bytes)


def swap_rows(swaps: Iterable[Swap]) -> NDArray[np.int32]:
    """A row per swap: absence, gate_op, trigger_op."""
    rows = [(swap.absence, swap.gate_op, swap.trigger_op) for swap in swaps]
    return np.array(rows, dtype=np.int32).reshape(-1, 3)


def link_speeds(machine: Link) -> _core.LinkSpeeds:
    """The link as the native simulator takes it."""
    return _core.LinkSpeeds(
        float(machine.out_bytes_per_s),
        float(machine.in_bytes_per_s),
        int(machine.out_latency_ns),
        int(machine.in_latency_ns),
    )
