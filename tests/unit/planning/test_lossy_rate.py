"""The range of lossy rates of CSWAP+."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import FakeMachine

from tfswap.machine.far_tier import CodecSpeed, CodecTime
from tfswap.planning.planners.lossy_rate import DenseSwap, hides, pays, rate_of_epoch, rate_range

LINK = FakeMachine()  # 1 byte/ns


def codec(begin_ns: float = 0, byte_ns: float = 0, kept_byte_ns: float = 0) -> CodecSpeed:
    time = CodecTime(begin_ns, byte_ns, kept_byte_ns)
    return CodecSpeed("zfp", 1, time, time)


def test_the_range_of_one_swap() -> None:
    """10,000 ns each way, 4,000 of them hidden; the codec takes 1,000 each way."""
    swap = DenseSwap(10_000, 4_000, 4_000)
    # At 90 % it saves its cost of 1,000 each way; at 40 % nothing is exposed.
    assert rate_range([swap], LINK, codec(begin_ns=1_000)) == (90, 40)


def test_the_top_is_the_largest_and_the_bottom_the_least() -> None:
    early, late = DenseSwap(10_000, 4_000, 4_000), DenseSwap(10_000, 2_000, 2_000)
    assert rate_range([early, late], LINK, codec(begin_ns=1_000)) == (90, 20)
    assert rate_range([late, early], LINK, codec(begin_ns=1_000)) == (90, 20)


def test_one_direction_may_be_hidden() -> None:
    swap = DenseSwap(10_000, 10_000, 4_000)
    assert rate_range([swap], LINK, codec(begin_ns=1_000)) == (80, 40)


def test_swaps_that_no_rate_pays_for_are_ignored() -> None:
    swap = DenseSwap(10_000, 4_000, 4_000)
    small, hidden = DenseSwap(100, 0, 0), DenseSwap(10_000, 10_000, 10_000)
    assert rate_range([small, swap, hidden], LINK, codec(begin_ns=1_000)) == (90, 40)
    for swaps in ([], [small], [small, hidden]):
        assert rate_range(swaps, LINK, codec(begin_ns=1_000)) == (1, 100)


def test_unhidden_swap_sets_bottom_to_least_rate() -> None:
    assert rate_range([DenseSwap(10_000, 0, 0)], LINK, codec(begin_ns=1_000)) == (90, 1)


def test_range_is_empty_if_hiding_needs_a_higher_rate() -> None:
    swap = DenseSwap(10_000, 9_000, 9_000)
    assert rate_range([swap], LINK, codec(begin_ns=1_000)) == (90, 90)


def test_codec_with_decreasing_time_is_charged_its_maximum() -> None:
    swap = DenseSwap(10_000, 4_000, 4_000)
    # At 40 % it saves 6,000 ns each way for 4,100 ns, but is charged 6,050 ns as at 1 %.
    faster = codec(begin_ns=6_100, kept_byte_ns=-0.5)
    assert rate_range([swap], LINK, faster) == (1, 100)
    assert rate_range([swap], LINK, codec(begin_ns=1_050, kept_byte_ns=-0.5)) == (90, 40)


def test_example_of_the_paper() -> None:
    rates = [rate_of_epoch(100, 20, epoch, 90) for epoch in range(90)]
    assert rates[:3] == [100, 99, 98]
    assert rates.index(20) + 1 == 81
    assert set(rates[80:]) == {20}


def test_a_narrow_range_stays_at_its_top() -> None:
    assert {rate_of_epoch(60, 50, epoch, 90) for epoch in range(90)} == {60}


def test_steps_are_rounded() -> None:
    assert [rate_of_epoch(100, 20, epoch, 3) for epoch in range(3)] == [100, 73, 46]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (20, 100, 0, 9),
            "rates must satisfy 1 <= bottom <= top <= 100; got top 20 and bottom 100",
        ),
        (
            (101, 5, 0, 9),
            "rates must satisfy 1 <= bottom <= top <= 100; got top 101 and bottom 5",
        ),
        ((90, 20, 9, 9), "epoch must be at least 0 and less than 9; got 9"),
        ((90, 20, -1, 9), "epoch must be at least 0 and less than 9; got -1"),
    ],
)
def test_invalid_range_or_epoch(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError) as error:
        rate_of_epoch(*arguments)
    assert str(error.value) == message


swaps = st.builds(DenseSwap, st.integers(1, 10_000), st.integers(0, 12_000), st.integers(0, 12_000))
links = st.builds(FakeMachine, st.floats(1e8, 1e10), st.floats(1e8, 1e10))
times = st.builds(CodecTime, st.floats(-500, 2_000), st.floats(0, 0.5), st.floats(-0.3, 0.5))
codec_speeds = st.builds(CodecSpeed, st.just("zfp"), st.just(1), times, times)
RATES = range(1, 101)


@settings(max_examples=200, deadline=None)
@given(st.lists(swaps, max_size=6), links, codec_speeds)
def test_bisection_equals_exhaustive_search(
    swaps: list[DenseSwap], link: FakeMachine, codec: CodecSpeed
) -> None:
    top, bottom = 1, 100
    for swap in swaps:
        paying = [rate for rate in RATES if pays(swap, link, codec, rate)]
        hiding = [rate for rate in RATES if hides(swap, link, rate)]
        if paying:
            assert paying == list(range(1, paying[-1] + 1))
            top = max(top, paying[-1])
            bottom = min(bottom, hiding[-1] if hiding else 1)
    found = rate_range(swaps, link, codec)
    assert found == (top, bottom)
    assert all(1 <= rate <= 100 for rate in found)


@settings(max_examples=200, deadline=None)
@given(st.lists(swaps, min_size=1, max_size=6), links, st.floats(0.1, 1), codec_speeds)
def test_more_swaps_widen_the_range_and_slower_links_lower_its_bottom(
    swaps: list[DenseSwap], link: FakeMachine, part: float, codec: CodecSpeed
) -> None:
    top, bottom = rate_range(swaps, link, codec)
    fewer_top, fewer_bottom = rate_range(swaps[1:], link, codec)
    assert fewer_top <= top
    assert fewer_bottom >= bottom
    slower = FakeMachine(link.out_bytes_per_s * part, link.in_bytes_per_s * part)
    assert rate_range(swaps, slower, codec)[1] <= bottom


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 300))
def test_rates_only_fall_and_stay_in_the_range(one: int, other: int, epochs: int) -> None:
    bottom, top = sorted((one, other))
    rates = [rate_of_epoch(top, bottom, epoch, epochs) for epoch in range(epochs)]
    assert rates[0] == top
    assert all(bottom <= rate <= top for rate in rates)
    assert all(later <= rate for rate, later in zip(rates, rates[1:], strict=False))
