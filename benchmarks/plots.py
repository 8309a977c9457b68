"""Pictures of benchmark results, as SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import MIB, Plot

_WIDTH_INCHES, _HEIGHT_INCHES = 7.0, 3.0
_MAX_LEVEL_LETTERS = 60  # more names are slanted, to avoid overlaps
_COLORS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#222222",
)  # fmt: skip
_SCALES = {"MiB": 1 / MIB, "GiB": 1 / MIB / 1024, "%": 100.0}


def points(plot: Plot, lines: Sequence[dict[str, Any]]) -> dict[str, dict[Any, float]]:
    """Return by series the heights at each place, in the order of the lines."""
    found: dict[str, dict[Any, float]] = {}
    for line in lines:
        if not plot.shows(line):
            continue
        series = _shown(plot.series, line.get(plot.series, ""))
        place = line[plot.x[0]] if plot.kind == "lines" else _place(plot, line)
        found.setdefault(series, {})[place] = line[plot.value] * _SCALES.get(plot.unit, 1.0)
    return found


def _place(plot: Plot, line: dict[str, Any]) -> str:
    return "\n".join(_shown(key, line[key]) for key in plot.x)


def _letters(places: Sequence[str]) -> int:
    """Return the length of the longest lines of adjacent names."""
    return sum(max(map(len, place.split("\n"))) for place in places)


def _shown(key: str, value: Any) -> str:
    if value is None:
        if key == "link_bandwidth":
            return "no link"
        return "no limit" if key.startswith("budget") else "none"
    if key.endswith("_bytes"):
        return f"{value / MIB:.0f} MiB"
    if key.endswith("_share"):
        return f"{value:.2f} of the peak"
    if key == "threads":
        return f"{value} thread" + "s" * (value != 1)
    return str(value)


def draw(plot: Plot, lines: Sequence[dict[str, Any]], path: Path) -> bool:
    """Draw the picture; return False if there is nothing to show, or no library to draw with."""
    found = points(plot, lines)
    if sum(len(heights) for heights in found.values()) < 2:
        return False
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    from matplotlib import pyplot

    # Equal lines make equal files.
    style = {"svg.hashsalt": "tfswap", "svg.fonttype": "path", "font.size": 8}
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES))
        places = list(dict.fromkeys(p for heights in found.values() for p in heights))
        for index, (series, heights) in enumerate(found.items()):
            color = _COLORS[index % len(_COLORS)]
            if plot.kind == "lines":
                ordered = sorted(heights.items())
                axes.plot(*zip(*ordered, strict=True), "o-", color=color, label=series, ms=3, lw=1)
            else:
                width = 0.8 / len(found)
                left = index * width - 0.4 + width / 2
                at = [places.index(place) + left for place in heights]
                axes.bar(at, list(heights.values()), width * 0.94, color=color, label=series)
        if plot.kind == "bars" and _letters(places) <= _MAX_LEVEL_LETTERS:
            axes.set_xticks(range(len(places)), places)
        elif plot.kind == "bars":
            names = [place.replace("\n", ", ") for place in places]
            axes.set_xticks(range(len(places)), names, rotation=45, ha="right")
        else:
            axes.set_xlabel(plot.x[0].replace("_mib", ", MiB").replace("_", " "))
        if plot.at is not None:
            axes.axhline(plot.at, color="#222222", lw=0.8, ls="--")
        axes.set_ylabel(plot.title)
        axes.set_axisbelow(True)
        axes.grid(axis="y", color="#dddddd", lw=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if len(found) > 1:
            axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(
            path, format="svg", bbox_inches="tight", facecolor="white", metadata={"Date": None}
        )
        pyplot.close(figure)
    return True
