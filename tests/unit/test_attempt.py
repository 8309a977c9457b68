"""What counts as a plan that did as was foretold."""

from __future__ import annotations

import pytest

from tfswap.attempt import Attempt, best
from tfswap.plan import FunctionPlan, TensorSwap

MOVES = FunctionPlan("f", swaps=(TensorSwap("a:0", 10, (), ()),), predicted_peak_bytes=100)
MOVES_NOTHING = FunctionPlan("f", predicted_peak_bytes=100)


@pytest.mark.parametrize(
    ("function", "peak_bytes", "bytes_out", "right"),
    [
        (MOVES, 100, 10, True),
        (MOVES, 90, 10, False),
        (MOVES, 100, 20, False),  # lazy swaps moved more: without them, it would have been 110
        (MOVES_NOTHING, 90, 0, True),  # less than in the recorded order
        (MOVES_NOTHING, 100, 10, False),
    ],
)
def test_a_peak_that_is_off_or_what_lazy_swaps_moved_is_not_as_foretold(
    function: FunctionPlan, peak_bytes: int, bytes_out: int, right: bool
) -> None:
    assert Attempt(function, 1.0, peak_bytes, bytes_out, bytes_out).is_as_foretold == right


def test_the_fastest_of_those_as_foretold_is_best() -> None:
    off, slow, fast = (
        Attempt(MOVES, step_s, peak_bytes, 10, 10)
        for step_s, peak_bytes in ((1.0, 200), (3.0, 100), (2.0, 101))
    )
    assert best([off, slow, fast]) is fast
    assert best([off]) is off
