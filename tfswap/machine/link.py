"""Link: the speeds and latencies between device memory and a tier of far memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np

NO_LIMIT = int(np.iinfo(np.int64).max)
"""The capacity of a tier without a limit, in bytes."""


class Link(Protocol):
    """The attributes of a machine, or of a tier of far memory, that the simulator reads.

    A tier may also have ``capacity_bytes`` and ``in_sections``.
    """

    @property
    def out_bytes_per_s(self) -> float: ...
    @property
    def in_bytes_per_s(self) -> float: ...
    @property
    def out_latency_ns(self) -> int: ...
    @property
    def in_latency_ns(self) -> int: ...
