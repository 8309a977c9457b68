"""The smallest budgets of a step, and the op that sets each of them."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from timelines import MIB, FakeMachine, crowded_timelines, make_timeline, timelines, training_step

from tfswap.machine.machine import Machine
from tfswap.planning import whatif
from tfswap.planning.least_budget import (
    LeastBudget,
    LeastBudgets,
    least_budgets,
    with_sections,
    with_swaps,
    without_swaps,
)
from tfswap.planning.planners import BudgetTooSmall, plan
from tfswap.step.op_floor import OpFloor, StepFloor
from tfswap.step.section_floor import SectionFloor
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline, peak_load

LINK = FakeMachine()
OPS = [(10 * i, 10 * i + 10) for i in range(6)]


def step(buffers: list[tuple[int, int, int]], *absences: Absence, **changes: object) -> Timeline:
    """Return six ops, A to F, of 10 ns; buffers in MiB."""
    sizes = [(size * MIB, alloc, free) for size, alloc, free in buffers]
    names: dict[str, object] = {"op_names": tuple("ABCDEF")}
    return make_timeline(OPS, sizes, absences, **(names | changes))


def test_unswapped_and_swapped_budgets_have_different_ops() -> None:
    # A's tensor is swapped out while D runs, at the unswapped peak. Then the peak is at B, where it
    # is not swapped out yet.
    timeline = step(
        [(40, 1, 58), (30, 12, 19), (50, 31, 39)],
        Absence(0, "A:0", 0, 1, 5),
        resident_bytes=5 * MIB,
    )
    least = least_budgets(timeline, LINK)
    assert least.unswapped == LeastBudget(95 * MIB, "D")
    assert least.swapped == LeastBudget(75 * MIB, "B")


def test_without_absences_budgets_are_equal() -> None:
    timeline = step([(40, 1, 58), (30, 12, 19)])
    assert least_budgets(timeline, LINK) == LeastBudgets(
        LeastBudget(70 * MIB, "B"), LeastBudget(70 * MIB, "B")
    )


def test_small_tensors_are_not_swapped() -> None:
    timeline = make_timeline(
        OPS,
        [(1000, 1, 58), (MIB, 31, 39)],
        (Absence(0, "A:0", 0, 0, 5),),
        op_names=tuple("ABCDEF"),
    )
    assert with_swaps(timeline, LINK) == LeastBudget(MIB + 1000, "D")


def test_sections_only_change_the_largest_op() -> None:
    records = [
        {"sections": 1, "bytes": 60 * MIB, "op": "conv"},
        {"sections": 2, "bytes": 32 * MIB, "op": "conv/section_0"},
        {"sections": 4, "bytes": 20 * MIB, "op": "dense"},
    ]
    swapped = LeastBudget(75 * MIB, "pool")
    assert with_sections(records, 1, swapped) == (
        SectionFloor(2, 47 * MIB, "conv/section_0"),
        SectionFloor(4, 35 * MIB, "dense"),
    )
    assert with_sections(records, 2, swapped)[0] == SectionFloor(2, 75 * MIB, "pool")
    assert with_sections(records, 8, swapped) == ()


def test_first_of_equal_peaks_is_reported() -> None:
    timeline = step([(40, 11, 19), (40, 41, 49)])
    assert without_swaps(timeline) == with_swaps(timeline, LINK) == LeastBudget(40 * MIB, "B")


def test_reported_op_is_still_running() -> None:
    # A runs throughout; B has ended when A's second buffer is allocated.
    timeline = make_timeline(
        [(0, 60), (10, 20), (70, 80)],
        [(3 * MIB, 12, 18), (8 * MIB, 40, 58), (2 * MIB, 71, 79)],
        op_names=("A", "B", "C"),
    )
    assert without_swaps(timeline) == LeastBudget(8 * MIB, "A")
    assert with_swaps(timeline, LINK) == LeastBudget(8 * MIB, "A")


def test_last_started_of_concurrent_ops_is_reported() -> None:
    timeline = make_timeline(
        [(0, 60), (10, 50), (20, 30)],
        [(3 * MIB, 1, 58), (8 * MIB, 40, 48)],
        op_names=("A", "B", "C"),
    )
    assert without_swaps(timeline).op == with_swaps(timeline, LINK).op == "B"


def test_previous_op_is_reported_in_a_pause() -> None:
    timeline = make_timeline(
        [(0, 10), (50, 60)], [(3 * MIB, 1, 58), (8 * MIB, 20, 30)], op_names=("A", "B")
    )
    assert without_swaps(timeline).op == with_swaps(timeline, LINK).op == "A"


def test_ops_without_duration() -> None:
    timeline = make_timeline(
        [(0, 10), (20, 20), (30, 40)], [(8 * MIB, 20, 25), (MIB, 31, 39)], op_names=("A", "B", "C")
    )
    assert without_swaps(timeline) == with_swaps(timeline, LINK) == LeastBudget(8 * MIB, "B")


def test_peak_before_the_first_op() -> None:
    before = make_timeline([(10, 20)], [(8 * MIB, 0, 5), (MIB, 11, 19)], op_names=("A",))
    expected = LeastBudget(8 * MIB, "(before the first op)")
    assert without_swaps(before) == with_swaps(before, LINK) == expected
    assert without_swaps(make_timeline([], [], resident_bytes=7)) == LeastBudget(7, expected.op)
    assert with_swaps(make_timeline([], [], resident_bytes=7), LINK).bytes == 7


def test_step_with_only_swappable_buffers() -> None:
    absence = Absence(0, "A:0", -1, 0, 0)
    timeline = make_timeline(
        [(0, 10)], [(MIB, 0, OUTLIVES_STEP_NS)], (absence,), op_names=("A",), step_ns=30
    )
    least = least_budgets(timeline, LINK)
    assert least.unswapped.bytes == MIB and 0 <= least.swapped.bytes <= MIB


@settings(max_examples=150, deadline=None)
@given(timelines() | crowded_timelines())
def test_least_budget_is_reached_and_tight(timeline: Timeline) -> None:
    # Scale to MiB: smaller buffers are not swapped.
    timeline = make_timeline(
        list(zip(timeline.op_start_ns.tolist(), timeline.op_end_ns.tolist(), strict=True)),
        list(
            zip(
                (timeline.buffer_bytes * MIB).tolist(),
                timeline.buffer_alloc_ns.tolist(),
                timeline.buffer_free_ns.tolist(),
                strict=True,
            )
        ),
        timeline.absences,
        timeline.resident_bytes * MIB,
        op_gateable=timeline.op_gateable,
        op_context=timeline.op_context,
        step_ns=timeline.step_ns,
    )
    least = least_budgets(timeline, LINK)
    assert least.unswapped.bytes == peak_load(timeline)
    assert least.swapped.bytes <= least.unswapped.bytes
    assert {least.unswapped.op, least.swapped.op} <= {*timeline.op_names, "(before the first op)"}
    if least.swapped.bytes > 1:
        found = plan("greedy", timeline, LINK, least.swapped.bytes)
        assert found.result.peak_bytes <= least.swapped.bytes
        with pytest.raises(BudgetTooSmall) as error:
            plan("greedy", timeline, LINK, least.swapped.bytes - 1)
        assert error.value.op_name == least.swapped.op


def test_whatif_gives_the_same_budget() -> None:
    timeline = training_step(blocks=3)
    link = Machine("a link", 4e9, 4e9)
    assert with_swaps(timeline, link).bytes == whatif.least_budget_bytes(timeline, link)


FLOORS = (
    SectionFloor(2, 50 * MIB, "B"),
    SectionFloor(4, 20 * MIB, "C"),
    SectionFloor(8, 20 * MIB, "D"),
)
LEAST = LeastBudgets(LeastBudget(100 * MIB, "A"), LeastBudget(60 * MIB, "B"), FLOORS)


def test_fewest_sufficient_sections() -> None:
    assert LEAST.sectioned == FLOORS[1] and LEAST.sections_help
    assert LEAST.sections_within(50 * MIB) == FLOORS[0]
    assert LEAST.sections_within(49 * MIB) == FLOORS[1]
    assert LEAST.sections_within(19 * MIB) is None
    unknown = LeastBudgets(LEAST.unswapped, LEAST.swapped)
    assert unknown.sectioned is None and not unknown.sections_help


def test_least_budgets_as_json() -> None:
    assert json.loads(json.dumps(asdict(LEAST))) == {
        "unswapped": {"bytes": 100 * MIB, "op": "A"},
        "swapped": {"bytes": 60 * MIB, "op": "B"},
        "floor": None,
        "weights_leave": False,
        "sections": [
            {"sections": 2, "bytes": 50 * MIB, "op": "B"},
            {"sections": 4, "bytes": 20 * MIB, "op": "C"},
            {"sections": 8, "bytes": 20 * MIB, "op": "D"},
        ],
    }


def too_small(budget_bytes: int) -> BudgetTooSmall:
    return BudgetTooSmall(
        "Too small.",
        budget_bytes=budget_bytes,
        floor_bytes=60 * MIB,
        op_name="B",
        op_bytes=60 * MIB,
        suggestion_bytes=60 * MIB,
    )


@pytest.mark.parametrize(
    ("budget_mib", "floors", "advice"),
    [
        (
            30,
            (),
            " Or try AutoSwap(sections=2) or more: ops that compute each example independently "
            "then process the batch part by part, and need less memory at once.",
        ),
        (
            30,
            FLOORS,
            " Or use AutoSwap(sections=4): the least is then 20.0 MiB, while op 'C' runs.",
        ),
        (
            10,
            FLOORS,
            " AutoSwap(sections=4) helps, but not enough: the least is then 20.0 MiB, while "
            "op 'C' runs.",
        ),
        (10, (SectionFloor(2, 60 * MIB, "B"),), ""),
        (60, FLOORS, ""),  # swaps alone can keep the budget: only the policy failed
    ],
)
def test_advice_where_swaps_cannot_keep_a_budget(
    budget_mib: int, floors: tuple[SectionFloor, ...], advice: str
) -> None:
    least = LeastBudgets(LEAST.unswapped, LEAST.swapped, floors)
    assert least.with_advice(too_small(budget_mib * MIB)) == f"Too small.{advice}"


STEP = StepFloor(
    OpFloor("S", "Sub", 0, 4 * MIB, 0, 0, 50 * MIB), OpFloor("T", "Mul", 4 * MIB, 0, 0, 0, MIB)
)


@pytest.mark.parametrize(
    ("floor", "weights_leave", "advice"),
    [
        (
            STEP,
            False,
            f"Without a plan, swaps on demand need at least 54.0 MiB: {STEP.staying}. Where "
            "weights leave, too, they need at least 5.0 MiB.",
        ),
        (
            STEP,
            True,
            f"Without a plan, swaps on demand need at least 5.0 MiB: {STEP.streamed}.",
        ),
        (
            StepFloor(STEP.staying, STEP.staying),
            False,
            f"Without a plan, swaps on demand need at least 54.0 MiB: {STEP.staying}.",
        ),
    ],
)
def test_advice_names_what_swaps_on_demand_need(
    floor: StepFloor, weights_leave: bool, advice: str
) -> None:
    known = (SectionFloor(2, 60 * MIB, "B"),)
    least = LeastBudgets(LEAST.unswapped, LEAST.swapped, known, floor, weights_leave)
    assert least.with_advice(too_small(10 * MIB)) == f"Too small. {advice}"


def test_weights_leave_where_a_variable_has_an_absence() -> None:
    buffer = [(4, 0, OUTLIVES_STEP_NS)]
    of_variable = Absence(0, "v:0", -1, 2, 1, ("C",), users=("B", "C"))
    for absences in ((), (of_variable,)):
        least = least_budgets(step(buffer, *absences), LINK, floor=STEP)
        assert least.floor == STEP and least.weights_leave is bool(absences)
