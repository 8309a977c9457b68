"""tvDNN's optimal schedule: which absences are used and when each copy runs, by a MILP.

Source: Park, Cho, Jung, Lee, "tvDNN: GPU memory virtualization for deep learning with memory object
sectioning", PPoPP 2018, a poster: its text says that the optimal schedule is an ILP's, not which.
This is a reconstruction, over the buffers of a timeline: where a graph is cut
(``AutoSwap(sections=)``), these are sections, as the paper's are.

Moments k are stretches [t_k, v_k) in which the load is L_k, above the budget B, and no gap ends.
Stalls happen where ops start: what is at t_k in the recorded step is at T_k = t_k + S_k, and v_k at
V_k, with S >= 0 and ascending. For each gap g of b_g bytes, which takes o_g ns out and i_g ns in,
there are binary variables:

* u_g: it is used; x_gk: its copy-out has ended by T_k; y_gk: its copy-in begins at V_k or later.
  x ascends to u with k, y descends from u: in moment k the buffer is absent if x + y - u = 1.
* memory: sum over the gaps around k of b_g (x_gk + y_gk - u_g) >= L_k - B
* link out, first come, first served: C_j >= C_(j-1) + o_j u_j and C_j >= R_j + o_j u_j, where R_j
  is the end of what makes j; C_j <= T_k if x_jk. Besides, for all R and k: sum of o_j x_jk over
  what is made from R on <= T_k - R. Gaps with one far copy share one copy-out.
* link in: for all k and D: sum of i_g y_gk over what is needed up to D <= D - V_k
* the total wait is W or less; any solution will do.

W is searched instead of minimised: with W given, most x and y are known (a copy-out that would end
more than W late is not over in k), and what is left is solved in seconds. It begins with some
thirty moments; those in which a plan breaks the budget are added. Fewer only lower the bound.

What the MILP cannot say exactly is left out: copies-in may be preempted, stalls do not have to end
where a copy does, and what crosses the step's end has left in time. So every plan that the
simulator finds within the budget satisfies it, and where it has no solution no plan waits W or
less. A solution becomes gates and triggers, copies-in in the order of their deadlines. Absences
are added where these break the budget, swaps that the budget does not need are dropped, and what
waits longer than foretold is repaired by a second of `improve`'s local search. The simulator
has the last word.

Departures: buffers below ``min_bytes`` stay, in the plan and in the bound; an op that the graph
does not allow as an anchor is replaced by a neighbour; the best of `tvdnn_heuristic`, `greedy` and
the solutions is returned: where the time is over, or a solution waits longer than foretold, it may
be one of theirs.
"""

from __future__ import annotations

import importlib.util
import time
from dataclasses import replace

from tfswap.machine.link import Link
from tfswap.planning.planners import greedy
from tfswap.planning.planners.decision import MIB, BudgetTooSmall, Decision, cost, over_budget
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
    """``tvdnn_ilp``.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: what the load may reach.
        min_bytes: smaller buffers stay. Default 1 MiB.
        time_limit_s: when the search ends, with what it has. Default 10 s.

    Returns:
        The plan that waits least, and a note of how far from the optimum it is at most.

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
    """The decision of `plan_ilp`, and what no schedule of swaps waits less than; ns."""
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
        found = [step.plan(step.everything())]
    search = Search(step, found, time_limit_s - (time.monotonic() - begun_s))
    search.run()
    within = [d for d in search.found if d.result.peak_bytes <= budget_bytes]
    if not within:
        nearest = min(search.found, key=lambda d: d.result.peak_bytes)
        raise over_budget(timeline, budget_bytes, nearest.result, POLICY)
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
