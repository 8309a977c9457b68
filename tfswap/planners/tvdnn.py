"""tvDNN: an optimal swapping schedule by integer programming, and a heuristic one.

Source: Park, Cho, Jung, Lee, "tvDNN: GPU memory virtualization for deep learning with memory object
sectioning", PPoPP 2018 (a poster; its text says that there is an ILP and a heuristic, not which).
Both are reconstructions.

``tvdnn_ilp``. The step is cut into at most 64 stretches of ops, j. A buffer that may be absent is
*before* its absence, *absent*, or *back*, in this order: binaries B, A, R with B + A + R = 1, B
falling, R rising. Real variables: bytes copied out o and in i, and waits w (ns).

    minimise    sum w
    memory      load_j - sum s A_j <= budget
    out first   s A_j <= sum of o up to j - 1
    in before   s R_j <= sum of i up to j - 1;  R = 1 where it is needed;  i_j <= s (1 - B_j) - s A_j
    link        sum o_j <= out speed * (length_j + w_j); sum i_j likewise

so a copy-in occupies memory from its start. Solved by HiGHS (scipy) within a time limit; the gap that
it reports goes into the decision's notes. The schedule becomes gates and triggers, and is judged by
the simulator like any other.

``tvdnn_heuristic``. Belady's rule: where the load passes the budget, the buffer leaves that is needed
last; it comes back as early as memory permits, those needed first before others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse

from tfswap.planners.anchors import Wish, swaps_for
from tfswap.planners.decision import Decision, over_budget, too_small
from tfswap.planners.load import Gaps, Ints, OpLoad
from tfswap.simulator import Link, simulate
from tfswap.timeline import Timeline, peak_load

MIB = 1 << 20

_STRETCHES = 64
_TIME_LIMIT_S = 30.0


def plan_heuristic(
    timeline: Timeline, machine: Link, budget_bytes: int, *, min_bytes: int = MIB
) -> Decision:
    """``tvdnn_heuristic``.

    Args:
        timeline: one unswapped step.
        machine: speeds of the link.
        budget_bytes: what the load may reach.
        min_bytes: smaller buffers stay. Default 1 MiB.

    Raises:
        BudgetTooSmall: if the load is above the budget where nothing more can leave.
    """
    policy = "tvdnn_heuristic"
    if peak_load(timeline) <= budget_bytes:
        return Decision(policy, (), simulate(timeline, (), machine))
    load = OpLoad.of(timeline)
    gaps = Gaps.of(timeline, load, min_bytes)
    current = load.bytes.copy()
    gone_by: dict[int, int] = {}
    needed_ns = gaps.before_start_ns + np.where(gaps.crosses, timeline.step_ns, 0)
    while (over := np.flatnonzero(current > budget_bytes)).size:
        part = int(over[0])
        here = [i for i in np.flatnonzero(gaps.cover(part)).tolist() if i not in gone_by]
        if not here:
            raise too_small(timeline, budget_bytes, current, policy)
        i = max(here, key=lambda i: (int(needed_ns[i]), int(gaps.bytes[i])))
        begins_here = not gaps.crosses[i] or gaps.gone[i] <= part
        gone_by[i] = max(part if begins_here else int(gaps.gone[i]), 1)
        # A gap across the step's end that is needed at its other end leaves as soon as it can.
        gaps.subtract(i, current, gone=gone_by[i])

    wishes = []
    for i in sorted(gone_by, key=lambda i: int(gaps.before_start_ns[i])):
        first = 0 if gaps.crosses[i] else gone_by[i]
        back = int(gaps.back[i])
        over = np.flatnonzero(current[first:back] + gaps.bytes[i] > budget_bytes)
        begin = first + (int(over[-1]) + 1 if len(over) else 0)
        current[begin:back] += gaps.bytes[i]
        gate = gone_by[i] - 1 if gone_by[i] < len(current) else None
        wishes.append(Wish(int(gaps.absence[i]), gate, begin if begin < back else None))
    swaps = swaps_for(timeline, wishes)
    result = simulate(timeline, swaps, machine)
    if result.peak_bytes > budget_bytes:
        raise over_budget(timeline, budget_bytes, result, policy)
    return Decision(policy, swaps, result)


def plan_ilp(
    timeline: Timeline,
    machine: Link,
    budget_bytes: int,
    *,
    min_bytes: int = MIB,
    time_limit_s: float = _TIME_LIMIT_S,
) -> Decision:
    """``tvdnn_ilp``. Arguments and errors as for `plan_heuristic`.

    Args:
        time_limit_s: what the solver may take. Defaults to 30 s.
    """
    policy = "tvdnn_ilp"
    if peak_load(timeline) <= budget_bytes:
        return Decision(policy, (), simulate(timeline, (), machine))
    load = OpLoad.of(timeline)
    gaps = Gaps.of(timeline, load, min_bytes)
    # Gaps across the step's end are not in this program.
    gaps = gaps.take(np.flatnonzero(~gaps.crosses))
    program = _Program(timeline, machine, budget_bytes, load, gaps)
    solution = program.solve(time_limit_s)
    if solution is None:
        least = load.bytes.copy()
        for i in range(len(gaps)):
            gaps.subtract(i, least)
        raise too_small(timeline, budget_bytes, least, policy)
    wishes, note = solution
    swaps = swaps_for(timeline, wishes)
    result = simulate(timeline, swaps, machine)
    if result.peak_bytes > budget_bytes:
        raise over_budget(timeline, budget_bytes, result, policy)
    return replace(Decision(policy, swaps, result), notes=(note,))


class _Program:
    """The integer program. Variables are numbered block by block: B, A, o, i by (gap, stretch), w."""

    def __init__(
        self, timeline: Timeline, machine: Link, budget_bytes: int, load: OpLoad, gaps: Gaps
    ) -> None:
        self.gaps = gaps
        self.budget_bytes = budget_bytes
        parts = len(load.start_ns)
        self.first = _cut(load, gaps, min(_STRETCHES, parts))
        self.count = len(self.first)
        self.load = np.maximum.reduceat(load.bytes, self.first)
        begins_ns = load.start_ns[self.first]
        self.length_ns = np.diff(np.append(begins_ns, timeline.step_ns))
        # The first whole stretch after the gap's begin, and the stretch in which it is needed.
        self.gone = np.searchsorted(self.first, gaps.gone, side="left")
        self.back = np.searchsorted(self.first, gaps.back, side="right") - 1
        producer = np.array([a.producer_op for a in timeline.absences], dtype=np.int64)
        ready_ns = np.where(
            producer[gaps.absence] >= 0, timeline.op_end_ns[producer[gaps.absence]], 0
        )
        self.ready = np.searchsorted(begins_ns, ready_ns, side="left")
        self.speeds = (machine.out_bytes_per_s / 1e9, machine.in_bytes_per_s / 1e9)

    def solve(self, time_limit_s: float) -> tuple[list[Wish], str] | None:
        """The wishes and a word on the gap; None: there is no schedule."""
        n, count = len(self.gaps), self.count
        block = n * count
        size = self.gaps.bytes.astype(np.float64) / MIB
        # B, A, o, i, then w in ms.
        variables = 4 * block + count
        lower = np.zeros(variables)
        upper = np.ones(variables)
        upper[2 * block : 4 * block] = np.repeat(np.tile(size, 2), count)
        upper[4 * block :] = np.inf
        stretch = np.tile(np.arange(count), n)
        gone, back = np.repeat(self.gone, count), np.repeat(self.back, count)
        absent_possible = (stretch >= gone) & (stretch < back)
        upper[block : 2 * block][~absent_possible] = 0
        lower[:block][stretch < gone] = 1
        upper[:block][stretch >= np.maximum(back, gone)] = upper[:block][
            stretch >= np.maximum(back, gone)
        ]
        upper[2 * block : 3 * block][stretch < np.repeat(self.ready, count)] = 0
        upper[3 * block : 4 * block][(stretch < gone) | (stretch > back)] = 0
        integrality = np.zeros(variables)
        integrality[: 2 * block] = 1

        rows: list[sparse.spmatrix] = []
        low: list[NDArray[np.float64]] = []
        high: list[NDArray[np.float64]] = []

        def add(matrix: sparse.spmatrix, at_least: float | NDArray, at_most: float | NDArray) -> None:
            rows.append(matrix)
            low.append(np.broadcast_to(np.asarray(at_least, float), (matrix.shape[0],)))
            high.append(np.broadcast_to(np.asarray(at_most, float), (matrix.shape[0],)))

        identity = sparse.identity(count)
        step = sparse.eye(count - 1, count, k=1) - sparse.eye(count - 1, count)
        before = sparse.csr_matrix(np.tri(count, k=-1))
        each = sparse.identity(n)
        sizes = sparse.diags(size)
        none_b = sparse.csr_matrix((block, block))
        waits = sparse.csr_matrix((block, count))
        short = sparse.csr_matrix((n * (count - 1), block))
        no_waits = sparse.csr_matrix((n * (count - 1), count))
        falls = sparse.kron(each, step)
        # B falls; B + A falls (so R rises); B + A <= 1.
        add(sparse.hstack([falls, short, short, short, no_waits]), -np.inf, 0)
        add(sparse.hstack([falls, falls, short, short, no_waits]), -np.inf, 0)
        everywhere = sparse.kron(each, identity)
        add(sparse.hstack([everywhere, everywhere, none_b, none_b, waits]), -np.inf, 1)
        # Out first.
        add(
            sparse.hstack(
                [none_b, sparse.kron(sizes, identity), -sparse.kron(each, before), none_b, waits]
            ),
            -np.inf,
            0,
        )
        # In before: s (1 - B - A) <= sum of i, where the buffer was away: no i is needed if it was
        # never absent, so the need is counted from A: s (A_{j-1} ... ) as bytes that left and are back.
        away = sparse.kron(sizes, sparse.identity(count))
        add(
            sparse.hstack(
                [
                    none_b,
                    sparse.kron(sizes, sparse.eye(count, count, k=-1)) - away,
                    none_b,
                    -sparse.kron(each, before + sparse.identity(count)),
                    waits,
                ]
            ),
            -np.inf,
            0,
        )
        # While it is absent nothing comes in.
        add(sparse.hstack([none_b, away, none_b, everywhere, waits]), -np.inf, np.repeat(size, count))
        # The link.
        all_gaps = sparse.kron(np.ones((1, n)), identity)
        none_l = sparse.csr_matrix((count, block))
        for place, speed in enumerate(self.speeds):
            mib_per_ms = speed * 1e6 / MIB
            blocks = [none_l, none_l, none_l, none_l]
            blocks[2 + place] = all_gaps
            add(
                sparse.hstack([*blocks, -mib_per_ms * identity]),
                -np.inf,
                mib_per_ms * self.length_ns / 1e6,
            )
        # Memory.
        absent = sparse.kron(size.reshape(1, -1), identity)
        add(
            sparse.hstack([none_l, -absent, none_l, none_l, sparse.csr_matrix((count, count))]),
            -np.inf,
            (self.budget_bytes - self.load) / MIB,
        )
        cost = np.zeros(variables)
        cost[4 * block :] = 1
        cost[2 * block : 4 * block] = 1e-6  # of equal waits, the less traffic
        found = optimize.milp(
            cost,
            constraints=optimize.LinearConstraint(
                sparse.vstack(rows).tocsr(), np.concatenate(low), np.concatenate(high)
            ),
            bounds=optimize.Bounds(lower, upper),
            integrality=integrality,
            options={"time_limit": time_limit_s},
        )
        if found.x is None:
            return None
        absent_at = found.x[block : 2 * block].reshape(n, count) > 0.5
        copied_in = found.x[3 * block : 4 * block].reshape(n, count) > 1e-6
        wishes = []
        for i in range(n):
            if not absent_at[i].any():
                continue
            first = int(np.argmax(absent_at[i]))
            after = first + int(absent_at[i].sum())
            begins = np.flatnonzero(copied_in[i])
            begin = int(begins[0]) if len(begins) else after
            part, back = int(self.first[first]), int(self.first[max(begin, after)])
            needed = int(self.gaps.back[i])
            wish = Wish(
                int(self.gaps.absence[i]), max(part - 1, 0), back if back < needed else None
            )
            wishes.append(wish)
        gap = found.mip_gap
        return wishes, f"bound {found.mip_dual_bound:.3f} ms of waits, gap {gap:.1%}"


def _cut(load: OpLoad, gaps: Gaps, most: int) -> Ints:
    """First parts of at most ``most`` stretches: borders where the load changes most in time."""
    weight = np.diff(np.append(load.start_ns, load.start_ns[-1])).astype(np.float64)
    weight = weight / max(weight.sum(), 1) + np.abs(np.diff(load.bytes, prepend=load.bytes[0])) / max(
        float(np.abs(np.diff(load.bytes)).sum()), 1.0
    )
    up_to = np.cumsum(weight)
    marks = np.linspace(0, up_to[-1], most + 1)[:-1]
    return np.unique(np.searchsorted(up_to, marks, side="left"))
