"""LinkWatch: the speeds that a CPU device's copies have in a training, beside what plans go by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tfswap.machine.far_tier import COMPRESSED, FILE

# Speeds that are further off than this fraction are others.
_DRIFT = 0.3
# Less than this is too little to tell a speed: of a link, and of copies that ops disturb.
_LEAST_BYTES, _LEAST_BYTES_BY_CORES = 16 << 20, 1 << 30


class Speeds(NamedTuple):
    """Of a link, in bytes per second; None where too little was moved to tell."""

    out: float | None
    back: float | None


class LinkWatch:
    """Looks at all copies between two looks.

    Ops that run meanwhile slow copies down that cores make. Where nothing says how fast the link
    is while a step runs, its first look is what is expected.

    Args:
        expected: As plans have it.
        stats: The device's, from when on copies are looked at.
        is_known: Whether that is to be expected of copies in a step: of an emulated link that is
            much slower than cores.

    Attributes:
        factors: Of the speeds that plans are to go by, out and back, those of the device's link.
    """

    def __init__(self, expected: Speeds, stats: Mapping[str, int], is_known: bool) -> None:
        self._known = expected if is_known else Speeds(None, None)
        self._least_bytes = _LEAST_BYTES if is_known else _LEAST_BYTES_BY_CORES
        self._before = dict(stats)
        self._was_off = False
        self.factors = (1.0, 1.0)

    def look(self, stats: Mapping[str, int]) -> str:
        """Goes by the copies since the last look at enough of them.

        Returns:
            What the link gives and where another speed was expected, once that was so twice in a
            row; "" else. `factors` go by it then.
        """
        if stats["bytes_out"] < self._before["bytes_out"]:  # they were reset
            self._before = dict(stats)
            return ""
        seen = Speeds(self._speed(stats, "out"), self._speed(stats, "in"))
        if seen.out is None and seen.back is None:
            return ""
        self._before = dict(stats)
        expected = self._known
        if expected.out is None or expected.back is None:
            self._known = Speeds(expected.out or seen.out, expected.back or seen.back)
        changes = [
            (now / planned, doing, now, planned)
            for doing, now, planned in (
                ("out", seen.out, expected.out),
                ("back", seen.back, expected.back),
            )
            if now is not None and planned is not None and abs(now / planned - 1) > _DRIFT
        ]
        was_off, self._was_off = self._was_off, bool(changes)
        if not changes or not was_off:
            return ""
        self._was_off = False
        self.factors = (
            self.factors[0] * _ratio(seen.out, expected.out),
            self.factors[1] * _ratio(seen.back, expected.back),
        )
        self._known = Speeds(seen.out or expected.out, seen.back or expected.back)
        _, doing, now, planned = max(changes, key=lambda change: abs(math.log(change[0])))
        return f"copies {doing} go at {now / 1e9:.3g} GB/s where {planned / 1e9:.3g} were expected"

    @property
    def is_off(self) -> bool:
        """Whether the last look was, so that another one will tell."""
        return self._was_off

    def _speed(self, stats: Mapping[str, int], way: str) -> float | None:
        """Over the link alone: without what the file has, and what codecs take."""

        def since(count: str) -> int:
            return stats[count] - self._before[count]

        moved = since(f"bytes_{way}") - since(f"far_{FILE}_bytes_{way}")
        busy_ns = since(f"busy_{way}_ns") - since(f"far_{FILE}_busy_{way}_ns")
        encoded = since(f"far_{COMPRESSED}_bytes_{way}")
        if encoded:
            made = since(f"far_{COMPRESSED}_bytes_out")
            kept = since(f"far_{COMPRESSED}_kept_bytes_out")
            moved -= round(encoded * (1 - kept / made)) if made else encoded
            busy_ns -= since(f"far_{COMPRESSED}_busy_{way}_ns")
        if moved < self._least_bytes or busy_ns <= 0:
            return None
        return moved * 1e9 / busy_ns


def _ratio(now: float | None, before: float | None) -> float:
    return now / before if now is not None and before is not None else 1.0
