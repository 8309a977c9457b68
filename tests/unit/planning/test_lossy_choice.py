"""Lossy codecs as choices: eligible tensors, rates, and where they pay."""

from __future__ import annotations

import pytest
from timelines import make_timeline

from tfswap.machine import codecs
from tfswap.machine.far_tier import COMPRESSED, HOST, CodecSpeed, CodecTime, FarTier
from tfswap.planning.planners.assignment import FarMemory, Place, Ratios
from tfswap.planning.planners.lossy_choice import (
    LossyChoice,
    RateRange,
    with_lossy,
    worthwhile_rates,
)
from tfswap.planning.planners.lossy_rate import DenseSwap, rate_range
from tfswap.planning.planners.place_search import assign
from tfswap.planning.simulator import Swap
from tfswap.step.timeline import Absence

LOSSY = codecs.LOSSY[0]
FAST = CodecSpeed(LOSSY, 1, CodecTime(0, 0.05, 0.05), CodecTime(0, 0.05, 0.05))
SLOW = CodecSpeed(LOSSY, 1, CodecTime(0, 9, 0), CodecTime(0, 9, 0))
ZVC = CodecSpeed("zvc", 1, CodecTime(0, 0.05, 0.05), CodecTime(0, 0.05, 0.05))

# Two buffers of 1,000 bytes; ops of 600 ns, of which one hides each way of each tensor.
OPS = [(at, at + 600) for at in range(0, 4200, 600)]
ABSENCES = (Absence(0, "x:0", 0, 1, 5), Absence(1, "w:0", 1, 2, 6))
TIMELINE = make_timeline(OPS, [(1000, 0, 4200), (1000, 600, 4200)], ABSENCES)
SWAPS = (Swap(0, gate_op=3, trigger_op=3), Swap(1, gate_op=4, trigger_op=4))
ONLY_X = LossyChoice(frozenset({0}), 0, 10)
LATE = LossyChoice(frozenset({0}), 9, 10)
DENSE: Ratios = {"x:0": {"zvc": 1.0}, "w:0": {"zvc": 1.0}}


def far(gb_s: float, *speeds: CodecSpeed) -> FarMemory:
    return FarMemory(FarTier(HOST, gb_s * 1e9, gb_s * 1e9, 0, 0, 1 << 60), codecs=speeds)


def test_rates_of_eligible_swaps() -> None:
    over = far(0.5, ZVC, FAST)
    rates = worthwhile_rates(TIMELINE, SWAPS, over, ONLY_X)
    assert rates == RateRange(*rate_range([DenseSwap(1000, 600, 600)], over.host, FAST))
    assert rates is not None and rates.top > rates.bottom == 30
    assert worthwhile_rates(TIMELINE, SWAPS[1:], over, ONLY_X) is None


@pytest.mark.parametrize(
    "over", [far(100, FAST), far(0.5, SLOW), far(0.5, ZVC)], ids=["hidden", "slow", "none"]
)
def test_no_rates_if_none_pays(over: FarMemory) -> None:
    assert worthwhile_rates(TIMELINE, SWAPS, over, ONLY_X) is None


def test_ratios_are_the_rate_of_the_epoch_for_eligible_tensors_only() -> None:
    rates = RateRange(90, 40)
    first = with_lossy(DENSE, TIMELINE, SWAPS, far(1, ZVC, FAST), ONLY_X, rates)
    assert first == {"x:0": {"zvc": 1.0, LOSSY: 0.9}, "w:0": {"zvc": 1.0}}
    last = with_lossy(DENSE, TIMELINE, SWAPS, far(1, FAST), LATE, rates)
    assert last["x:0"][LOSSY] == 0.45
    assert last["w:0"] == {"zvc": 1.0}


def test_fast_codecs_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "LOSSY", ("slow", "fast"))
    slow, fast = (CodecSpeed(n, 1, s.encode, s.decode) for n, s in (("slow", SLOW), ("fast", FAST)))
    found = with_lossy(DENSE, TIMELINE, SWAPS, far(1, slow, fast), ONLY_X, RateRange(90, 40))
    assert list(found["x:0"]) == ["zvc", "fast", "slow"]


@pytest.mark.parametrize("codec", ["auto", "cswap", "zvc", LOSSY])
def test_only_eligible_tensors_are_encoded_lossily(codec: str) -> None:
    over = far(0.5, ZVC, FAST)
    known = with_lossy(DENSE, TIMELINE, SWAPS, over, LATE, RateRange(90, 40))
    found = assign(TIMELINE, SWAPS, over, known, codec=codec)
    assert found.places == {"x:0": Place(COMPRESSED, LOSSY, 0.45), "w:0": Place(HOST)}


@pytest.mark.parametrize("codec", ["auto", "cswap", "zvc"])
def test_tensors_stay_unencoded_where_lossy_does_not_pay(codec: str) -> None:
    over = far(0.5, ZVC, SLOW)
    known = with_lossy(DENSE, TIMELINE, SWAPS, over, ONLY_X, RateRange(50, 40))
    assert assign(TIMELINE, SWAPS, over, known, codec=codec).places["x:0"] == Place(HOST)


def test_lossless_codec_still_encodes_compressible_tensors() -> None:
    over = far(100, ZVC, FAST)
    known = with_lossy(
        {**DENSE, "w:0": {"zvc": 0.5}}, TIMELINE, SWAPS, over, ONLY_X, RateRange(50, 40)
    )
    found = assign(TIMELINE, SWAPS, over, known, codec="zvc")
    assert found.places == {"x:0": Place(HOST), "w:0": Place(COMPRESSED, "zvc", 0.5)}


def test_tensor_with_an_ineligible_absence_is_not_encoded_lossily() -> None:
    """One of its two absences ends in the forward pass."""
    again = (*ABSENCES[:1], Absence(0, "x:0", 0, 5, 6))
    timeline = make_timeline(OPS, [(1000, 0, 4200)], again)
    swaps = (Swap(0, trigger_op=3), Swap(1))
    for absences, expected in (({0}, False), ({1}, False), ({0, 1}, True)):
        choice = LossyChoice(frozenset(absences), 0, 1)
        known = with_lossy({}, timeline, swaps, far(0.5, FAST), choice, RateRange(90, 40))
        assert ("x:0" in known) == expected
        assert (worthwhile_rates(timeline, swaps, far(0.5, FAST), choice) is not None) == expected
    # It is eligible if only the other absence is swapped.
    alone = with_lossy(
        {}, timeline, swaps[1:], far(1, FAST), LossyChoice(frozenset({1}), 0, 1), RateRange(90, 40)
    )
    assert "x:0" in alone
