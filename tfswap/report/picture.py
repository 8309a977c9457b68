"""A simulated step as a PNG picture, drawn by matplotlib."""

from __future__ import annotations

import io
from typing import Any

from tfswap.report.step_story import StepStory

_COLOURS = {"host": "#2f7d5d", "compressed": "#8a5fb0", "file": "#b0752a"}
_MIB = 1 << 20


def to_png(story: StepStory, width_px: int = 1200, height_px: int = 700) -> bytes:
    """Draw the load over time without and with swaps, the budget, swaps, copies and waits.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'pictures need matplotlib: pip install "tfswap[report]"', name="matplotlib"
        ) from error
    figure = Figure(figsize=(width_px / 100, height_px / 100), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    load, swaps = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_load(load, story)
    _draw_swaps(swaps, story)
    picture = io.BytesIO()
    canvas.print_png(picture)
    return picture.getvalue()


def _draw_load(axes: Any, story: StepStory) -> None:
    for (times_ns, bytes_), end_ns, options in (
        (story.unswapped_load, story.timeline.step_ns, {"color": "#b9c0c6", "label": "no swaps"}),
        (story.load, story.result.step_ns, {"color": "#2f6fb0", "label": "swaps"}),
    ):
        times = [*(times_ns / 1e6), end_ns / 1e6]
        loads = [*(bytes_ / _MIB), bytes_[-1] / _MIB]
        axes.step(times, loads, where="post", linewidth=1.3, **options)
    budget = story.budget_bytes / _MIB
    axes.axhline(budget, color="#b3261e", linestyle="--", linewidth=1, label="budget")
    for stall in story.stalls:
        begin = stall.begin_ns / 1e6
        axes.axvspan(begin, begin + stall.wait_ns / 1e6, color="#d93025", alpha=0.3, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("MiB on the device")
    axes.legend(loc="upper right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_swaps(axes: Any, story: StepStory) -> None:
    from matplotlib.patches import Arc

    step_ns = story.result.step_ns
    longest_ns = max((trip.away_ns(step_ns) for trip in story.trips), default=1)
    for trip in story.trips:
        begin_ns = trip.out_begin_ns if trip.out_begin_ns >= 0 else trip.freed_ns
        away_ns = trip.away_ns(step_ns)
        options: dict[str, Any] = {"color": _COLOURS[trip.tier], "alpha": 0.5, "theta2": 180}
        height = 0.3 + 1.6 * away_ns / longest_ns
        # A swap across the end of the step also shows at its beginning.
        for shift_ns in {0, trip.in_end_ns - away_ns - begin_ns}:
            middle_ms = (begin_ns + shift_ns + away_ns / 2) / 1e6
            axes.add_patch(Arc((middle_ms, 0), away_ns / 1e6, height, **options))
        if trip.out_begin_ns >= 0:
            _bar(axes, -0.3, trip.out_begin_ns, trip.out_end_ns, trip.tier)
        _bar(axes, -0.6, trip.in_begin_ns, trip.in_end_ns, trip.tier)
    axes.set_xlim(0, max(step_ns, story.timeline.step_ns) / 1e6)
    axes.set_ylim(-0.7, 1.1)
    axes.set_yticks([-0.5, -0.2, 0.5], ["in", "out", "swaps"])
    axes.set_xlabel("ms")
    axes.spines[["top", "right"]].set_visible(False)


def _bar(axes: Any, low: float, begin_ns: int, end_ns: int, tier: str) -> None:
    span = (begin_ns / 1e6, (end_ns - begin_ns) / 1e6)
    axes.broken_barh([span], (low, 0.2), color=_COLOURS[tier])
