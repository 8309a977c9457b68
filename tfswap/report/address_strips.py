"""The address map in the text of an out-of-memory error, as SVG."""

from __future__ import annotations

import re
from html import escape

_WIDTH, _MARGIN = 960, 56
_SIGNS = {"#": ("taken", "taken"), "+": ("part", "partly taken"), ".": ("idle", "idle")}
_TEXT = re.compile(r"planned \[([#+. ]*)\], others \[([#+. ]*)\]")


def strips_to_svg(text: str) -> str:
    """Draw the address map in an out-of-memory error as SVG; return "" if it has none."""
    found = _TEXT.search(text)
    if found is None:
        return ""
    rows = []
    for row, (name, signs) in enumerate(zip(("planned", "others"), found.groups(), strict=True)):
        y, width = 4 + row * 30, (_WIDTH - _MARGIN) / max(len(signs), 1)
        rows.append(f'<text x="{_MARGIN - 4}" y="{y + 16}" text-anchor="end">{name}</text>')
        rows += [
            f'<rect class="{_SIGNS[sign][0]}" x="{_MARGIN + i * width:.1f}" y="{y}" '
            f'width="{width:.1f}" height="22"><title>{name}: part {i + 1} of {len(signs)} is '
            f"{_SIGNS[sign][1]}</title></rect>"
            for i, sign in enumerate(signs)
            if sign in _SIGNS
        ]
    return _svg(64, "Addresses when memory ran out", "".join(rows))


def _svg(height: int, label: str, inside: str) -> str:
    box = f'viewBox="0 0 {_WIDTH} {height}"'
    return f'<svg {box} role="img" aria-label="{escape(label)}">{inside}</svg>'
