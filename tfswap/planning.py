"""From a profile to the plan of one graph: choose with a planner, write down what was chosen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from tfswap.machine import Machine
from tfswap.plan import FunctionPlan, Return, TensorSwap
from tfswap.planners import portfolio
from tfswap.planners.bound import least_wait_ns
from tfswap.planners.decision import Decision
from tfswap.profile import Profile
from tfswap.simulator import Swap
from tfswap.timeline import Absence


@dataclass(frozen=True)
class Planned:
    """A plan of one graph and the simulation behind it.

    Attributes:
        function: The plan.
        decision: What the planner said.
        least_wait_ns: What no plan of swaps waits less than, in this budget and on this link.
    """

    function: FunctionPlan
    decision: Decision
    least_wait_ns: int


def plan_function(
    profile: Profile,
    policy: str,
    machine: Machine,
    budget_bytes: int,
    planning_time_s: float = portfolio.PLANNING_TIME_S,
    say: Callable[[str], None] | None = None,
) -> Planned:
    """Plans one graph.

    Args:
        profile: Its profiled step.
        policy: A planner's name, or "auto".
        machine: Speeds of the link.
        budget_bytes: What the load may reach.
        planning_time_s: How long "auto" may search, in seconds.
        say: Called with lines of progress where planning takes over a second.

    Raises:
        BudgetTooSmall: No plan of this policy fits the budget.
        ValueError: There is no such policy.
    """
    timeline = profile.timeline
    decision = portfolio.plan(
        policy, timeline, machine, budget_bytes, planning_time_s=planning_time_s, say=say
    )
    copied_ns = machine.copy_ns(decision.result.bytes_out, decision.result.bytes_in)
    function = FunctionPlan(
        fingerprint=profile.fingerprint,
        swaps=tensor_swaps(profile, decision.swaps),
        order=profile.order,
        reserve=True,
        predicted_peak_bytes=int(decision.result.peak_bytes),
        predicted_step_ns=int(decision.result.step_ns + copied_ns),
        unswapped_peak_bytes=profile.unswapped_peak_bytes,
        unswapped_step_ns=timeline.step_ns,
    )
    least = min(least_wait_ns(timeline, machine, budget_bytes), decision.result.stall_ns)
    return Planned(function, decision, least)


def tensor_swaps(profile: Profile, swaps: tuple[Swap, ...]) -> tuple[TensorSwap, ...]:
    """The pass's view of a planner's choices: by tensor, with names instead of numbers."""
    timeline = profile.timeline
    chosen: dict[str, list[tuple[Absence, Swap]]] = defaultdict(list)
    for swap in sorted(swaps):
        absence = timeline.absences[swap.absence]
        chosen[absence.tensor].append((absence, swap))
    return tuple(
        _tensor_swap(profile, tensor, absences) for tensor, absences in sorted(chosen.items())
    )


def _tensor_swap(profile: Profile, tensor: str, chosen: list[tuple[Absence, Swap]]) -> TensorSwap:
    timeline = profile.timeline
    returns = []
    for i, (absence, swap) in enumerate(chosen):
        later = set(chosen[i + 1][0].consumers) if i + 1 < len(chosen) else set()
        returns.append(
            Return(
                trigger=timeline.op_names[swap.trigger_op] if swap.trigger_op >= 0 else "",
                consumers=tuple(name for name in absence.consumers if name not in later),
            )
        )
    gates = tuple(timeline.op_names[swap.gate_op] for _, swap in chosen if swap.gate_op >= 0)
    size_bytes = int(timeline.buffer_bytes[chosen[0][0].buffer])
    return TensorSwap(tensor, size_bytes, gates, tuple(returns))
