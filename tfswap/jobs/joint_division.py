"""JointDivision: shares of memory and link for jobs whose steps are known, corrected by simulation.

Budgets follow from curves, curves from plans, plans from the speed of the link, and that from what
all the plans together copy. So: divide, plan each job, simulate all of them on the one link, and
divide again with what the simulation says that each has of it; of some rounds the one with the
least sum of weight times slowdown, as simulated, is taken.
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
# Shares of the link that jobs are told: between them nothing is worth another plan.
_LINK_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05)
# A job whose step is not known yet keeps this part of an even share, if it runs and has it.
_CAUTION = 0.5
# Of all jobs together.
_MOST_CURVES = 512


@dataclass(frozen=True)
class JobClaim:
    """A job, and what is known of it.

    Attributes:
        job: its name.
        minimum_bytes: it asked for no less.
        wanted_bytes: it asked for no more.
        weight: how much it counts.
        held_bytes: what it has now; 0: it waits for its first share.
        trace: its step; None: it has not said.
        link_share: what it was told last.
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
    """Who gets what.

    Attributes:
        budget_bytes: by job; those that must wait are not in it.
        link_shares: likewise.
        slowdowns: likewise, as foretold; of jobs whose steps are known.
    """

    budget_bytes: dict[str, int]
    link_shares: dict[str, float]
    slowdowns: dict[str, float]


class JointDivision:
    """Divides a device; remembers what it has worked out of steps.

    Args:
        policy: "slowdown" or "weights", see `tfswap.jobs.division`.
        planning_time_s: How long one division may work out new curves.
    """

    def __init__(self, policy: str = LEAST_SLOWDOWN, planning_time_s: float = 3.0) -> None:
        self._policy = policy
        self._planning_time_s = planning_time_s
        self._curves: dict[tuple[int, float], tuple[JobTrace, SlowdownCurve]] = {}
        self._decisions: dict[tuple[int, float, int], tuple[JobTrace, Decision | None]] = {}

    def divide(self, jobs: Sequence[JobClaim], capacity_bytes: int) -> Division:
        """Gives jobs their shares.

        Args:
            jobs: By the time of joining; what they hold is within the capacity.
            capacity_bytes: What there is for them.
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
            slowdowns, real_shares = self._simulated(known, budgets, shares)
            total = sum(
                claim.weight * slowdowns.get(claim.job, claim.curve.at(budgets[claim.job]))
                for claim in claims
                if claim.job in budgets
            )
            told = {job: real_shares.get(job, shares[job]) for job in budgets}
            if best is None or total < best[0]:
                best = (total, Division(budgets, told, slowdowns))
            before, shares = shares, {**shares, **real_shares}
            if shares == before or time.monotonic() > deadline_s:
                break
        assert best is not None
        return best[1]

    def _claim(
        self, job: JobClaim, link_share: float, even_bytes: float, deadline_s: float
    ) -> Claim:
        cautious_bytes = 0
        if job.trace is None:
            # Nobody knows what would end it.
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
            near = [share for known, share in self._curves if known == id(trace)]
            if near and time.monotonic() > deadline_s:
                key = (id(trace), min(near, key=lambda share: abs(share - link_share)))
            else:
                if len(self._curves) >= _MOST_CURVES:
                    self._curves.clear()
                link = trace.link.part(link_share)
                curve = planned_curve(trace.timeline, link, deadline_s=deadline_s)
                self._curves[key] = (trace, curve)
        return self._curves[key][1]

    def _simulated(
        self, jobs: Sequence[JobClaim], budgets: dict[str, int], shares: dict[str, float]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Slowdowns and shares of the link, of those jobs that can be planned."""
        planned: dict[str, PlannedJob] = {}
        working_ns: dict[str, int] = {}
        for job in jobs:
            if job.trace is None or job.job not in budgets:
                continue
            decision = self._decision(job.trace, shares[job.job], budgets[job.job])
            if decision is not None:
                trace, result = job.trace, decision.result
                planned[job.job] = PlannedJob(trace.timeline, decision.swaps, trace.link)
                working_ns[job.job] = copying_ns(trace.link, result.bytes_out, result.bytes_in)
        outcomes = dict(zip(planned, simulate_jobs(list(planned.values())), strict=True))
        slowdowns = {
            name: max((o.step_ns + working_ns[name]) / max(planned[name].timeline.step_ns, 1), 1.0)
            for name, o in outcomes.items()
        }
        return slowdowns, {name: _nearest(o.link_share) for name, o in outcomes.items()}

    def _decision(self, trace: JobTrace, link_share: float, budget_bytes: int) -> Decision | None:
        key = (id(trace), link_share, budget_bytes)
        if key not in self._decisions:
            if len(self._decisions) >= _MOST_CURVES:
                self._decisions.clear()
            link = trace.link.part(link_share)
            self._decisions[key] = (trace, decision_at(trace.timeline, link, budget_bytes))
        return self._decisions[key][1]


def _nearest(share: float) -> float:
    return min(_LINK_SHARES, key=lambda known: abs(known - share))
