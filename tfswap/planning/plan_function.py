"""From a profile to the plan of one graph: choose with a planner, write down what was chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from tfswap.machine.far_tier import FILE, FarTier
from tfswap.machine.link import NO_LIMIT, Link
from tfswap.machine.machine import Machine
from tfswap.plan.schema import FunctionPlan
from tfswap.planning.memory_order_edges import memory_order_edges
from tfswap.planning.planners import portfolio
from tfswap.planning.planners.assignment import (
    AUTO,
    Assignment,
    FarMemory,
    Ratios,
    assign,
    at_places,
    without_places,
)
from tfswap.planning.planners.bound import least_wait_ns
from tfswap.planning.planners.decision import Decision
from tfswap.planning.planners.early_returns import delay_prefetches
from tfswap.planning.planners.lossy_choice import (
    LossyChoice,
    RateRange,
    with_lossy,
    worthwhile_rates,
)
from tfswap.planning.planners.reselect_with_codecs import reselect_with_codecs
from tfswap.planning.recompute import remade_profile
from tfswap.planning.simulator import Swap
from tfswap.planning.tensor_swaps import planned_swaps, tensor_swaps
from tfswap.step.graph import StepGraph
from tfswap.step.profile import Profile
from tfswap.step.timeline import Timeline


class _Placed(NamedTuple):
    """What a planner decided, and where that goes."""

    decision: Decision
    assignment: Assignment
    ratios: Ratios
    rates: RateRange | None


@dataclass(frozen=True)
class Planned:
    """A plan of one graph and the simulation behind it.

    Attributes:
        function: The plan.
        profile: The step that the swaps are of: with clones of what is made again.
        decision: What the planner said, under one link.
        assignment: Where in far memory each tensor goes; simulated with that.
        least_wait_ns: What no plan of swaps waits less than, in this budget and on this link,
            were every tensor kept as small as the smallest of these.
        budget_bytes: What the load may reach.
        rates: Between which lossy codecs are worth it; None if they may not be used, or are not.
        links: Of far memory, by the simulator's number of the tier.
    """

    function: FunctionPlan
    profile: Profile
    decision: Decision
    assignment: Assignment
    least_wait_ns: int
    budget_bytes: int
    rates: RateRange | None = None
    links: tuple[Link, ...] = ()


def plan_function(
    profile: Profile,
    policy: str,
    machine: Machine,
    budget_bytes: int,
    planning_time_s: float = portfolio.PLANNING_TIME_S,
    say: Callable[[str], None] | None = None,
    *,
    far: FarMemory | None = None,
    ratios: Ratios | None = None,
    codec: str | None = AUTO,
    graph: StepGraph | None = None,
    lossy: LossyChoice | None = None,
) -> Planned:
    """Plans one graph.

    Args:
        profile: Its profiled step.
        policy: A planner's name, or "auto".
        machine: Speeds of the link.
        budget_bytes: What the load may reach.
        planning_time_s: How long "auto" may search, in seconds.
        say: Called with lines of progress where planning takes over a second.
        far: The tiers of far memory. None: one without bounds behind the machine's link.
        ratios: What codecs make of the tensors.
        codec: Who decides about encoding, see `tfswap.planning.planners.assignment`.
        graph: The graph, for the order of ops that keeps the load what was simulated.
        lossy: What may be kept lossily. None: nothing.

    Raises:
        BudgetTooSmall: No plan of this policy fits the budget.
        FarMemoryTooSmall: What is to leave has room nowhere.
        ValueError: There is no such policy.
    """
    if far is None:
        far = FarMemory(FarTier.of_host(machine, NO_LIMIT))

    def deadline_after_s() -> float:
        return time.monotonic() + planning_time_s

    def placed(decision: Decision, link: Link) -> _Placed:
        timeline = decision.timeline or profile.timeline
        if policy == portfolio.AUTO:
            # What codecs make smaller will come back earlier than this link has it.
            swaps = delay_prefetches(
                timeline, decision.swaps, [link], budget_bytes, deadline_after_s()
            )
            decision = replace(decision, swaps=swaps)
        rates = worthwhile_rates(timeline, decision.swaps, far, lossy) if lossy else None
        known = _with_lossy(ratios or {}, timeline, decision.swaps, far, lossy, rates)
        assignment = assign(
            timeline,
            decision.swaps,
            far,
            known,
            codec=codec,
            budget_bytes=budget_bytes,
            deadline_s=deadline_after_s(),
        )
        return _Placed(decision, assignment, known, rates)

    def under(link: Link) -> _Placed:
        decision = portfolio.plan(
            policy,
            profile.timeline,
            link,
            budget_bytes,
            planning_time_s=planning_time_s,
            say=say,
            only_swaps=True,
        )
        swapped = placed(decision, link)
        if policy != portfolio.AUTO:
            return swapped
        # What codecs leave to wait for may cost more than to make some of it again.
        again = portfolio.relieved(
            decision, profile.timeline, link, budget_bytes, planning_time_s, say
        )
        if again is decision:
            return swapped
        return min(swapped, placed(again, link), key=lambda each: each.assignment.cost_ns)

    # Under the host's link, or (it is too small) the file's.
    chosen = under(machine)
    if far.file is not None and any(
        place.tier == FILE for place in chosen.assignment.places.values()
    ):
        chosen = min(chosen, under(far.file), key=lambda each: each.assignment.cost_ns)
    decision, assignment, known, rates = chosen
    unswapped_step_ns = profile.timeline.step_ns
    profile = remade_profile(profile, decision.timeline)
    timeline = profile.timeline
    if policy == portfolio.AUTO:
        if codec == AUTO:
            decision, assignment = reselect_with_codecs(
                timeline, decision, assignment, far, known, budget_bytes, planning_time_s, say
            )
        moved = delay_prefetches(
            timeline, assignment.swaps, far.links, budget_bytes, deadline_after_s()
        )
        swaps = without_places(moved)
        decision = replace(decision, swaps=swaps)
        assignment = at_places(timeline, swaps, far, known, assignment.places)
    function = FunctionPlan(
        fingerprint=profile.fingerprint,
        swaps=tensor_swaps(profile, decision.swaps, assignment.places),
        order=profile.order,
        reserve=True,
        predicted_peak_bytes=int(assignment.result.peak_bytes),
        predicted_step_ns=int(assignment.cost_ns),
        unswapped_peak_bytes=profile.unswapped_peak_bytes,
        unswapped_step_ns=unswapped_step_ns,
        recomputes=timeline.recomputes,
    )
    if graph is not None:
        if timeline.dataflow is not None:
            graph = timeline.dataflow.graph
        kept = memory_order_edges(profile, graph, function, decision.swaps, budget_bytes)
        function = replace(function, order=(*function.order, *kept))
    # As if every tensor got as small as the smallest.
    smallest = min((place.ratio for place in assignment.places.values()), default=1.0)
    fastest = replace(
        far.host,
        out_bytes_per_s=machine.out_bytes_per_s / smallest,
        in_bytes_per_s=machine.in_bytes_per_s / smallest,
    )
    least = min(least_wait_ns(timeline, fastest, budget_bytes), assignment.result.stall_ns)
    links = tuple(far.links)
    return Planned(function, profile, decision, assignment, least, budget_bytes, rates, links)


def planned_before(
    profile: Profile,
    function: FunctionPlan,
    policy: str,
    machine: Machine,
    budget_bytes: int,
    far: FarMemory,
) -> Planned:
    """The simulation behind a plan that was made earlier, of the same profile.

    Args:
        profile: Its profiled step.
        function: The plan; nothing is made again in it.
        policy: By which it was made.
        machine: Speeds of the link.
        budget_bytes: What the load may reach.
        far: The tiers of far memory.

    Raises:
        ValueError: It is of another step.
    """
    swaps, places = planned_swaps(profile, function)
    timeline = profile.timeline
    assignment = at_places(timeline, swaps, far, {}, places)
    decision = Decision(policy, without_places(swaps), assignment.result)
    least = min(least_wait_ns(timeline, machine, budget_bytes), assignment.result.stall_ns)
    links = tuple(far.links)
    return Planned(function, profile, decision, assignment, least, budget_bytes, links=links)


def placed_anew(
    planned: Planned,
    far: FarMemory,
    ratios: Ratios,
    codec: str | None,
    planning_time_s: float = portfolio.PLANNING_TIME_S,
    *,
    lossy: LossyChoice | None = None,
) -> tuple[Assignment, Assignment]:
    """What codecs make of tensors has changed: where would the same swaps go now?

    Returns:
        The places that were planned, with what they come to now, and the best ones now.
    """
    swaps, timeline = planned.decision.swaps, planned.profile.timeline
    deadline_s = time.monotonic() + planning_time_s
    ratios = _with_lossy(ratios, timeline, swaps, far, lossy, planned.rates)
    before = at_places(timeline, swaps, far, ratios, planned.assignment.places)
    return before, assign(
        timeline,
        swaps,
        far,
        ratios,
        codec=codec,
        budget_bytes=planned.budget_bytes,
        deadline_s=deadline_s,
    )


def placed_as_planned(
    planned: Planned, far: FarMemory, ratios: Ratios, *, lossy: LossyChoice | None = None
) -> Assignment:
    """What a plan comes to where its profile, or what codecs make of tensors, is another one."""
    swaps, timeline = planned.decision.swaps, planned.profile.timeline
    ratios = _with_lossy(ratios, timeline, swaps, far, lossy, planned.rates)
    return at_places(timeline, swaps, far, ratios, planned.assignment.places)


def _with_lossy(
    ratios: Ratios,
    timeline: Timeline,
    swaps: Iterable[Swap],
    far: FarMemory,
    lossy: LossyChoice | None,
    rates: RateRange | None,
) -> Ratios:
    if lossy is None or rates is None:
        return ratios
    return with_lossy(ratios, timeline, swaps, far, lossy, rates)
