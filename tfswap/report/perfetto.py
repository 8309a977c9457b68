"""A simulated step in the trace event format of ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import json
from typing import Any

from tfswap.machine.far_tier import TIERS
from tfswap.report.step_story import StepStory, lanes

_DEVICE, _LINKS = 1, 2  # "processes" of the trace
_OUT, _IN = 1, 2  # "threads" of the first tier's link; each further tier has two more


def to_trace(story: StepStory) -> str:
    """Return a trace of ops, waits, copies by tier and direction, and the load; times in us."""
    events: list[dict[str, Any]] = [
        _metadata(_DEVICE, None, "device"),
        _metadata(_LINKS, None, "links"),
    ]
    begin_ns, end_ns = story.op_times
    rows = lanes(begin_ns, end_ns)
    events += [
        _metadata(_DEVICE, row + 1, f"ops {row + 1}") for row in range(max(rows, default=0) + 1)
    ]
    types = story.timeline.op_types or ("",) * len(rows)
    for name, type_, begin, end, row in zip(
        story.timeline.op_names, types, begin_ns, end_ns, rows, strict=True
    ):
        events.append(_slice(_DEVICE, row + 1, name, begin, end, {"type": type_}))
    events.append(_metadata(_DEVICE, 1000, "waits"))
    for stall in story.stalls:
        name = f"{story.timeline.op_names[stall.op]} waits: {stall.why}"
        about = {"tensor": stall.tensor}
        end = stall.begin_ns + stall.wait_ns
        events.append(_slice(_DEVICE, 1000, name, stall.begin_ns, end, about))
    for number, tier in enumerate(TIERS):
        trips = [trip for trip in story.trips if trip.tier == tier]
        if not trips:
            continue
        out, back = 2 * number + _OUT, 2 * number + _IN
        events += [
            _metadata(_LINKS, out, f"out to {tier}"),
            _metadata(_LINKS, back, f"in from {tier}"),
        ]
        for trip in trips:
            about = {
                "bytes": str(trip.size_bytes),
                "kept": str(trip.stored_bytes),
                "codec": trip.codec,
            }
            if trip.out_begin_ns >= 0:
                times = trip.out_begin_ns, trip.out_end_ns
                events.append(_slice(_LINKS, out, trip.tensor, *times, about))
            times = trip.in_begin_ns, trip.in_end_ns
            events.append(_slice(_LINKS, back, trip.tensor, *times, about))
    for name, (times_ns, load) in (
        ("load with swaps", story.load),
        ("load without swaps", story.unswapped_load),
    ):
        events += [
            {
                "ph": "C",
                "pid": _DEVICE,
                "name": name,
                "ts": time_ns / 1e3,
                "args": {"bytes": bytes_},
            }
            for time_ns, bytes_ in zip(times_ns.tolist(), load.tolist(), strict=True)
        ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _metadata(process: int, thread: int | None, name: str) -> dict[str, Any]:
    kind = "process_name" if thread is None else "thread_name"
    return {"ph": "M", "pid": process, "tid": thread or 0, "name": kind, "args": {"name": name}}


def _slice(
    process: int, thread: int, name: str, begin_ns: int, end_ns: int, about: dict[str, str]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "ts": int(begin_ns) / 1e3,
        "dur": max(int(end_ns) - int(begin_ns), 0) / 1e3,
        "args": {key: value for key, value in about.items() if value},
    }
