"""Durations of ops in a recorded step and in a timeline."""

from __future__ import annotations

from collections import Counter

from tfswap.step.graph import StepGraph
from tfswap.step.recorded_ops import WAITING_TYPES, select_step
from tfswap.step.timeline import Timeline
from tfswap.step.trace import StepTrace


def op_durations(trace: StepTrace, graph: StepGraph) -> dict[str, int]:
    """Return each op's duration in the recorded step, in ns, summed over its runs.

    The durations exclude waits for memory. Ops that wait for something outside the step are
    omitted.

    Raises:
        ValueError: The recording has no ops of this graph.
    """
    _, inside = select_step(trace, graph)
    durations: Counter[str] = Counter()
    ops = trace.ops[inside]
    durations_ns = ops["end_ns"] - ops["start_ns"] - ops["wait_ns"]
    for name, type_, ns in zip(
        ops["name"].tolist(), ops["type"].tolist(), durations_ns.tolist(), strict=True
    ):
        if trace.names[type_] not in WAITING_TYPES:
            durations[trace.names[name]] += max(ns, 0)
    return dict(durations)


def planned_durations(timeline: Timeline) -> dict[str, int]:
    """Return each op's duration in a timeline, in ns, summed over its runs."""
    durations: Counter[str] = Counter()
    durations_ns = (timeline.op_end_ns - timeline.op_start_ns).tolist()
    types = timeline.op_types or ("",) * len(durations_ns)
    for name, type_, ns in zip(timeline.op_names, types, durations_ns, strict=True):
        if type_ not in WAITING_TYPES:
            durations[name] += ns
    return dict(durations)
