"""tvDNN's optimal schedule: a MILP chooses the absences and when each copy runs.

Source: Park, Cho, Jung, Lee, "tvDNN: GPU memory virtualization for deep learning with memory object
sectioning", PPoPP 2018, a poster that mentions an ILP for the optimal schedule without giving it.
This is a reconstruction over the buffers of a timeline: where a graph is cut into sections
(``AutoSwap(sections=)``), these are sections, as in the paper.

Moments k are intervals [t_k, v_k) in which the load is L_k, above the budget B, and no gap ends.
Stalls happen where ops start: t_k of the recorded step becomes T_k = t_k + S_k, and v_k becomes
V_k, with S >= 0 and ascending. Each gap g has b_g bytes, takes o_g ns out and i_g ns in, and has
binary variables:

* u_g: it is used; x_gk: its copy-out has ended by T_k; y_gk: its copy-in begins at V_k or later.
  x ascends to u with k, y descends from u: in moment k the buffer is absent if x + y - u = 1.
* memory: sum over the gaps around k of b_g (x_gk + y_gk - u_g) >= L_k - B
* link out, first come, first served: C_j >= C_(j-1) + o_j u_j and C_j >= R_j + o_j u_j, where R_j
  is the end of the producer of j; C_j <= T_k if x_jk. Also, for all R and k: sum of o_j x_jk over
  those produced from R on <= T_k - R. Gaps with one far copy share one copy-out.
* link in: for all k and D: sum of i_g y_gk over those needed up to D <= D - V_k
* the total wait is at most W; any solution is accepted.

W is searched instead of minimised: with W given, most x and y are known (a copy-out that would end
more than W late has not ended in k), and the rest is solved in seconds. The program starts with
about thirty moments; moments at which a plan exceeds the budget are added. Fewer moments only
lower the bound.

What the MILP cannot express exactly is relaxed: copies-in may be preempted, stalls need not end
where a copy does, and absences across the step's end are always copied out in time. So every plan
that the simulator finds within the budget satisfies the MILP, and where it has no solution no plan
waits W or less. A solution becomes gates and triggers, with copies-in in the order of their
deadlines. Absences are added where these exceed the budget, swaps that the budget does not need are
dropped, and a second of `improve`'s local search repairs longer waits than predicted. The simulator
decides about every plan.

Departures: buffers below ``min_bytes`` are not swapped, in the plan and in the bound; a neighbour
replaces an op that the graph does not allow as an anchor; the result is the best of
`tvdnn_heuristic`, `greedy` and the solutions, so it may be one of the former if the time is over or
a solution waits longer than predicted.
"""

from __future__ import annotations

import importlib.util
import time
from dataclasses import replace

from tfswap.machine.link import Link
from tfswap.planning.planners import greedy
from tfswap.planning.planners.decision import MIB, BudgetTooSmall, Decision, cost, plan_over_budget
from tfswap.planning.planners.ilp.search import Search
from tfswap.planning.planners.ilp.step import POLICY as POLICY
from tfswap.planning.planners.ilp.step import Step
from tfswap.planning.planners.papers import tvdnn
from tfswap.planning.simulator import simulate
from tfswap.step.timeline import Timeline, peak_load


def plan_ilp(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    min_bytes: int = MIB,
    time_limit_s: float = 10.0,
) -> Decision:
    """Plan with ``tvdnn_ilp``.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: upper limit of the load.
        min_bytes: smaller buffers are not swapped. Default 1 MiB.
        time_limit_s: when the search ends with the best plan so far. Default 10 s.

    Returns:
        The plan with the least wait, with a note of its maximal distance from the optimum.

    Raises:
        BudgetTooSmall: if no plan was found within the budget.
        ValueError: if SciPy is not installed.
    """
    return optimum(timeline, machine, budget_bytes, min_bytes=min_bytes, time_limit_s=time_limit_s)[
        0
    ]


def optimum(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    min_bytes: int = MIB,
    time_limit_s: float = 10.0,
) -> tuple[Decision, int]:
    """Return the decision of `plan_ilp`, and a lower bound in ns on the wait of any plan."""
    begun_s = time.monotonic()
    if importlib.util.find_spec("scipy") is None:
        raise ValueError(f'{POLICY} needs the package scipy: pip install "tfswap[ilp]"')
    if peak_load(timeline) <= budget_bytes:
        return Decision(POLICY, (), simulate(timeline, (), machine)), 0
    step = Step.of(timeline, machine, budget_bytes, min_bytes)
    step.check()
    found = []
    for planner in (tvdnn.plan_heuristic, greedy.plan_swaps):
        try:
            found.append(planner(timeline, machine, budget_bytes, min_bytes=min_bytes))
        except BudgetTooSmall:
            continue
    if not found:
        found = [step.plan(step.all_requests())]
    search = Search(step, found, time_limit_s - (time.monotonic() - begun_s))
    search.run()
    within = [d for d in search.found if d.result.peak_bytes <= budget_bytes]
    if not within:
        nearest = min(search.found, key=lambda d: d.result.peak_bytes)
        raise plan_over_budget(timeline, budget_bytes, nearest.result, POLICY)
    best = min(within, key=lambda d: cost(d.result, machine))
    least_ns = min(search.least_ns, best.result.stall_ns)
    notes: tuple[str, ...] = (_note(best.result.stall_ns, least_ns, time.monotonic() - begun_s),)
    if best.policy != POLICY:
        notes += (f"{POLICY}: the plan is that of {best.policy}",)
    return replace(best, policy=POLICY, notes=notes), least_ns


def _note(wait_ns: int, least_ns: int, took_s: float) -> str:
    if wait_ns <= least_ns:
        return f"{POLICY}: optimal in {took_s:.1f} s"
    gap = (wait_ns - least_ns) / wait_ns
    return (
        f"{POLICY}: stopped after {took_s:.1f} s, gap {100 * gap:.0f} %: no schedule of swaps "
        f"waits less than {least_ns / 1e6:.6g} ms"
    )
