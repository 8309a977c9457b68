"""Conversion of a plan's swaps between the pass's form and the simulator's form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from timelines import make_timeline

from tfswap.plan.schema import FunctionPlan
from tfswap.planning.planners.assignment import Place
from tfswap.planning.simulator import Swap
from tfswap.planning.tensor_swaps import planned_swaps, tensor_swaps
from tfswap.step.profile import Profile
from tfswap.step.timeline import Absence

MIB = 1 << 20
TIMELINE = make_timeline(
    [(10 * i, 10 * (i + 1)) for i in range(8)],
    [(4 * MIB, 0, 80), (2 * MIB, 10, 80)],
    (
        Absence(0, "a:0", 0, 0, 3, ("op3", "op6")),
        Absence(0, "a:0", 0, 3, 6, ("op6",)),
        Absence(1, "b:1", 1, 1, 7, ("op7",)),
    ),
)
PROFILE = Profile(TIMELINE, "f" * 16, (), 0, 0)
PLACES = {"a:0": Place("compressed", "bfp", 0.4), "b:1": Place("file")}
SWAPS = (Swap(0, 2, 2), Swap(1, -1, 5), Swap(2, 4, 6))


def plan() -> FunctionPlan:
    return FunctionPlan(PROFILE.fingerprint, tensor_swaps(PROFILE, SWAPS, PLACES))


def test_round_trip() -> None:
    swaps, places = planned_swaps(PROFILE, plan())
    assert [(s.absence, s.gate_op, s.trigger_op) for s in swaps] == [
        (s.absence, s.gate_op, s.trigger_op) for s in SWAPS
    ]
    assert [swap.tier for swap in swaps] == [0, 0, 1]
    assert [swap.far_bytes for swap in swaps] == [round(0.4 * 4 * MIB)] * 2 + [2 * MIB]
    assert places == PLACES


def test_a_plan_for_another_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="the plan is for the graph 0000000000000000"):
        planned_swaps(PROFILE, replace(plan(), fingerprint="0" * 16))
    (first, *others) = plan().swaps
    strange = replace(plan(), swaps=(replace(first, gates=("missing",)), *others))
    with pytest.raises(ValueError, match="no op 'missing'"):
        planned_swaps(PROFILE, strange)
    strange = replace(plan(), swaps=(replace(first, tensor="z:0"), *others))
    with pytest.raises(ValueError, match="no absence of 'z:0'"):
        planned_swaps(PROFILE, strange)
