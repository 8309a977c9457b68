"""Plan one graph from its profile: choose swaps with a planner and write them as a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from tfswap.machine.far_tier import FILE, FarTier
from tfswap.machine.link import NO_LIMIT, Link
from tfswap.machine.machine import Machine
from tfswap.plan.node_names import clone_name
from tfswap.plan.schema import FunctionPlan
from tfswap.planning.memory_order_edges import memory_order_edges
from tfswap.planning.planners import portfolio
from tfswap.planning.planners.assignment import AUTO, Assignment, FarMemory, Ratios
from tfswap.planning.planners.bound import least_wait_ns
from tfswap.planning.planners.decision import Decision
from tfswap.planning.planners.delay_prefetches import delay_prefetches
from tfswap.planning.planners.lossy_choice import (
    LossyChoice,
    RateRange,
    with_lossy,
    worthwhile_rates,
)
from tfswap.planning.planners.place_search import assign, evaluate_places, strip_places
from tfswap.planning.planners.reselect_with_codecs import reselect_with_codecs
from tfswap.planning.simulator import Swap
from tfswap.planning.tensor_swaps import planned_swaps, tensor_swaps
from tfswap.step.graph import StepGraph
from tfswap.step.profile import Profile, kept_activations
from tfswap.step.timeline import Timeline


class _Placed(NamedTuple):
    """A planner's decision with the places of its tensors in far memory."""

    decision: Decision
    assignment: Assignment
    ratios: Ratios
    rates: RateRange | None


@dataclass(frozen=True)
class Planned:
    """A plan of one graph and the simulation behind it.

    Attributes:
        function: The plan.
        profile: The step that the swaps refer to, including clones of recomputed ops.
        decision: The planner's decision, made for one link.
        assignment: The place of each tensor in far memory, and the simulation with these places.
        least_wait_ns: Lower bound on the wait of any plan of swaps within this budget and on this
            link, assuming that every tensor compresses as well as the best one.
        budget_bytes: Upper limit of the load.
        rates: The range of worthwhile lossy rates; None if lossy codecs are not allowed or do not
            pay.
        links: Links of far memory, by the simulator's index of the tier.
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
    log: Callable[[str], None] | None = None,
    *,
    far: FarMemory | None = None,
    ratios: Ratios | None = None,
    codec: str | None = AUTO,
    graph: StepGraph | None = None,
    lossy: LossyChoice | None = None,
) -> Planned:
    """Plan one graph.

    Args:
        profile: Its profiled step.
        policy: A planner's name, or "auto".
        machine: Speeds of the link.
        budget_bytes: Upper limit of the load.
        planning_time_s: Search time of "auto", in seconds.
        log: Called with progress lines if planning takes over a second.
        far: The tiers of far memory. None: one unbounded tier behind the machine's link.
        ratios: Compression ratios of the tensors, by codec.
        codec: The rule for encoding, see `tfswap.planning.planners.place_search`.
        graph: The graph. If given, the plan gets order edges that keep the load as simulated.
        lossy: What may be encoded lossily. None: nothing.

    Raises:
        BudgetTooSmall: No plan of this policy fits the budget.
        FarMemoryTooSmall: Far memory cannot hold what is swapped out.
        ValueError: The policy is unknown.
    """
    if far is None:
        far = FarMemory(FarTier.of_host(machine, NO_LIMIT))

    def new_deadline_s() -> float:
        return time.monotonic() + planning_time_s

    def assign_places(decision: Decision, link: Link) -> _Placed:
        timeline = decision.timeline or profile.timeline
        if policy == portfolio.AUTO:
            # Compressed tensors return earlier than on this link.
            swaps = delay_prefetches(
                timeline, decision.swaps, [link], budget_bytes, new_deadline_s()
            )
            decision = replace(decision, swaps=swaps)
        rates = worthwhile_rates(timeline, decision.swaps, far, lossy) if lossy else None
        all_ratios = _with_lossy(ratios or {}, timeline, decision.swaps, far, lossy, rates)
        assignment = assign(
            timeline,
            decision.swaps,
            far,
            all_ratios,
            codec=codec,
            budget_bytes=budget_bytes,
            deadline_s=new_deadline_s(),
        )
        return _Placed(decision, assignment, all_ratios, rates)

    def plan_for(link: Link) -> _Placed:
        decision = portfolio.plan(
            policy,
            profile.timeline,
            link,
            budget_bytes,
            planning_time_s=planning_time_s,
            log=log,
            only_swaps=True,
        )
        swapped = assign_places(decision, link)
        if policy != portfolio.AUTO:
            return swapped
        # Recomputing some tensors may cost less than the waits that remain with codecs.
        recomputed = portfolio.with_recomputes(
            decision, profile.timeline, link, budget_bytes, planning_time_s, log
        )
        if recomputed is decision:
            return swapped
        return min(
            swapped, assign_places(recomputed, link), key=lambda each: each.assignment.cost_ns
        )

    # Plan for the host's link or, if host memory is too small, for the file's.
    chosen = plan_for(machine)
    if far.file is not None and any(
        place.tier == FILE for place in chosen.assignment.places.values()
    ):
        chosen = min(chosen, plan_for(far.file), key=lambda each: each.assignment.cost_ns)
    decision, assignment, all_ratios, rates = chosen
    unswapped_step_ns = profile.timeline.step_ns
    profile = _with_clones(profile, decision.timeline)
    timeline = profile.timeline
    if policy == portfolio.AUTO:
        if codec == AUTO:
            decision, assignment = reselect_with_codecs(
                timeline, decision, assignment, far, all_ratios, budget_bytes, planning_time_s, log
            )
        delayed = delay_prefetches(
            timeline, assignment.swaps, far.links, budget_bytes, new_deadline_s()
        )
        swaps = strip_places(delayed)
        decision = replace(decision, swaps=swaps)
        assignment = evaluate_places(timeline, swaps, far, all_ratios, assignment.places)
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
        memory_edges = memory_order_edges(profile, graph, function, decision.swaps, budget_bytes)
        function = replace(function, order=(*function.order, *memory_edges))
    # As if every tensor compressed as well as the best one.
    best_ratio = min((place.ratio for place in assignment.places.values()), default=1.0)
    fastest = replace(
        far.host,
        out_bytes_per_s=machine.out_bytes_per_s / best_ratio,
        in_bytes_per_s=machine.in_bytes_per_s / best_ratio,
    )
    least = min(least_wait_ns(timeline, fastest, budget_bytes), assignment.result.stall_ns)
    links = tuple(far.links)
    return Planned(function, profile, decision, assignment, least, budget_bytes, rates, links)


def restore_planned(
    profile: Profile,
    function: FunctionPlan,
    policy: str,
    machine: Machine,
    budget_bytes: int,
    far: FarMemory,
) -> Planned:
    """Restore the simulation behind a plan that was made earlier from the same profile.

    Args:
        profile: Its profiled step.
        function: The plan, without recomputations.
        policy: The policy that made it.
        machine: Speeds of the link.
        budget_bytes: Upper limit of the load.
        far: The tiers of far memory.

    Raises:
        ValueError: The plan is of another step.
    """
    swaps, places = planned_swaps(profile, function)
    timeline = profile.timeline
    assignment = evaluate_places(timeline, swaps, far, {}, places)
    decision = Decision(policy, strip_places(swaps), assignment.result)
    least = min(least_wait_ns(timeline, machine, budget_bytes), assignment.result.stall_ns)
    links = tuple(far.links)
    return Planned(function, profile, decision, assignment, least, budget_bytes, links=links)


def reassign_places(
    planned: Planned,
    far: FarMemory,
    ratios: Ratios,
    codec: str | None,
    planning_time_s: float = portfolio.PLANNING_TIME_S,
    *,
    lossy: LossyChoice | None = None,
) -> tuple[Assignment, Assignment]:
    """Assign places again after the compression ratios have changed, keeping the swaps.

    Returns:
        The planned places under the new ratios, and the best places under the new ratios.
    """
    swaps, timeline = planned.decision.swaps, planned.profile.timeline
    deadline_s = time.monotonic() + planning_time_s
    ratios = _with_lossy(ratios, timeline, swaps, far, lossy, planned.rates)
    before = evaluate_places(timeline, swaps, far, ratios, planned.assignment.places)
    return before, assign(
        timeline,
        swaps,
        far,
        ratios,
        codec=codec,
        budget_bytes=planned.budget_bytes,
        deadline_s=deadline_s,
    )


def _with_clones(profile: Profile, timeline: Timeline | None) -> Profile:
    """Return the profile of a step with clones; the same profile if there are none."""
    if timeline is None or timeline.dataflow is None:
        return profile
    large = {profile.timeline.op_names[op] for op in profile.large_ops}
    clones = {
        clone_name(node, ordinal)
        for ordinal, recompute in enumerate(timeline.recomputes)
        for node in recompute.nodes
    }
    return replace(
        profile,
        timeline=timeline,
        large_ops=tuple(
            op for op, name in enumerate(timeline.op_names) if name in large or name in clones
        ),
        activations=kept_activations(timeline.absences, timeline.dataflow.graph),
    )


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
