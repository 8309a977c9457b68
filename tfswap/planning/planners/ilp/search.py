"""Search over the allowed wait, until the bound meets the best plan."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from tfswap.planning.planners.anchors import PlacementRequest, swaps_for
from tfswap.planning.planners.bound import least_wait_ns
from tfswap.planning.planners.decision import Decision, cost
from tfswap.planning.planners.ilp.placement_requests import placement_requests
from tfswap.planning.planners.ilp.schedule import Schedule
from tfswap.planning.planners.ilp.step import POLICY, Step
from tfswap.planning.planners.improve import improve_plan
from tfswap.planning.simulator import simulate

# The search ends when the remaining gap is this fraction of the wait, or of the step.
_GAP = 0.02
_GAP_OF_STEP = 1e-4
# Step from the bound towards the least wait found, for the next W: small W are solved fast.
_ADVANCE = 0.25
# Fraction of the remaining time for one MILP, and the minimal time of one in seconds.
_SHARE = 0.6
_MIN_S = 0.05
# Fraction of the total time for the local search around a solution.
_REPAIR_SHARE = 0.1


class Search:
    """Increasing waits, with moments added as plans violate the budget there."""

    def __init__(self, step: Step, found: list[Decision], time_limit_s: float) -> None:
        self._step = step
        self._deadline_s = time.monotonic() + time_limit_s
        self._repair_s = _REPAIR_SHARE * time_limit_s
        self._moments = step.first_moments()
        self.found = found
        self.least_ns = least_wait_ns(step.timeline, step.machine, step.budget_bytes)

    @property
    def _wait_ns(self) -> int:
        within = [d for d in self.found if d.result.peak_bytes <= self._step.budget_bytes]
        return min((d.result.stall_ns for d in within), default=self._step.timeline.step_ns)

    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def run(self) -> None:
        """Search until the gap is small or the time is over."""
        wait_ns = untried_ns = self.least_ns
        while self._left_s() > _MIN_S and self.least_ns < self._wait_ns:
            untried_ns = self.least_ns if self._solve(wait_ns) else wait_ns
            tolerance_ns = max(_GAP * self._wait_ns, _GAP_OF_STEP * self._step.timeline.step_ns, 1)
            if self._wait_ns - untried_ns <= tolerance_ns:
                break
            wait_ns = untried_ns + max(int((self._wait_ns - untried_ns) * _ADVANCE), 1)

    def _solve(self, wait_ns: int) -> bool:
        """Return whether a plan waits at most ``wait_ns``; infeasibility raises the bound."""
        while self._left_s() > _MIN_S:
            schedule = Schedule(self._step, self._moments, wait_ns / self._step.unit_ns)
            impossible, solution = schedule.solve(max(_SHARE * self._left_s(), _MIN_S))
            if impossible:
                # Waits are whole ns.
                self.least_ns = wait_ns + 1
            if solution is None:
                return False
            plan = self._step.plan(placement_requests(self._step, schedule, solution))
            violated = self._step.violated(plan.result, self._moments)
            if self._repaired(plan) <= wait_ns:
                return True
            if not violated:
                return False
            self._moments.update(violated)
        return False

    def _repaired(self, plan: Decision) -> int:
        """Make the plan fit, add it to the found ones, and return the least wait found in ns."""
        step = self._step
        plan = self._pruned(self._filled(plan))
        if plan.result.peak_bytes <= step.budget_bytes:
            until_s = min(self._deadline_s, time.monotonic() + self._repair_s)
            plan = improve_plan(
                plan, step.timeline, step.machine, step.budget_bytes, until_s, None, step.min_bytes
            )
        self.found.append(replace(plan, policy=POLICY))
        return self._wait_ns

    def _filled(self, plan: Decision) -> Decision:
        """Add absences where the plan exceeds the budget, those with the most slack first."""
        step = self._step
        while plan.result.peak_bytes > step.budget_bytes:
            violated = step.violated(plan.result, set())
            if not violated:
                break
            place = violated[0]
            used = {swap.absence for swap in plan.swaps}
            here = [
                gap
                for gap in step.gaps
                if gap.absence not in used and (gap.in_tail(place) or gap.in_head(place))
            ]
            if not here:
                break
            gap = max(here, key=step.time_to_spare)
            over = int(step.changes[np.searchsorted(step.changes, place, side="right")])
            gate, back = step.starts_up_to(place) - 1, step.starts_up_to(over)
            request = PlacementRequest(
                gap.absence,
                int(step.start_op[gate]) if gap.in_tail(place) and gate >= 0 else None,
                int(step.start_op[back]) if back < len(step.starts) else None,
            )
            added = swaps_for(step.timeline, [request])
            swaps = tuple(sorted((*plan.swaps, *added)))
            plan = Decision(POLICY, swaps, simulate(step.timeline, swaps, step.machine))
        return plan

    def _pruned(self, plan: Decision) -> Decision:
        """Drop swaps that the budget does not need."""
        step = self._step
        if plan.result.peak_bytes > step.budget_bytes:
            return plan
        for swap in plan.swaps:
            swaps = tuple(other for other in plan.swaps if other != swap)
            result = simulate(step.timeline, swaps, step.machine)
            if result.peak_bytes <= step.budget_bytes and (
                cost(result, step.machine) <= cost(plan.result, step.machine)
            ):
                plan = Decision(POLICY, swaps, result)
        return plan
