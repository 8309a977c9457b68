"""StepTrace: the profiler's recording (layout: ``tfswap/cc/core/simulate/trace.h``)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

MAGIC = b"TFSWTRC2"

OP_DTYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("wait_ns", "<i8"),
        ("step_id", "<i8"),
        ("frame", "<u8"),
        ("iteration", "<i8"),
        ("name", "<i4"),
        ("type", "<i4"),
        ("graph", "<i4"),
        ("unused", "<i4"),
    ]
)
BUFFER_DTYPE = np.dtype(
    [("bytes", "<i8"), ("alloc_ns", "<i8"), ("free_ns", "<i8"), ("name", "<i4"), ("kind", "<i4")]
)
ACCESS_DTYPE = np.dtype([("op", "<i4"), ("port", "<i4"), ("buffer", "<i4"), ("of_variable", "<i4")])

_HEAD_COUNT = 7


@dataclass(frozen=True, eq=False)
class StepTrace:
    """One recording.

    Args:
        start_ns: Start of the recording; all times are on the same clock.
        end_ns: End of the recording.
        resident_bytes: Bytes of unlisted small buffers, at the start or `with_unlisted`.
        ops: Records of OP_DTYPE; `end_ns` is -1 for ops that had not ended; `wait_ns` is the time
            that the op waited for memory; `name`, `type` and `graph` (the fingerprint, -1 where the
            pass has not seen the graph) index `names`.
        buffers: Records of BUFFER_DTYPE; `alloc_ns` is -1 for buffers that existed before,
            `free_ns` is -1 for buffers that were not freed.
        accesses: Records of ACCESS_DTYPE: the op reads the buffer as input `port`, or writes it as
            output ``-1 - port``. Aliases are resolved: tensors that share memory share the buffer.
        names: All names.
        values: Records of ACCESS_DTYPE for the values of variables: the op's input `port` is a
            variable whose value is in the buffer when the op starts; where `port` is negative,
            input ``-1 - port`` is a variable whose value is in the buffer when the op ends.
    """

    start_ns: int
    end_ns: int
    resident_bytes: int
    ops: NDArray[np.void]
    buffers: NDArray[np.void]
    accesses: NDArray[np.void]
    names: tuple[str, ...]
    values: NDArray[np.void] = field(default_factory=lambda: np.empty(0, ACCESS_DTYPE))

    def main_graph(self) -> str | None:
        """Return the fingerprint of the graph with the most ops; None if no op has one."""
        graphs = self.ops["graph"][self.ops["graph"] >= 0]
        return None if len(graphs) == 0 else self.names[int(np.bincount(graphs).argmax())]

    def with_unlisted(self, peak_bytes: int) -> StepTrace:
        """Return the recording with the small buffers that were beside the listed ones at the peak.

        Args:
            peak_bytes: The most that was in use while the step was recorded.
        """
        buffers = self.buffers
        freed = buffers["free_ns"] >= 0
        times = np.concatenate([buffers["alloc_ns"], buffers["free_ns"][freed]])
        changes = np.concatenate([buffers["bytes"], -buffers["bytes"][freed]])
        load = np.cumsum(changes[np.lexsort((changes, times))])  # frees come first
        unlisted_bytes = peak_bytes - int(load.max(initial=0))
        return replace(self, resident_bytes=max(self.resident_bytes, unlisted_bytes))

    @staticmethod
    def from_bytes(data: bytes) -> StepTrace:
        """Parse the bytes that the profiler wrote.

        Raises:
            ValueError: The bytes are not a trace.
        """
        head_end = len(MAGIC) + 8 * _HEAD_COUNT
        if data[: len(MAGIC)] != MAGIC or len(data) < head_end:
            raise ValueError("not a tfswap trace: it does not begin with TFSWTRC2")
        head = np.frombuffer(data, "<i8", _HEAD_COUNT, len(MAGIC))
        start_ns, end_ns, resident_bytes, ops, buffers, accesses, name_bytes = map(int, head)
        offset = head_end
        if min(ops, buffers, accesses, name_bytes) < 0:
            raise ValueError("not a tfswap trace: a count is negative")
        parts = []
        for dtype, count in ((OP_DTYPE, ops), (BUFFER_DTYPE, buffers), (ACCESS_DTYPE, accesses)):
            if len(data) < offset + dtype.itemsize * count:
                raise ValueError(f"the tfswap trace is cut off after {len(data)} bytes")
            parts.append(np.frombuffer(data, dtype, count, offset))
            offset += dtype.itemsize * count
        names = data[offset : offset + name_bytes].decode("utf-8", errors="replace")
        listed = tuple(names.split("\n")[:-1])
        of_variable = parts[2]["of_variable"] != 0
        tensors, values = parts[2][~of_variable], parts[2][of_variable]
        return StepTrace(
            start_ns, end_ns, resident_bytes, parts[0], parts[1], tensors, listed, values
        )
