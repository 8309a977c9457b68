"""How long ops ran: in a recorded step, and in the profiled one that plans go by."""

from __future__ import annotations

from collections import Counter

from tfswap.step.graph import StepGraph
from tfswap.step.recorded_ops import WAITING_TYPES, one_step
from tfswap.step.timeline import Timeline
from tfswap.step.trace import StepTrace


def op_durations(trace: StepTrace, graph: StepGraph) -> dict[str, int]:
    """By op, how long it ran in the recorded step, in ns; one that ran often, in all.

    Waits for memory are left out, as are ops that wait for something outside of the step.

    Raises:
        ValueError: The recording has no ops of this graph.
    """
    _, inside = one_step(trace, graph)
    durations: Counter[str] = Counter()
    ops = trace.ops[inside]
    took_ns = ops["end_ns"] - ops["start_ns"] - ops["wait_ns"]
    for name, type_, ns in zip(
        ops["name"].tolist(), ops["type"].tolist(), took_ns.tolist(), strict=True
    ):
        if trace.names[type_] not in WAITING_TYPES:
            durations[trace.names[name]] += max(ns, 0)
    return dict(durations)


def planned_durations(timeline: Timeline) -> dict[str, int]:
    """Likewise of a profiled step: what plans go by."""
    durations: Counter[str] = Counter()
    took_ns = (timeline.op_end_ns - timeline.op_start_ns).tolist()
    types = timeline.op_types or ("",) * len(took_ns)
    for name, type_, ns in zip(timeline.op_names, types, took_ns, strict=True):
        if type_ not in WAITING_TYPES:
            durations[name] += ns
    return dict(durations)
