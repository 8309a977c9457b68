"""The copies of a plan, for the reference simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from timelines import FakeMachine

from tfswap.planning.simulator import Swap
from tfswap.step.timeline import Absence, Timeline, crosses_step_end

BACK, WITHIN, AWAY = "comes back from the step before", "within the step", "leaves for the next"


@dataclass
class Copies:
    """The copy-out and copy-in of one section of one swap; ``None``: not known yet."""

    place: int
    swap: Swap
    absence: Absence
    role: str
    section: int
    bytes: int
    far_bytes: int
    out_ns: int
    in_ns: int
    leader: Copies | None = None
    out_start: int | None = None
    out_end: int | None = None
    out_seen: bool = False
    after_ended: bool = False
    released: int | None = None
    asked_in: int | None = None
    joins_in: int | None = None
    queue_place: int | None = None
    in_start: int | None = None
    in_end: int | None = None
    in_seen: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether the tensor leaves without a copy, because its far copy is still valid."""
        return self.role == AWAY and self.absence.producer_op < 0

    @property
    def copies_out(self) -> bool:
        """Whether this swap makes the copy-out, rather than using another swap's."""
        return self.leader is self and self.role != BACK and not self.is_clean

    @property
    def far_copy(self) -> tuple[object, ...]:
        """Identifies the far copy that the swap uses."""
        if self.is_clean:
            return ("nothing is copied", self.place)
        made_before = self.role == BACK or self.absence.producer_op < 0
        return (self.absence.buffer, self.absence.tensor, made_before)


def copies_of(
    timeline: Timeline, swaps: Sequence[Swap], tiers: Sequence[FakeMachine]
) -> list[Copies]:
    """Return the copies of all sections of all swaps, linked to their leaders."""
    roles: list[tuple[str, int, Swap]] = []
    by_absence = sorted(enumerate(swaps), key=lambda s: s[1].absence)
    for place, swap in by_absence:
        if crosses_step_end(timeline, timeline.absences[swap.absence]):
            roles.append((BACK, place, swap))
    for place, swap in by_absence:
        crosses = crosses_step_end(timeline, timeline.absences[swap.absence])
        roles.append((AWAY if crosses else WITHIN, place, swap))
    copies = [
        c for role, place, swap in roles for c in _sections(timeline, tiers, role, place, swap)
    ]
    for c in copies:
        same = [other for other in copies if other.far_copy == c.far_copy]
        first = same[0]
        own = c.place == first.place and c.role == first.role
        c.leader = c if own else [o for o in same if o.place == first.place][-1]
    return copies


def _sections(
    timeline: Timeline, tiers: Sequence[FakeMachine], role: str, place: int, swap: Swap
) -> list[Copies]:
    absence = timeline.absences[swap.absence]
    size = int(timeline.buffer_bytes[absence.buffer])
    far = size if swap.far_bytes < 0 else swap.far_bytes
    tier = tiers[swap.tier]
    n = swap.sections or (sections_of(size) if tier.in_sections else 1)
    return [
        Copies(
            place,
            swap,
            absence,
            role,
            i,
            part,
            far_part,
            duration(far_part, tier.out_bytes_per_s, tier.out_latency_ns) + encode,
            duration(far_part, tier.in_bytes_per_s, tier.in_latency_ns) + decode,
        )
        for i, (part, far_part, encode, decode) in enumerate(
            zip(
                pieces(size, n),
                pieces(far, n),
                pieces(swap.encode_ns, n),
                pieces(swap.decode_ns, n),
                strict=True,
            )
        )
    ]


def pieces(total: int, count: int) -> list[int]:
    borders = [total * i // count for i in range(count + 1)]
    return [after - before for before, after in zip(borders, borders[1:], strict=False)]


def sections_of(size: int) -> int:
    return max(1, min(4, size // (16 << 20)))


def duration(size: int, bytes_per_s: float, latency_ns: int) -> int:
    return latency_ns + math.ceil(size * 1e9 / bytes_per_s)
