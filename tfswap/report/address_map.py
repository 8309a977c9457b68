"""AddressMap: who is where in a slab, and when, as data and as a picture (SVG)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from tfswap.slots import OUTSIDE, Slot

_WIDTH, _HEIGHT, _MARGIN = 960, 360, 56
_KINDS = ("output", "temporary", "other")
_SIGNS = {"#": ("taken", "taken"), "+": ("part", "in part"), ".": ("idle", "idle")}
_TEXT = re.compile(r"planned \[([#+. ]*)\], others \[([#+. ]*)\]")


class Box(NamedTuple):
    """A slot, and when it is in use (on the recording's clock, in ns)."""

    slot: Slot
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class AddressMap:
    """The addresses that one graph's step uses, for tensors of one shape.

    Attributes:
        fingerprint: The graph's.
        boxes: What has a place.
        height_bytes: The end of the highest.
        max_live_bytes: The largest load: no layout is lower.
    """

    fingerprint: str
    boxes: tuple[Box, ...]
    height_bytes: int
    max_live_bytes: int

    def to_svg(self) -> str:
        """Time to the right, addresses upwards; whoever is pointed at says what it is."""
        boxes = [box for box in self.boxes if box.slot.offset_bytes != OUTSIDE]
        begin_ns = min((box.begin_ns for box in boxes), default=0)
        span_ns = max(max((box.end_ns for box in boxes), default=1) - begin_ns, 1)
        across, up = (_WIDTH - _MARGIN) / span_ns, (_HEIGHT - 24) / max(self.height_bytes, 1)
        shapes = [
            f'<rect class="{_class(box.slot)}" '
            f'x="{_MARGIN + (box.begin_ns - begin_ns) * across:.1f}" '
            f'y="{_HEIGHT - 20 - (box.slot.offset_bytes + box.slot.size_bytes) * up:.1f}" '
            f'width="{max((box.end_ns - box.begin_ns) * across, 0.5):.1f}" '
            f'height="{max(box.slot.size_bytes * up, 0.5):.1f}"><title>{_title(box, begin_ns)}'
            "</title></rect>"
            for box in boxes
        ]
        top = f"{self.height_bytes / (1 << 20):.0f} MiB"
        labels = (
            f'<text x="{_MARGIN - 4}" y="14" text-anchor="end">{top}</text>'
            f'<text x="{_MARGIN - 4}" y="{_HEIGHT - 22}" text-anchor="end">0</text>'
            f'<text x="{_WIDTH}" y="{_HEIGHT - 5}" text-anchor="end">{span_ns / 1e6:.0f} ms</text>'
        )
        return _svg(_HEIGHT, "Planned addresses over a step", "".join(shapes) + labels)


def strips_to_svg(text: str) -> str:
    """The addresses as an out-of-memory error draws them, in colours; "" if it has none."""
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


def _class(slot: Slot) -> str:
    return "swap" if slot.op.startswith("tfswap/") else _KINDS[slot.kind]


def _title(box: Box, begin_ns: int) -> str:
    slot = box.slot
    return escape(
        f"{slot.op}, {_KINDS[slot.kind]} {slot.ordinal}: {slot.size_bytes:,} bytes at "
        f"{slot.offset_bytes:,}, {(box.begin_ns - begin_ns) / 1e6:.2f} to "
        f"{(box.end_ns - begin_ns) / 1e6:.2f} ms"
    )


def legend(maps: Sequence[AddressMap]) -> str:
    """HTML: what the colours of the maps mean."""
    classes = dict.fromkeys(_class(box.slot) for map_ in maps for box in map_.boxes)
    names = {"swap": "swapped in"}
    return " ".join(
        f'<span class="key"><i class="{name}"></i>{names.get(name, name)}</span>'
        for name in classes
    )
