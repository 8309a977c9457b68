"""The report as one self-contained HTML page.

The page embeds its data as JSON, compressed by gzip and encoded as base64: a step of 20,000 ops
takes less than 5 MB. ``assets/page.js`` draws it.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfswap.io.amounts import readable_bytes, readable_seconds
from tfswap.machine.far_tier import TIERS
from tfswap.planning.least_budget import LeastBudgets
from tfswap.planning.whatif import Answer
from tfswap.report.address_map import AddressMap
from tfswap.report.address_strips import strips_to_svg
from tfswap.report.step_story import StepStory, lanes
from tfswap.step.timeline import crosses_step_end

_ASSETS = Path(__file__).with_name("assets")
_KINDS = ("output", "temporary", "other", "swap")
# Rows of concurrent ops in the chart; further ops share the last row.
_MAX_ROWS = 16
# Notebooks store their output: a larger page is not shown in a cell.
_MAX_CELL_BYTES = 500_000


def page(
    lines: Sequence[str],
    maps: Sequence[AddressMap] = (),
    out_of_memory: str | None = None,
    story: StepStory | None = None,
    answers: Sequence[Answer] = (),
    least: LeastBudgets | None = None,
) -> str:
    """Return the HTML of the page.

    Args:
        lines: The summary.
        maps: Planned addresses, one map for each graph and set of shapes.
        out_of_memory: The message of the out-of-memory error, if there was one.
        story: The simulated step.
        answers: Predictions for other budgets and links.
        least: The least budgets of the step.
    """
    parts = [f"<pre>{escape(chr(10).join(lines))}</pre>"] if lines else []
    if out_of_memory is not None:
        parts.append(_out_of_memory(out_of_memory))
    if story is not None:
        parts += [_figures(story), _chart(), _tiers(story)]
    parts.append(_least_budgets(least))
    if story is not None:
        parts += [_whatif(story, answers), _buffers()]
    for i, map_ in enumerate(maps):
        parts.append(
            f"<h2>Addresses of graph {escape(map_.fingerprint)}</h2>"
            f'<div class="chart"><canvas id="map{i}" role="img" aria-label="Planned addresses over '
            f'a step"></canvas></div>{_key(tuple((kind, kind) for kind in _KINDS))}'
            f'<p class="note">{len(map_.boxes):,} allocations in a slab of {map_.height_bytes:,} '
            f"bytes; the peak load is {map_.max_live_bytes:,} bytes.</p>"
        )
    return _document(["<h1>tfswap</h1>", *parts], story, maps)


def cell(
    lines: Sequence[str], story: StepStory | None = None, out_of_memory: str | None = None
) -> str:
    """Return the HTML of a notebook's cell: the summary, and the chart of the step in a frame.

    The frame keeps the page's styles and names out of the notebook. It takes the height that it
    needs, and is dark in a dark notebook.

    Args:
        lines: The summary.
        story: The simulated step.
        out_of_memory: The message of the out-of-memory error, if there was one.
    """
    parts = [] if out_of_memory is None else [_out_of_memory(out_of_memory)]
    if story is not None:
        parts.append(_chart())
    lines = list(lines)
    document = _document(parts, story, css_class="cell")
    if len(document) > _MAX_CELL_BYTES:
        lines.append("The chart is too large for a notebook: write it with to_html(path).")
        parts = []
    text = f"<pre>{escape(chr(10).join(lines))}</pre>"
    if not parts:
        return text
    return (
        f'{text}<iframe srcdoc="{escape(document)}" title="tfswap" '
        'style="width: 100%; height: 640px; border: 0"></iframe>'
    )


def _document(
    parts: Sequence[str],
    story: StepStory | None,
    maps: Sequence[AddressMap] = (),
    css_class: str = "page",
) -> str:
    data = {
        "step": None if story is None else step_data(story),
        "maps": [_map_data(map_) for map_ in maps],
    }
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>tfswap</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f'<style>{_asset("page.css")}</style></head>\n<body class="{css_class}">\n'
        + "\n".join(parts)
        + f'\n<script type="application/json" id="data">{_packed(data)}</script>'
        f"\n<script>{_asset('page.js')}</script></body></html>\n"
    )


def step_data(story: StepStory) -> dict[str, Any]:
    """Return the data of a step that the page draws; times in microseconds."""
    timeline, result = story.timeline, story.result
    begin_ns, end_ns = story.op_times
    alloc_ns, free_ns = story.buffer_times
    rows = [min(row, _MAX_ROWS - 1) for row in lanes(begin_ns, end_ns)]
    absence_ns = np.zeros(len(timeline.buffer_bytes), dtype=np.int64)
    for absence in timeline.absences:
        if not crosses_step_end(timeline, absence):
            gap_ns = timeline.op_start_ns[absence.before_op] - timeline.op_end_ns[absence.after_op]
            absence_ns[absence.buffer] = max(absence_ns[absence.buffer], gap_ns)
    trips = [
        {
            "tensor": trip.tensor,
            "buffer": trip.buffer,
            "bytes": trip.size_bytes,
            "kept": trip.stored_bytes,
            "tier": trip.tier,
            "codec": trip.codec,
            "out_begin": _one_us(trip.out_begin_ns),
            "out_end": _one_us(trip.out_end_ns),
            "gone": _one_us(trip.freed_ns),
            "in_begin": _one_us(trip.in_begin_ns),
            "in_end": _one_us(trip.in_end_ns),
        }
        for trip in story.trips
    ]
    stalls = [
        {
            "op": stall.op,
            "begin": _one_us(stall.begin_ns),
            "wait": _one_us(stall.wait_ns),
            "why": stall.why,
            "tensor": stall.tensor,
        }
        for stall in story.stalls
    ]
    return {
        "budget_bytes": story.budget_bytes,
        "peak_bytes": int(result.peak_bytes),
        "unswapped_peak_bytes": story.unswapped_peak_bytes,
        "resident_bytes": int(timeline.resident_bytes),
        "step_us": _one_us(result.step_ns),
        "unswapped_step_us": _one_us(timeline.step_ns),
        "largest_trip_bytes": max((trip.size_bytes for trip in story.trips), default=1),
        "rows": max(rows, default=0) + 1,
        "before": _curve(story.unswapped_load, timeline.step_ns),
        "after": _curve(story.load, result.step_ns),
        "ops": {
            "names": timeline.op_names,
            "begin": _us(begin_ns),
            "end": _us(end_ns),
            "row": rows,
        },
        "buffers": {
            "names": story.buffer_names,
            "bytes": timeline.buffer_bytes.tolist(),
            "begin": _us(alloc_ns),
            "end": _us(free_ns),
            "absence": _us(absence_ns),
        },
        "trips": trips,
        "stalls": stalls,
    }


def _map_data(map_: AddressMap) -> dict[str, Any]:
    boxes = [box for box in map_.boxes if box.slot.offset_bytes >= 0]
    first_ns = min((box.begin_ns for box in boxes), default=0)
    end_us = _one_us(max((box.end_ns for box in boxes), default=1) - first_ns)
    kinds = [3 if box.slot.op.startswith("tfswap/") else box.slot.kind for box in boxes]
    return {
        "height_bytes": max(map_.height_bytes, 1),
        "end_us": max(end_us, 1),
        "names": [box.slot.op for box in boxes],
        "kind": kinds,
        "offset": [box.slot.offset_bytes for box in boxes],
        "bytes": [box.slot.size_bytes for box in boxes],
        "begin": [_one_us(box.begin_ns - first_ns) for box in boxes],
        "end": [_one_us(box.end_ns - first_ns) for box in boxes],
    }


def _out_of_memory(message: str) -> str:
    keys = _key((("taken", "taken"), ("part", "partly taken"), ("idle", "idle")))
    return (
        f"<h2>Out of memory</h2>{strips_to_svg(message)}{keys}"
        f'<p class="error">{escape(message)}</p>'
    )


def _figures(story: StepStory) -> str:
    result, timeline = story.result, story.timeline
    figures = (
        (readable_bytes(story.unswapped_peak_bytes), "peak without swaps, ops in this order"),
        (readable_bytes(int(result.peak_bytes)), "predicted peak with swaps"),
        (readable_bytes(story.budget_bytes), "budget"),
        (readable_seconds(timeline.step_ns / 1e9), "step without swaps"),
        (readable_seconds(result.step_ns / 1e9), "predicted step with swaps"),
        (readable_seconds(result.stall_ns / 1e9), f"spent waiting, {len(story.stalls)} stalls"),
        (readable_bytes(int(result.bytes_out)), f"swapped out per step, {len(story.trips)} swaps"),
        (f"{len(timeline.op_names):,}", f"ops, {len(timeline.buffer_bytes):,} buffers"),
    )
    items = "".join(
        f"<li><b>{value}</b><span>{escape(name)}</span></li>" for value, name in figures
    )
    return f'<ul class="figures">{items}</ul>'


def _chart() -> str:
    keys = (
        ("before", "load without swaps"),
        ("after", "with swaps"),
        ("budget", "budget"),
        ("host", "host memory"),
        ("compressed", "compressed host memory"),
        ("file", "file"),
        ("stall", "waits"),
        ("other", "ops"),
    )
    return (
        "<h2>The step</h2>"
        '<div class="chart"><canvas id="chart" role="img" aria-label="Load over time without and '
        'with swaps, the budget, swaps as arcs, copies, waits and ops"></canvas></div>'
        + _key(keys)
        + '<p class="note">Hover over the load to see the largest buffers, over the arcs to see '
        "the swapped tensors. Drag to zoom in; double-click to zoom out.</p>"
    )


def _tiers(story: StepStory) -> str:
    rows = []
    for name in TIERS:
        trips = [trip for trip in story.trips if trip.tier == name]
        if not trips:
            continue
        out = [trip for trip in trips if trip.out_begin_ns >= 0]
        moved = sum(trip.size_bytes for trip in out)
        stored = sum(trip.stored_bytes for trip in out)
        busy = [
            sum(trip.out_end_ns - trip.out_begin_ns for trip in out),
            sum(trip.in_end_ns - trip.in_begin_ns for trip in trips),
        ]
        shares = (f"{busy_ns / max(story.result.step_ns, 1):.0%}" for busy_ns in busy)
        cells = (name, len(trips), readable_bytes(moved), readable_bytes(stored), *shares)
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    if not rows:
        return ""
    heads = ("far memory", "swaps", "swapped out per step", "stored", "copying out", "copying in")
    return "<h2>Far memory and its links</h2>" + _table(heads, rows)


def _least_budgets(least: LeastBudgets | None) -> str:
    if least is None:
        return ""
    budgets = [
        ("without swapping", least.unswapped.bytes, least.unswapped.op),
        ("with swapping", least.swapped.bytes, least.swapped.op),
    ]
    budgets += [(f"sections={f.sections}", f.bytes, f.op) for f in least.sections]
    for mode, floor in () if least.floor is None else least.floor.modes:
        budgets.append((f"floor, weights {mode}", floor.bytes, str(floor)))
    rows = [
        f'<td>{mode}</td><td>{readable_bytes(least_bytes)}</td><td class="op">{escape(op)}</td>'
        for mode, least_bytes, op in budgets
    ]
    note = "With swapping, no plan goes lower: the op needs that much while it runs."
    best = least.sectioned
    if best is not None and least.sections_help:
        note += f" AutoSwap(sections={best.sections}) does."
    return (
        "<h2>Least budgets</h2>"
        + _table(("mode", "least budget", "set by op"), rows)
        + f'<p class="note">{note}</p>'
    )


def _whatif(story: StepStory, answers: Sequence[Answer]) -> str:
    if not answers:
        return ""
    rows = []
    for answer in answers:
        if answer.step_ns is None:
            cells = (f"<td>{escape(answer.link)}</td><td>{readable_bytes(answer.budget_bytes)}</td>"
                     f'<td colspan="4">no plan fits</td>')  # fmt: skip
        else:
            slower = answer.step_ns / story.timeline.step_ns
            values = (
                escape(answer.link),
                readable_bytes(answer.budget_bytes),
                readable_bytes(answer.peak_bytes),
                f"{readable_seconds(answer.step_ns / 1e9)} ({slower:.2f})",
                readable_bytes(answer.bytes_out),
                answer.swaps,
            )
            cells = "".join(f"<td>{value}</td>" for value in values)
        rows.append(cells)
    heads = (
        "link",
        "budget",
        "peak",
        "step (relative to unswapped)",
        "swapped out per step",
        "swaps",
    )
    return (
        "<h2>Other budgets, faster links</h2>"
        + _table(heads, rows)
        + '<p class="note">Predicted for this step, without codecs.</p>'
    )


def _buffers() -> str:
    return (
        '<h2>Buffers</h2><p><input id="search" type="search" placeholder="name or tier" '
        'aria-label="Search buffers"><span class="note"><span id="count"></span> buffers</span></p>'
        '<div class="scroll"><table id="buffers"><thead><tr></tr></thead><tbody></tbody></table>'
        "</div>"
    )


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _key(pairs: Sequence[tuple[str, str]]) -> str:
    spans = "".join(
        f'<span><i style="background: var(--{shade})"></i>{name}</span>' for shade, name in pairs
    )
    return f'<p class="key">{spans}</p>'


def _curve(load: tuple[NDArray[np.int64], NDArray[np.int64]], end_ns: int) -> dict[str, Any]:
    return {"us": _us(load[0]), "bytes": load[1].tolist(), "end": _one_us(end_ns)}


def _us(times_ns: NDArray[np.int64]) -> list[int]:
    found: list[int] = (times_ns // 1000).tolist()
    return found


def _one_us(time_ns: int) -> int:
    return int(time_ns) // 1000


def _packed(data: dict[str, Any]) -> str:
    # mtime=0: the same data give the same page.
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6, mtime=0)
    return base64.b64encode(packed).decode()


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
