"""The order edges that keep planned addresses free in every run of a step."""

from __future__ import annotations

import random
from graphlib import TopologicalSorter
from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_steps import A_R, FINGERPRINT, KIB, Ran, graph, laid_out, overlap, slots_of, step

from tfswap.addresses.order import StepOrder
from tfswap.plan.schema import FunctionPlan, Return, TensorSwap
from tfswap.step.trace import StepTrace

# --- Two buffers share addresses: a, read by r, and then b. ---

MADE_READ = (Ran("a", 0, 5, makes=8 * KIB), Ran("r", 10, 15, ("a",)))
TWO = step(*MADE_READ, Ran("b", 20, 25, makes=8 * KIB))


def test_readers_of_a_buffer_end_before_the_next_op_at_its_addresses_starts() -> None:
    trace = step(
        *MADE_READ, Ran("other", 12, 18, ("a",)), Ran("b", 20, 25, makes=8 * KIB), Ran("c", 21, 26)
    )
    of = graph(*A_R, "other Sum 0 o 1 a:0", "b Sum 0 o 1", "c Sum 0 o 1")
    # The producer has ended when its readers have, and c has other addresses.
    assert sorted(laid_out(trace, of).order) == [("other", "b"), ("r", "b")]


def test_an_op_with_unshared_addresses_does_not_wait() -> None:
    trace = step(*MADE_READ, Ran("b", 14, 25, makes=8 * KIB))
    assert laid_out(trace, graph(*A_R, "b Sum 0 o 1")).order == ()


@pytest.mark.parametrize(
    "rest",
    [
        ("b Sum 0 o 1 r:0",),
        ("b Sum 0 o 1 ^r",),
        ("unseen Sum 0 o 1 r:0", "b Sum 0 o 1 unseen:0"),
        ("unseen NoOp 0 o - ^r", "unseen2 NoOp 0 o - ^unseen", "b Sum 0 o 1 ^unseen2"),
    ],
)
def test_no_edge_where_the_graph_has_the_order(rest: tuple[str, ...]) -> None:
    assert laid_out(TWO, graph(*A_R, "b Sum 0 o 1")).order == (("r", "b"),)
    assert laid_out(TWO, graph(*A_R, *rest)).order == ()


def swap(tensor: str, gates: tuple[str, ...], *returns: Return) -> TensorSwap:
    return TensorSwap(tensor, 8 * KIB, gates, returns)


@pytest.mark.parametrize(
    "function",
    [
        FunctionPlan(FINGERPRINT, order=(("r", "b"),)),
        FunctionPlan(FINGERPRINT, order=(("r", "unseen"), ("unseen", "b"))),
        # b waits for the copy of what r made,
        FunctionPlan(FINGERPRINT, (swap("r:0", ("b",)),)),
        # or reads it after its swap-in,
        FunctionPlan(FINGERPRINT, (swap("r:0", (), Return("", ("b",))),)),
        # or reads a tensor whose swap-in the end of r triggers.
        FunctionPlan(FINGERPRINT, (swap("unseen:0", (), Return("r", ("b",))),)),
    ],
)
def test_no_edge_where_the_plan_has_the_order(function: FunctionPlan) -> None:
    of = graph(*A_R, "unseen Sum 0 o 1", "b Sum 0 o 1")
    assert laid_out(TWO, of, function).order == ()


def test_without_swaps_broadcast_edges_do_not_count() -> None:
    of = graph(*A_R, "b BroadcastTo 0 o 1 ^r", "#broadcast r b")
    assert laid_out(TWO, of).order == (("r", "b"),)
    assert laid_out(TWO, of, FunctionPlan(FINGERPRINT, reserve=True)).order == ()
    assert laid_out(TWO, of, FunctionPlan(FINGERPRINT, (swap("a:0", ()),))).order == ()


def test_a_chain_of_buffers_has_one_edge_for_each_pair() -> None:
    names = "abcd"
    trace = step(*(Ran(name, 10 * i, 10 * i + 5, makes=8 * KIB) for i, name in enumerate(names)))
    layout = laid_out(trace, graph(*(f"{name} Sum 0 o 1" for name in names)))
    assert layout.order == (("a", "b"), ("b", "c"), ("c", "d"))


def test_of_ordered_readers_only_the_last_gets_an_edge() -> None:
    trace = step(*MADE_READ, Ran("s", 16, 18, ("a",)), Ran("b", 20, 25, makes=8 * KIB))
    of = graph(*A_R, "s Sum 0 o 1 a:0 ^r", "b Sum 0 o 1")
    assert laid_out(trace, of).order == (("s", "b"),)


def test_a_large_buffer_waits_for_all_buffers_below_it() -> None:
    trace = step(
        Ran("a", 0, 5, makes=8 * KIB - 64),
        Ran("b", 2, 6, makes=8 * KIB - 64),
        Ran("c", 10, 15, makes=16 * KIB - 64),
    )
    layout = laid_out(trace, graph(*(f"{name} Sum 0 o 1" for name in "abc")))
    assert layout.height_bytes == 16 * KIB
    assert sorted(layout.order) == [("a", "c"), ("b", "c")]


# --- Ops that cannot be ordered. ---


@pytest.mark.parametrize("b", ["b Sum 0 - 1 late:0 early:0", "b Sum 1 o 1 late:0 early:0"])
def test_a_predecessor_waits_in_place_of_an_op_that_may_not(b: str) -> None:
    of = graph(*A_R, "first Sum 0 o 1", "early Sum 0 o 1 first:0", "late Sum 0 o 1", b)
    begun = (Ran("first", 1, 2), Ran("early", 3, 4))
    last = Ran("b", 30, 35, makes=8 * KIB)
    in_time = laid_out(step(*MADE_READ, *begun, Ran("late", 20, 25), last), of)
    assert in_time.order == (("r", "late"),)
    assert overlap(slots_of(in_time)["a"], slots_of(in_time)["b"])
    # A buffer that is in use when the predecessor starts has other addresses.
    too_early = laid_out(step(*MADE_READ, *begun, Ran("late", 12, 25), last), of)
    assert too_early.order == ()
    assert not overlap(slots_of(too_early)["a"], slots_of(too_early)["b"])


def test_without_an_op_that_may_wait_there_is_no_edge() -> None:
    assert laid_out(TWO, graph(*A_R, "c Const 0 - 1", "b Sum 0 - 1 c:0")).order == ()


def test_no_op_waits_for_an_op_that_may_not_run() -> None:
    of = graph("a Sum 0 o 1", "r Sum 1 o 1 a:0", "b Sum 0 o 1")
    assert laid_out(TWO, of).order == (("a", "b"),)


def test_a_swap_in_waits_for_the_last_users_of_its_addresses() -> None:
    out, back = "tfswap/out/x_0", "tfswap/in/x_0/0"
    trace = step(
        Ran("x", 0, 1, makes=8 * KIB),
        Ran(out, 2, 3, ("x",)),
        Ran("a", 10, 15, makes=8 * KIB),
        Ran("r", 20, 40, ("a",)),
        Ran(back, 12, 50, makes=8 * KIB, allocates=45),
        Ran("last", 60, 65, (back,)),
    )
    of = graph("x Sum 0 o 1", *A_R, "last Sum 0 o 1 x:0")
    function = FunctionPlan(FINGERPRINT, (swap("x:0", (), Return("", ("last",))),))
    layout = laid_out(trace, of, function)
    assert len({slot.offset_bytes for slot in layout.slots}) == 1
    # Other ops wait for swap-outs in the same way.
    assert layout.order == ((out, "a"), ("r", back))


def test_ops_that_may_wait_and_ops_that_may_come_first() -> None:
    of = graph(*A_R, "fixed Const 0 - 1", "inside Sum 1 o 1")
    inside = swap("inside:0", (), Return("", ("r",)))
    order = StepOrder(of, FunctionPlan(FINGERPRINT, (swap("a:0", (), Return("", ("r",))), inside)))
    out, back = "tfswap/out/a_0", "tfswap/in/a_0/0"
    names = ("a", "r", "fixed", "inside", out, back, "tfswap/out/inside_0", "tfswap/in/inside_0/0")
    assert [name for name in names if order.may_wait(name)] == ["a", "r", back]
    assert [name for name in names if order.may_come_first(name)] == ["a", "r", "fixed", out]


# --- Random graphs and steps. ---


class Work(NamedTuple):
    """An op of a random step: its inputs, and how it ran."""

    reads: frozenset[int]
    controls: frozenset[int]
    may_wait: bool
    kib: int
    duration: int
    hurry: int

    @property
    def needs(self) -> frozenset[int]:
        return self.reads | self.controls


@st.composite
def random_work(draw: st.DrawFn) -> list[Work]:
    work: list[Work] = []
    for n in range(draw(st.integers(2, 9))):
        reads, controls = (
            frozenset(draw(st.lists(st.sampled_from(range(n)), max_size=most)) if n else ())
            for most in (3, 1)
        )
        # No predecessor could wait in place of an op without inputs.
        may_wait = draw(st.booleans()) or not reads | controls
        work.append(Work(reads, controls, may_wait, *(draw(st.integers(1, 6)) for _ in range(3))))
    return work


def run_on(workers: int, work: list[Work]) -> StepTrace:
    """Return a step in which the next free worker runs the most urgent ready op."""
    free = [0] * workers
    ran: dict[int, Ran] = {}
    while len(ran) < len(work):
        n = min(
            (n for n, op in enumerate(work) if n not in ran and op.needs <= ran.keys()),
            key=lambda n: work[n].hurry,
        )
        start = max([min(free), *(ran[i].end for i in work[n].needs)])
        end = free[free.index(min(free))] = start + work[n].duration
        reads = tuple(f"n{i}" for i in work[n].reads)
        ran[n] = Ran(f"n{n}", start, end, reads, work[n].kib * KIB)
    return step(*ran.values())


@settings(max_examples=200, deadline=None)
@given(random_work(), st.integers(1, 3), st.integers(0, 1000))
def test_slots_never_overlap_in_any_order_of_ops(work: list[Work], workers: int, seed: int) -> None:
    of = graph(
        *(
            " ".join(
                [
                    f"n{n} Sum 0 {'o' if op.may_wait else '-'} 1",
                    *(f"n{i}:0" for i in op.reads),
                    *(f"^n{i}" for i in op.controls),
                ]
            )
            for n, op in enumerate(work)
        )
    )
    layout = laid_out(run_on(workers, work), of)
    slots = slots_of(layout)
    assert slots.keys() == of.nodes.keys()
    before = {f"n{n}": {f"n{i}" for i in op.needs} for n, op in enumerate(work)}
    for first, second in layout.order:
        before[second].add(first)
    TopologicalSorter(before).prepare()  # raises an error if there is a cycle
    users = {name: {name, *of.readers.get((name, 0), ())} for name in of.nodes}
    sharing = [(a, b) for a, b in combinations(slots, 2) if overlap(slots[a], slots[b])]
    chance = random.Random(seed)
    for _ in range(10):
        turn: dict[str, int] = {}
        while len(turn) < len(before):
            ready = [name for name in before if name not in turn and before[name] <= turn.keys()]
            turn[chance.choice(ready)] = len(turn)
        freed = {name: max(turn[user] for user in users[name]) for name in users}
        assert all(freed[a] < turn[b] or freed[b] < turn[a] for a, b in sharing)


# --- Twins that oneDNN may fuse: the gradients of a bias and of the weights. ---


@pytest.mark.parametrize("are_twins", [False, True])
def test_edges_around_twins_form_no_cycle(are_twins: bool) -> None:
    lines = (
        "g Sum 0 o 1",
        "b Sum 0 o 1 g:0",
        "x Sum 0 o 1 b:0",
        "i Sum 0 o 1",
        "w Sum 0 o 1 g:0 i:0",
    )
    of = graph(*lines, *(("#twin b w",) if are_twins else ()))
    order = StepOrder(of, FunctionPlan(FINGERPRINT))
    edges = order.enforce({"i": ["x"]}, {name: place for place, name in enumerate("gbxiw")})
    assert edges == (() if are_twins else (("x", "i"),))
