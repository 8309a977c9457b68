"""The time that hides a swap's transfers, as in CSWAP (Chen et al., CLUSTER 2021, section IV-B)."""

from __future__ import annotations

from tfswap.step.timeline import Absence, Timeline


def hidden_times(timeline: Timeline, absence: Absence) -> tuple[int, int]:
    """Return Hidden_f of the copy-out and Hidden_b of the copy-in, in ns.

    As in vDNN's schedule, which the paper uses: the tensor's readers in the forward pass hide the
    copy-out, the backward pass of one layer hides the copy-in.
    """
    made_ns = timeline.op_end_ns[absence.producer_op] if absence.producer_op >= 0 else 0
    before = absence.before_op
    return (
        int(timeline.op_end_ns[absence.after_op] - made_ns),
        int(timeline.op_end_ns[before] - timeline.op_start_ns[before]),
    )
