"""Link: what the simulator needs to know of the path between device memory and a tier."""

from __future__ import annotations

from typing import Protocol

import numpy as np

NO_LIMIT = int(np.iinfo(np.int64).max)
"""Of a tier's capacity, in bytes."""


class Link(Protocol):
    """The part of a machine, or of a tier of far memory, that the simulator looks at.

    A tier may have ``capacity_bytes``, and ``in_sections``, too.
    """

    @property
    def out_bytes_per_s(self) -> float: ...
    @property
    def in_bytes_per_s(self) -> float: ...
    @property
    def out_latency_ns(self) -> int: ...
    @property
    def in_latency_ns(self) -> int: ...
