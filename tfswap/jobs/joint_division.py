"""JointDivision: memory and link shares of jobs, corrected by a joint simulation.

Budgets depend on slowdown curves, curves on plans, plans on the speed of the link, and that on the
copies of all plans together. The division iterates over this cycle: divide the memory, plan each
job, simulate all jobs on the shared link, and divide again with the simulated link shares. The
result is the round with the least weighted sum of simulated slowdowns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tfswap.jobs.division import LEAST_SLOWDOWN, Claim, divide
from tfswap.jobs.job_trace import JobTrace
from tfswap.jobs.joint_simulation import PlannedJob, simulate_jobs
from tfswap.jobs.slowdown import SlowdownCurve, decision_at, planned_curve
from tfswap.planning.planners.decision import Decision, copying_ns

_ROUNDS = 3
# Possible link shares: smaller differences are not worth a new plan.
_LINK_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05)
# A running job with an unknown step keeps at least this fraction of an even share.
_CAUTION = 0.5
# Maximum number of cached curves, and of cached decisions.
_MAX_CACHED = 512


@dataclass(frozen=True)
class JobClaim:
    """A job's request and state.

    Attributes:
        job: Name of the job.
        minimum_bytes: Least budget that it requested.
        wanted_bytes: Largest budget that it requested.
        weight: Weight of its slowdown.
        held_bytes: Its current budget; 0 if it waits for the first share.
        trace: Its step; None if unknown.
        link_share: Its current link share.
    """

    job: str
    minimum_bytes: int
    wanted_bytes: int
    weight: float = 1.0
    held_bytes: int = 0
    trace: JobTrace | None = None
    link_share: float = 1.0


@dataclass(frozen=True)
class Division:
    """The share of each job.

    Attributes:
        budget_bytes: Budgets by job; jobs that must wait are missing.
        link_shares: Link shares by job.
        slowdowns: Predicted slowdowns by job, of jobs with known steps.
    """

    budget_bytes: dict[str, int]
    link_shares: dict[str, float]
    slowdowns: dict[str, float]


class JointDivision:
    """Divides a device among jobs, and caches the curves and plans of their steps.

    Args:
        policy: "slowdown" or "weights"; see `tfswap.jobs.division`.
        planning_time_s: Time limit for new curves in one division, in seconds.
    """

    def __init__(self, policy: str = LEAST_SLOWDOWN, planning_time_s: float = 3.0) -> None:
        self._policy = policy
        self._planning_time_s = planning_time_s
        self._curves: dict[tuple[int, float], tuple[JobTrace, SlowdownCurve]] = {}
        self._decisions: dict[tuple[int, float, int], tuple[JobTrace, Decision | None]] = {}

    def divide(self, jobs: Sequence[JobClaim], capacity_bytes: int) -> Division:
        """Divide the capacity and the link among jobs.

        Args:
            jobs: Jobs in the order of joining. The sum of `held_bytes` is within the capacity.
            capacity_bytes: Memory for all jobs.
        """
        deadline_s = time.monotonic() + self._planning_time_s
        known = [job for job in jobs if job.trace is not None]
        evenly = _nearest(1 / max(len(jobs), 1))
        shares = {job.job: job.link_share if job.trace else evenly for job in jobs}
        weights = sum(job.weight for job in jobs)
        best: tuple[float, Division] | None = None
        for _ in range(_ROUNDS):
            claims = [
                self._claim(job, shares[job.job], capacity_bytes * job.weight / weights, deadline_s)
                for job in jobs
            ]
            budgets = divide(claims, capacity_bytes, self._policy)
            slowdowns, simulated_shares = self._simulate(known, budgets, shares)
            total = sum(
                claim.weight * slowdowns.get(claim.job, claim.curve.at(budgets[claim.job]))
                for claim in claims
                if claim.job in budgets
            )
            link_shares = {job: simulated_shares.get(job, shares[job]) for job in budgets}
            if best is None or total < best[0]:
                best = (total, Division(budgets, link_shares, slowdowns))
            previous, shares = shares, {**shares, **simulated_shares}
            if shares == previous or time.monotonic() > deadline_s:
                break
        assert best is not None
        return best[1]

    def _claim(
        self, job: JobClaim, link_share: float, even_bytes: float, deadline_s: float
    ) -> Claim:
        cautious_bytes = 0
        if job.trace is None:
            # With an unknown step, a large cut could make the job fail.
            cautious_bytes = min(int(_CAUTION * even_bytes), job.wanted_bytes)
            floor_bytes = max(job.minimum_bytes, min(job.held_bytes, cautious_bytes))
            curve = SlowdownCurve.assumed(
                min(job.minimum_bytes, job.wanted_bytes), min(int(even_bytes), job.wanted_bytes)
            )
        else:
            curve = self._curve(job.trace, link_share, deadline_s)
            floor_bytes = max(job.minimum_bytes, curve.least_bytes)
        return Claim(
            job.job,
            curve,
            floor_bytes,
            max(job.wanted_bytes, floor_bytes),
            job.weight,
            job.held_bytes,
            cautious_bytes,
        )

    def _curve(self, trace: JobTrace, link_share: float, deadline_s: float) -> SlowdownCurve:
        key = (id(trace), link_share)
        if key not in self._curves:
            cached = [share for known, share in self._curves if known == id(trace)]
            if cached and time.monotonic() > deadline_s:
                key = (id(trace), min(cached, key=lambda share: abs(share - link_share)))
            else:
                if len(self._curves) >= _MAX_CACHED:
                    self._curves.clear()
                link = trace.link.part(link_share)
                curve = planned_curve(trace.timeline, link, deadline_s=deadline_s)
                self._curves[key] = (trace, curve)
        return self._curves[key][1]

    def _simulate(
        self, jobs: Sequence[JobClaim], budgets: dict[str, int], shares: dict[str, float]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return slowdowns and link shares of the jobs that have a plan, by joint simulation."""
        planned: dict[str, PlannedJob] = {}
        cpu_ns: dict[str, int] = {}
        for job in jobs:
            if job.trace is None or job.job not in budgets:
                continue
            decision = self._decision(job.trace, shares[job.job], budgets[job.job])
            if decision is not None:
                trace, result = job.trace, decision.result
                planned[job.job] = PlannedJob(trace.timeline, decision.swaps, trace.link)
                cpu_ns[job.job] = copying_ns(trace.link, result.bytes_out, result.bytes_in)
        outcomes = dict(zip(planned, simulate_jobs(list(planned.values())), strict=True))
        slowdowns = {
            name: max((o.step_ns + cpu_ns[name]) / max(planned[name].timeline.step_ns, 1), 1.0)
            for name, o in outcomes.items()
        }
        return slowdowns, {name: _nearest(o.link_share) for name, o in outcomes.items()}

    def _decision(self, trace: JobTrace, link_share: float, budget_bytes: int) -> Decision | None:
        key = (id(trace), link_share, budget_bytes)
        if key not in self._decisions:
            if len(self._decisions) >= _MAX_CACHED:
                self._decisions.clear()
            link = trace.link.part(link_share)
            self._decisions[key] = (trace, decision_at(trace.timeline, link, budget_bytes))
        return self._decisions[key][1]


def _nearest(share: float) -> float:
    return min(_LINK_SHARES, key=lambda known: abs(known - share))
