from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timelines import FakeMachine, crowded_timelines, make_timeline, swaps_for, training_step

from tfswap.jobs.job_trace import job_trace
from tfswap.jobs.joint_division import JobClaim, JointDivision
from tfswap.jobs.joint_simulation import PlannedJob, simulate_jobs
from tfswap.jobs.slowdown import decision_at, planned_curve
from tfswap.machine.machine import Machine
from tfswap.planning.simulator import Swap, simulate
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline, crosses_step_end, peak_load

# Six ops of 10 ns. A buffer of 20 bytes is swapped out from the end of op 0 to the start of op 5;
# its copies take 20 ns each, and so fill the gap of 40 ns.
STEP = make_timeline(
    [(i * 10, i * 10 + 10) for i in range(6)],
    [(20, 1, OUTLIVES_STEP_NS)],
    (Absence(0, "a:0", producer_op=0, after_op=0, before_op=5),),
)
SWAP = Swap(0, trigger_op=2)


def test_a_single_job_matches_the_simulator() -> None:
    (outcome,) = simulate_jobs([PlannedJob(STEP, (SWAP,), FakeMachine())])
    assert outcome.step_ns == simulate(STEP, [SWAP], FakeMachine()).step_ns == 60
    assert (outcome.link_share, outcome.copying) == (1.0, pytest.approx(20 / 60, rel=0.3))


@given(crowded_timelines(), st.data())
def test_any_single_job_matches_the_simulator(timeline: Timeline, data: st.DataObject) -> None:
    within = tuple(
        swap
        for swap in data.draw(swaps_for(timeline))
        if not crosses_step_end(timeline, timeline.absences[swap.absence])
    )
    swaps = tuple(
        Swap(swap.absence, swap.gate_op, swap.trigger_op)
        for swap in within
        if timeline.absences[swap.absence].producer_op >= 0
    )
    link = FakeMachine(out_latency_ns=3, in_latency_ns=2)
    (outcome,) = simulate_jobs([PlannedJob(timeline, swaps, link)])
    assert outcome.step_ns == pytest.approx(simulate(timeline, swaps, link).step_ns, abs=0.01)


def test_two_jobs_on_a_busy_link_take_up_to_twice_as_long() -> None:
    busy = PlannedJob(STEP, (SWAP,), FakeMachine(0.25e9, 0.25e9))  # 80 ns each way
    alone = simulate_jobs([busy])[0]
    assert alone.step_ns > 150
    both = simulate_jobs([busy, busy], steps=10)
    for outcome in both:
        assert alone.step_ns * 1.05 < outcome.step_ns <= 2 * alone.step_ns + 1
        assert 0.45 < outcome.link_share < 0.95


def test_jobs_without_copies_do_not_slow_others_down() -> None:
    swapping = PlannedJob(STEP, (SWAP,), FakeMachine())
    idle = PlannedJob(STEP, (), FakeMachine())
    outcomes = simulate_jobs([swapping, idle, idle])
    assert [outcome.step_ns for outcome in outcomes] == pytest.approx([60, 60, 60])
    assert outcomes[0].link_share == outcomes[1].link_share == 1.0
    assert outcomes[1].copying == 0.0


def test_jobs_with_different_step_times() -> None:
    slow = make_timeline([(i * 1000, i * 1000 + 1000) for i in range(6)], [(5, 1, 6000)])
    outcomes = simulate_jobs(
        [PlannedJob(STEP, (SWAP,), FakeMachine()), PlannedJob(slow, (), FakeMachine())]
    )
    assert [outcome.step_ns for outcome in outcomes] == pytest.approx([60, 6000])
    assert simulate_jobs([]) == []


FAST, SLOW = Machine("fast", 40e9, 40e9), Machine("slow", 0.3e9, 0.3e9)


def claims_of(*links: Machine, held: int = 0) -> list[JobClaim]:
    step = training_step(blocks=4, layers=2)
    peak = peak_load(step)
    return [
        JobClaim(f"job {i}", 1, 10 * peak, held_bytes=held, trace=job_trace(step, link))
        for i, link in enumerate(links)
    ]


def test_the_job_that_swapping_slows_most_gets_most() -> None:
    claims = claims_of(FAST, SLOW)
    peak = peak_load(claims[0].trace.timeline)
    division = JointDivision().divide(claims, int(1.6 * peak))
    assert sum(division.budget_bytes.values()) <= 1.6 * peak
    assert division.budget_bytes["job 1"] > division.budget_bytes["job 0"]
    even = {claim.job: int(0.8 * peak) for claim in claims}
    assert sum(division.slowdowns.values()) <= sum(
        planned_curve(c.trace.timeline, c.trace.link).at(even[c.job]) for c in claims
    )


def test_the_link_is_shared_in_the_prediction() -> None:
    claims = claims_of(SLOW, SLOW)
    least = planned_curve(claims[0].trace.timeline, SLOW).least_bytes
    division = JointDivision().divide(claims, int(2.2 * least))
    assert set(division.link_shares) == {"job 0", "job 1"}
    assert all(0.3 <= share < 1 for share in division.link_shares.values())
    for claim in claims:
        alone = decision_at(claim.trace.timeline, SLOW, division.budget_bytes[claim.job])
        alone_ns = alone.result.step_ns / claim.trace.timeline.step_ns
        assert division.slowdowns[claim.job] >= alone_ns - 0.01


def test_unknown_jobs_share_evenly_and_running_jobs_are_not_starved() -> None:
    new, runs = JobClaim("new", 1, 1000), JobClaim("runs", 1, 1000, held_bytes=1000)
    budgets = JointDivision().divide([runs, new], 1000).budget_bytes
    assert budgets["runs"] == pytest.approx(500, abs=2)
    large = JobClaim("large", 800, 1000)
    assert set(JointDivision().divide([runs, large], 1000).budget_bytes) == {"runs"}
    smaller = JobClaim("smaller", 700, 1000)
    assert JointDivision().divide([runs, smaller], 1000).budget_bytes["runs"] >= 250


def test_every_job_gets_at_least_its_least_budget_and_its_minimum() -> None:
    claims = claims_of(FAST, SLOW)
    least = planned_curve(claims[0].trace.timeline, FAST).least_bytes
    asked = JobClaim("asks", 3 * least, 10 * least)
    for policy in ("slowdown", "weights"):
        budgets = JointDivision(policy).divide([*claims, asked], 6 * least).budget_bytes
        assert budgets["asks"] >= 3 * least
        assert min(budgets["job 0"], budgets["job 1"]) >= least
        assert sum(budgets.values()) <= 6 * least
