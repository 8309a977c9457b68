"""The packers, compared with brute force and checked by an independent validator."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfswap.addresses.packing import (
    RULES,
    Buffers,
    Packing,
    best_fit,
    find_fault,
    first_fit,
    improve,
    pack,
    solve,
)


def of(*rows: tuple[int, int, int], **more: Any) -> Buffers:
    """Return buffers from rows of (size, lower, upper)."""
    size, lower, upper = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Buffers(size, lower, upper, **{k: np.array(v, np.int64) for k, v in more.items()})


def lowest(buffers: Buffers) -> int:
    """Return the smallest height, by placing the buffers in every order."""

    def live(b: int, time: int) -> bool:
        gaps = () if buffers.gaps is None else buffers.gaps[buffers.gaps[:, 0] == b]
        return bool(
            buffers.lower[b] <= time < buffers.upper[b]
            and not any(lower <= time < upper for _, lower, upper in gaps)
        )

    n = len(buffers)
    times = range(int(buffers.lower.min()), int(buffers.upper.max()))
    alive = np.array([[live(b, time) for time in times] for b in range(n)])
    together = (alive[:, None, :] & alive[None, :, :]).any(axis=2)
    alignment = np.ones(n, int) if buffers.alignment is None else buffers.alignment
    fixed = np.full(n, -1) if buffers.fixed is None else buffers.fixed
    best = 1 << 60
    for order in permutations(range(n)):
        offsets = {b: int(fixed[b]) for b in range(n) if fixed[b] >= 0}
        for b in order:
            if b in offsets:
                continue
            place = 0
            while any(
                together[b, o] and place < at + buffers.size[o] and at < place + buffers.size[b]
                for o, at in offsets.items()
            ):
                place += int(alignment[b])
            offsets[b] = place
        best = min(best, max(at + int(buffers.size[b]) for b, at in offsets.items()))
    return best


@st.composite
def problems(draw: st.DrawFn) -> Buffers:
    rows, alignment, fixed, gaps = [], [], [], []
    for b in range(draw(st.integers(1, 6))):
        lower = draw(st.integers(0, 8))
        upper = lower + draw(st.integers(1, 6))
        rows.append((draw(st.integers(1, 6)), lower, upper))
        alignment.append(draw(st.sampled_from((1, 1, 2, 4))))
        fixed.append(-1)
        if upper - lower >= 3 and draw(st.booleans()):
            begin = draw(st.integers(lower, upper - 2))
            gaps.append((b, begin, draw(st.integers(begin + 1, upper - 1))))
    if draw(st.booleans()):
        fixed[0] = alignment[0] * draw(st.integers(0, 3))
    return of(*rows, alignment=alignment, fixed=fixed, gaps=np.reshape(gaps, (-1, 3)))


@settings(max_examples=150, deadline=None)
@given(problems(), st.sampled_from([(), *[(rule,) for rule in RULES], RULES]))
def test_the_solver_finds_the_lowest_packing(buffers: Buffers, without: tuple[str, ...]) -> None:
    height = lowest(buffers)
    solution = solve(buffers, height, without=without)
    assert solution.outcome == "solved"
    assert solution.packing is not None
    assert find_fault(buffers, solution.packing) == ""
    assert solution.packing.height <= height
    assert solve(buffers, height - 1, without=without).outcome == "impossible"


@settings(max_examples=60, deadline=None)
@given(problems())
def test_every_packer_returns_a_valid_packing(buffers: Buffers) -> None:
    packings = [
        first_fit(buffers),
        best_fit(buffers),
        improve(buffers, seconds=0.01),
        pack(buffers, seconds=5),
    ]
    for packing in packings:
        assert find_fault(buffers, packing) == ""
        assert packing.height >= packing.lower_bound >= buffers.max_live
    assert packings[-1].height == lowest(buffers)
    assert packings[-1].is_lowest


def test_a_buffer_in_a_gap_shares_its_addresses() -> None:
    buffers = of((4, 0, 10), (4, 3, 6), gaps=[(0, 3, 6)])
    assert buffers.max_live == 4
    packing = pack(buffers)
    assert packing.height == 4
    assert packing.offsets.tolist() == [0, 0]


def test_first_and_best_fit_differ_where_a_later_hole_is_smaller() -> None:
    # Holes of 4 and 2 under the last buffer's lifetime; it needs 2.
    rows = [(10, 0, 4), (9, 2, 9), (8, 0, 9), (2, 6, 9)]
    buffers = of(*rows, fixed=[-1, -1, -1, -1])
    for fit in (first_fit, best_fit):
        assert find_fault(buffers, fit(buffers)) == ""
    walls = of((1, 0, 2), (1, 0, 2), (1, 0, 2), (2, 1, 2), fixed=[4, 7, 9, -1])
    assert first_fit(walls).offsets[3] == 0
    walls = of((1, 0, 2), (1, 0, 2), (2, 1, 2), fixed=[4, 7, -1])
    assert best_fit(walls).offsets[2] == 5


def test_the_validator_names_the_fault() -> None:
    buffers = of((4, 0, 10), (4, 3, 6), alignment=[4, 1])
    faults = {
        (0, 2): "buffer 0 at 0 overlaps buffer 1 at 2",
        (2, 6): "buffer 0 at 2 is not aligned",
        (0, -4): "buffer 1 at -4 is below the slab",
        (0, 8): "buffer 1 at 8 ends above the height",
    }
    for offsets, fault in faults.items():
        assert find_fault(buffers, Packing(np.array(offsets), 10, 0)) == fault


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ([(-1, 0, 1)], {}, "buffer 0: its size is negative"),
        ([(1, 2, 1)], {}, "buffer 0: it ends before it begins"),
        ([(1, 0, 1)], {"alignment": [0]}, "buffer 0: its alignment is below 1"),
        (
            [(1, 0, 1)],
            {"alignment": [4], "fixed": [2]},
            "buffer 0: its fixed offset is not aligned",
        ),
        ([(1, 0, 9)], {"gaps": [(0, 5, 3)]}, "buffer 0: a gap ends before it begins"),
        ([(1, 0, 9)], {"gaps": [(0, 5, 12)]}, "buffer 0: its gaps are not in order"),
        ([(1, 0, 9)], {"gaps": [(1, 5, 6)]}, "a gap names buffer 1"),
        ([(2, 0, 9), (2, 3, 5)], {"fixed": [4, 5]}, "buffer 1: it and buffer 0 are fixed in each"),
        ([(1 << 60, 0, 9), (1, 3, 5)], {}, "buffer 1: the sizes add up to over 1 EiB"),
    ],
)
def test_invalid_buffers_are_named_in_the_error(
    rows: list[tuple[int, int, int]], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        of(*rows, **more)


def test_an_unknown_rule_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown rule 'luck'"):
        solve(of((1, 0, 1)), 1, without=("luck",))


def test_packing_without_time_and_without_buffers() -> None:
    random = np.random.default_rng(0)
    lower = random.integers(0, 300, 150)
    size = random.integers(1, 1000, 150)
    buffers = Buffers(size, lower, lower + random.integers(1, 100, 150))
    assert solve(buffers, buffers.max_live, seconds=0.0).outcome == "out of time"
    packing = pack(buffers, seconds=0.0)
    assert find_fault(buffers, packing) == ""
    empty = np.empty(0, np.int64)
    assert pack(Buffers(empty, empty, empty)).height == 0
