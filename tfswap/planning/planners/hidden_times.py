"""What hides a swap's transfers, as CSWAP counts (Chen et al., CLUSTER 2021, section IV-B)."""

from __future__ import annotations

from tfswap.step.timeline import Absence, Timeline


def hidden_times(timeline: Timeline, absence: Absence) -> tuple[int, int]:
    """Hidden_f and Hidden_b, in ns: of the way out, and of the way back.

    They are those of vDNN's schedule, which the paper takes: the way out is hidden by what reads
    the tensor in the forward part, the way back by one layer's backward part.
    """
    made_ns = timeline.op_end_ns[absence.producer_op] if absence.producer_op >= 0 else 0
    before = absence.before_op
    return (
        int(timeline.op_end_ns[absence.after_op] - made_ns),
        int(timeline.op_end_ns[before] - timeline.op_start_ns[before]),
    )
