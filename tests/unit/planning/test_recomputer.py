"""Recomputation: lineages, buffers, absences and graphs, checked against plain liveness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import MIB, FakeMachine

from tfswap.plan.node_names import clone_name
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.planning.planners import joint, portfolio, recompute
from tfswap.planning.planners.decision import BudgetTooSmall
from tfswap.planning.planners.papers import capuchin, tensile
from tfswap.planning.recomputation import Recomputation
from tfswap.planning.recomputer import Recomputer
from tfswap.planning.simulator import simulate
from tfswap.step.dataflow import Dataflow, with_clones
from tfswap.step.graph import StepGraph
from tfswap.step.timeline import Absence, Timeline, peak_load
from tfswap.traces.timeline_file import load_timeline, save_timeline

T = TypeVar("T")


def step_of(graph: StepGraph, sizes: dict[str, int], duration_ns: dict[str, int]) -> Timeline:
    """Return a step whose nodes run one after the other, each with one output.

    Buffers are freed after their last reader; each gap between uses is an absence.
    """
    names = tuple(graph.nodes)
    end_ns = np.cumsum([duration_ns[name] for name in names]).astype(np.int64)
    start_ns = end_ns - np.array([duration_ns[name] for name in names])
    op_of = {name: op for op, name in enumerate(names)}
    readers = {n: sorted(op_of[r] for r in graph.readers.get((n, 0), ())) for n in names}
    absences = []
    for buffer, name in enumerate(names):
        uses = [op_of[name], *readers[name]]
        for after, before in zip(uses, uses[1:], strict=False):
            if before > after + 1:
                late = tuple(names[op] for op in readers[name] if op >= before)
                absences.append(Absence(buffer, f"{name}:0", op_of[name], after, before, late))
    return Timeline(
        op_names=names,
        op_start_ns=start_ns,
        op_end_ns=end_ns,
        op_gateable=np.ones(len(names), dtype=bool),
        op_context=np.zeros(len(names), dtype=np.int32),
        resident_bytes=0,
        buffer_bytes=np.array([sizes[name] for name in names], dtype=np.int64),
        buffer_alloc_ns=start_ns,
        buffer_free_ns=np.array([end_ns[max([op_of[n], *readers[n]])] for n in names]),
        absences=tuple(absences),
        step_ns=int(end_ns[-1]),
        op_types=tuple(node.op for node in graph.nodes.values()),
        dataflow=Dataflow(graph, {(n, 0): b for b, n in enumerate(names)}, {}, MIB),
    )


def graph_of(lines: dict[str, str], random: frozenset[str] = frozenset()) -> StepGraph:
    """Return a graph from the inputs of each node; x and random nodes are not repeatable."""
    return StepGraph.parse(
        "\n".join(
            "\t".join(
                [name, "Op", "0", "gpro" if name in random | {"x"} else "gprod", "1"]
                + [f"{source}:0" for source in reads.split()]
            )
            for name, reads in lines.items()
        )
    )


def chain(last: str = "f b", **more: Any) -> Timeline:
    """Return a step where x makes a, a makes b, b makes c; b, c are read after the peak too."""
    graph = graph_of(
        {"x": "", "a": "x", "b": "a", "c": "b", "d": "c", "e": "d", "f": "e c", "g": last}, **more
    )
    sizes = dict.fromkeys(graph.nodes, 8 * MIB)
    return step_of(graph, sizes, dict.fromkeys(graph.nodes, 1000))


def applied(timeline: Timeline, recomputation: Recomputation) -> Timeline:
    recomputer = Recomputer(timeline)
    recomputer.apply(recomputation)
    return recomputer.timeline()


def absence_of(timeline: Timeline, tensor: str, before: str) -> int:
    return next(
        place
        for place, a in enumerate(timeline.absences)
        if a.tensor == tensor and timeline.op_names[a.before_op] == before
    )


def test_recompute_one_op_from_a_live_source() -> None:
    timeline = chain()
    recomputer = Recomputer(timeline)
    recomputation = recomputer.find(absence_of(timeline, "c:0", "f"))
    assert recomputation is not None
    assert (recomputation.nodes, recomputation.cost_ns, recomputation.kept) == (
        ("c",),
        1000,
        (),
    )  # b is live
    assert recomputation.trigger == "e"
    after = applied(timeline, recomputation)
    after.validate()
    assert after.op_names == ("x", "a", "b", "c", "d", "e", "c/again/0", "f", "g")
    assert after.step_ns == timeline.step_ns + 1000
    assert after.buffer_free_ns[3] == 5000  # c, after d
    (recompute_,) = after.recomputes
    assert (recompute_.tensor, recompute_.trigger, recompute_.consumers) == ("c:0", "e", ("f",))
    assert after.dataflow is not None
    assert after.dataflow.graph.nodes["f"].inputs == (("e", 0), ("c/again/0", 0))
    assert after.dataflow.graph.nodes["c/again/0"].controls == ("e",)
    # The clone's read splits b's absence.
    gaps = [(after.op_names[a.after_op], after.op_names[a.before_op]) for a in after.absences]
    assert ("c", "c/again/0") in gaps and ("c/again/0", "g") in gaps


def test_lineage_ends_at_live_or_kept_tensors() -> None:
    timeline = chain()
    recomputation = Recomputer(timeline).find(absence_of(timeline, "b:0", "g"))
    # The op that provides the batch does not run again: its output is kept.
    assert recomputation is not None and recomputation.nodes == ("a", "b")
    assert recomputation.kept == ((("x", 0), 8 * MIB),)

    timeline = chain(random=frozenset({"a"}))
    recomputation = Recomputer(timeline).find(absence_of(timeline, "b:0", "g"))
    assert recomputation is not None and recomputation.nodes == ("b",)
    assert recomputation.kept == ((("a", 0), 8 * MIB),)
    assert recomputation.kept_bytes == 8 * MIB
    after = applied(timeline, recomputation)
    after.validate()
    assert after.buffer_free_ns[1] == 8000  # until the clone has read it
    kept = next(a for a in after.absences if a.tensor == "a:0")
    assert (after.op_names[kept.after_op], kept.consumers) == ("b", ("b/again/0",))

    timeline = chain(random=frozenset({"b"}))
    assert Recomputer(timeline).find(absence_of(timeline, "b:0", "g")) is None


def test_overwritten_source_is_recomputed_too() -> None:
    # r overwrites m in place: recomputing r needs m.
    graph = graph_of({"x": "", "m": "x", "r": "m", "d": "r", "e": "d", "f": "e r x"})
    timeline = step_of(graph, dict.fromkeys(graph.nodes, 8 * MIB), dict.fromkeys(graph.nodes, 1000))
    assert timeline.dataflow is not None
    in_place = {**timeline.dataflow.buffer_of, ("r", 0): 1}
    free_ns = timeline.buffer_free_ns.copy()
    free_ns[1] = free_ns[2]
    size = timeline.buffer_bytes.copy()
    size[2] = 0
    timeline = replace(
        timeline,
        buffer_bytes=size,
        buffer_free_ns=free_ns,
        absences=tuple(replace(a, buffer=1) if a.buffer == 2 else a for a in timeline.absences),
        dataflow=replace(timeline.dataflow, buffer_of=in_place),
    )
    recomputation = Recomputer(timeline).find(absence_of(timeline, "r:0", "f"))
    assert recomputation is not None and recomputation.nodes == ("m", "r")
    after = applied(timeline, recomputation)
    assert after.dataflow is not None
    buffers = {after.dataflow.buffer_of[clone_name(name, 0), 0] for name in ("m", "r")}
    assert len(buffers) == 1  # in place again
    assert int(np.count_nonzero(after.buffer_bytes)) == int(np.count_nonzero(size)) + 1


def test_only_the_reader_behind_an_alias_is_a_consumer() -> None:
    # v shares t's memory; the clones of v and u read t again.
    lines = {"x": "", "t": "x", "v": "t", "u": "v", "d": "u", "e": "d", "f": "e u"}
    graph = graph_of(lines, random=frozenset({"t"}))
    nodes = {**graph.nodes, "v": replace(graph.nodes["v"], alias=True)}
    graph = replace(graph, nodes=nodes)
    timeline = step_of(graph, dict.fromkeys(nodes, 8 * MIB), dict.fromkeys(nodes, 1000))
    assert timeline.dataflow is not None
    buffers = {key: b for key, b in timeline.dataflow.buffer_of.items() if key[0] != "v"}
    timeline = replace(timeline, dataflow=replace(timeline.dataflow, buffer_of=buffers))
    recomputation = Recomputer(timeline).find(absence_of(timeline, "u:0", "f"))
    assert recomputation is not None and recomputation.nodes == ("v", "u")
    after = applied(timeline, recomputation)
    absence = after.absences[absence_of(after, "t:0", "u/again/0")]
    assert absence.consumers == ("u/again/0",)


@st.composite
def random_steps(draw: Callable[[st.SearchStrategy[T]], T]) -> Timeline:
    count = draw(st.integers(4, 16))
    lines, random = {"n0": ""}, set()
    for i in range(1, count):
        reads = draw(st.lists(st.integers(0, i - 1), min_size=1, max_size=3, unique=True))
        lines[f"n{i}"] = " ".join(f"n{j}" for j in reads)
        if draw(st.integers(0, 4)) == 0:
            random.add(f"n{i}")
    graph = graph_of(lines, random=frozenset(random))
    sizes = {name: draw(st.integers(1, 9)) * MIB for name in graph.nodes}
    return step_of(graph, sizes, {name: draw(st.integers(1, 9)) * 1000 for name in graph.nodes})


@settings(max_examples=300, deadline=None)
@given(random_steps(), st.data())
def test_buffer_lifetimes_match_the_graph_with_clones(
    timeline: Timeline, data: st.DataObject
) -> None:
    recomputer, cost_ns = Recomputer(timeline), timeline.step_ns
    for _ in range(data.draw(st.integers(1, 6))):
        found = [r for r in map(recomputer.find, range(40)) if r is not None]
        if not found:
            break
        recomputation = data.draw(st.sampled_from(found))
        recomputer.apply(recomputation)
        cost_ns += recomputation.cost_ns
        if data.draw(st.booleans()):  # numbers start again
            recomputer = Recomputer(recomputer.timeline())
    timeline = recomputer.timeline()
    timeline.validate()
    assert timeline.step_ns == cost_ns
    assert timeline.dataflow is not None
    graph = timeline.dataflow.graph
    # Every tensor lives exactly from its op's start to its last reader's end.
    op_of = {name: op for op, name in enumerate(timeline.op_names)}
    for name, op in op_of.items():
        buffer = timeline.dataflow.buffer_of[name, 0]
        uses = [op, *(op_of[reader] for reader in graph.readers.get((name, 0), ()))]
        assert timeline.buffer_alloc_ns[buffer] == timeline.op_start_ns[op]
        assert timeline.buffer_free_ns[buffer] == max(int(timeline.op_end_ns[u]) for u in uses)
        for source, _ in graph.nodes[name].inputs:
            assert timeline.op_end_ns[op_of[source]] <= timeline.op_start_ns[op]
        for control in graph.nodes[name].controls:
            assert timeline.op_end_ns[op_of[control]] <= timeline.op_start_ns[op]
    # Every absence lies between two uses, and its consumers are the later ones.
    for absence in timeline.absences:
        name = absence.tensor.rpartition(":")[0]
        uses = sorted([op_of[name], *(op_of[r] for r in graph.readers.get((name, 0), ()))])
        assert absence.after_op in uses and absence.before_op in uses
        assert not [u for u in uses if absence.after_op < u < absence.before_op]
        late = {timeline.op_names[u] for u in uses if u >= absence.before_op}
        assert set(absence.consumers) == late
    simulate(timeline, (), FakeMachine())


@settings(max_examples=100, deadline=None)
@given(random_steps(), st.floats(0.3, 1.0))
def test_policies_keep_the_budget_or_report_their_floor(timeline: Timeline, part: float) -> None:
    budget_bytes = int(peak_load(timeline) * part)
    machine = FakeMachine(1e9, 1e9)
    for plan in (
        recompute.plan_recomputes,
        joint.plan_jointly,
        capuchin.plan_swaps,
        tensile.plan_swaps,
    ):
        try:
            decision = plan(timeline, machine, budget_bytes)
        except BudgetTooSmall as error:
            assert error.floor_bytes > budget_bytes
            continue
        step = decision.timeline or timeline
        result = simulate(step, decision.swaps, machine)
        assert result.peak_bytes <= budget_bytes
        assert result.step_ns == decision.result.step_ns >= timeline.step_ns


@settings(max_examples=60, deadline=None)
@given(random_steps(), st.floats(0.4, 1.0), st.sampled_from([1e8, 1e9, 1e10]))
def test_joint_plans_are_never_worse_than_swaps(
    timeline: Timeline, part: float, speed: float
) -> None:
    budget_bytes, machine = int(peak_load(timeline) * part), FakeMachine(speed, speed)
    try:
        swaps = portfolio.plan("auto", timeline, machine, budget_bytes, only_swaps=True)
    except BudgetTooSmall:
        return
    both = portfolio.with_recomputes(swaps, timeline, machine, budget_bytes)
    assert both.result.step_ns <= swaps.result.step_ns
    assert both.result.peak_bytes <= budget_bytes


def test_slow_link_recomputes_and_fast_link_swaps() -> None:
    timeline = chain("f b x")
    budget_bytes = peak_load(timeline) - 8 * MIB
    slow = portfolio.plan("auto", timeline, FakeMachine(1e9, 1e9), budget_bytes)
    assert slow.timeline is not None and slow.timeline.recomputes
    assert slow.result.step_ns <= timeline.step_ns + 3000
    fast = portfolio.plan("auto", timeline, FakeMachine(math.inf, math.inf), budget_bytes)
    assert fast.timeline is None and fast.swaps and fast.result.stall_ns == 0


def test_error_without_dataflow() -> None:
    timeline = chain().without_dataflow()
    with pytest.raises(ValueError, match="policy='auto'"):
        recompute.plan_recomputes(timeline, FakeMachine(), peak_load(timeline) - 1)
    assert portfolio.plan("auto", timeline, FakeMachine(), peak_load(timeline) - 1).swaps


def test_plans_with_recomputes_in_files() -> None:
    timeline = chain("f b x")
    decision = recompute.plan_recomputes(timeline, FakeMachine(), peak_load(timeline) - 1)
    assert decision.timeline is not None
    function = FunctionPlan("f" * 16, recomputes=decision.timeline.recomputes)
    plan = SwapPlan(functions=(function,))
    assert SwapPlan.from_json(plan.to_json()) == plan
    graph = timeline.dataflow.graph  # type: ignore[union-attr]
    for ordinal, each in enumerate(function.recomputes):
        graph = with_clones(graph, each, ordinal)
    assert graph == decision.timeline.dataflow.graph  # type: ignore[union-attr]


def test_timelines_with_dataflow_in_files(tmp_path: Any) -> None:
    timeline = chain(random=frozenset({"a"}))
    timeline = replace(
        timeline, dataflow=replace(timeline.dataflow, scratch_bytes={"c": 5}, fixed=frozenset({0}))
    )
    save_timeline(timeline, tmp_path / "step")
    loaded = load_timeline(tmp_path / "step").dataflow
    assert loaded is not None and timeline.dataflow is not None
    assert loaded.graph == timeline.dataflow.graph
    for field in ("buffer_of", "scratch_bytes", "min_bytes", "fixed"):
        assert getattr(loaded, field) == getattr(timeline.dataflow, field)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("g\t0\t7", "g\t0\t99"),  # no such buffer
        ("g\t0\t7", "z\t0\t7"),  # no such node
        ("g\t0\t7", "g\t1\t7"),  # no such output
        ("f:0\tb:0", "f:0\tz:0"),  # an input that is not there
        ("1048576", "-5"),
        ("a\tOp\t0\tgprod", "a\tOp\t0\tgproda\t1\ta:0\nA\tOp\t0\tgprod"),  # its own alias
    ],
)
def test_malformed_dataflow_in_file_is_refused(tmp_path: Any, old: str, new: str) -> None:
    save_timeline(chain(), tmp_path / "step")
    with np.load(tmp_path / "step") as archive:
        arrays = dict(archive)
    text = arrays["dataflow"].tobytes().decode()
    assert old in text
    arrays["dataflow"] = np.frombuffer(text.replace(old, new).encode(), dtype=np.uint8)
    with (tmp_path / "step").open("wb") as file:
        np.savez_compressed(file, **arrays)
    with pytest.raises(ValueError, match="dataflow is invalid"):
        load_timeline(tmp_path / "step")
