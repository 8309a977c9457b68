"""Which graphs and shapes get addresses, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from tfswap.ops.loaded_library import Library
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.step.trace import ACCESS_DTYPE, BUFFER_DTYPE, OP_DTYPE, StepTrace
from tfswap.training.address_run import AddressRun

KIB = 1024
STEP, TEST = "0123456789abcdef", "fedcba9876543210"


@dataclass
class KnownGraphs:
    """A library that describes one graph for all, and records no ops."""

    described: int = 0
    recordings: int = 0
    planned: int = 0  # bytes at planned addresses, and others
    elsewhere: int = 0

    def step_counts(self, device: int) -> dict[str, int]:
        return {
            "bytes_out": 0,
            "slab_hit_bytes": self.planned,
            "slab_moved_bytes": self.elsewhere,
            "slab_missed_bytes": 0,
            "slab_lasting_bytes": 0,
        }

    def start_recording(self, device: int, *, host_times: bool = False) -> None:
        self.recordings += 1

    def stop_recording(self, device: int) -> bytes:
        return b"TFSWTRC2" + bytes(7 * 8)

    def describe_under_plan(self, fingerprint: str, label: str = "") -> str:
        self.described += 1
        return "a\tSum\t0\to\t1\nb\tSum\t0\to\t1\ta:0\n#delay\tx\ty"


def recording(graph: str | None, batch: int) -> StepTrace:
    """Return two ops whose outputs are as large as the batch."""
    names = ("a", "b") if graph is None else ("a", "b", graph)
    ops = np.zeros(2, OP_DTYPE)
    ops["name"], ops["start_ns"], ops["end_ns"] = (0, 1), (0, 20), (10, 30)
    ops["graph"] = -1 if graph is None else 2
    buffers = np.zeros(2, BUFFER_DTYPE)
    buffers["name"], buffers["bytes"] = (0, 1), batch * KIB
    buffers["alloc_ns"], buffers["free_ns"] = (1, 21), (40, 50)
    return StepTrace(0, 100, 0, ops, buffers, np.zeros(0, ACCESS_DTYPE), names)


def new_run() -> tuple[AddressRun, KnownGraphs]:
    graphs = KnownGraphs()
    return AddressRun(cast(Library, graphs), 0), graphs


def feed(run: AddressRun, kind: str, plan: SwapPlan, *ran: tuple[str | None, int]) -> SwapPlan:
    """Make calls of this kind, each of them recorded."""
    for graph, batch in ran:
        run.expect(kind)
        plan = run.ran(kind, recording(graph, batch), 0, plan) or plan
    return plan


def layouts(plan: SwapPlan, fingerprint: str) -> Any:
    function = plan.function(fingerprint)
    return () if function is None else function.layouts


def test_nothing_is_recorded_unless_something_without_addresses_ran() -> None:
    run, _ = new_run()
    assert not run.wants("train")
    run.expect("train")
    assert run.wants("train") and not run.wants("test")


def test_calls_are_recorded_after_one_with_allocations_elsewhere() -> None:
    run, library = new_run()
    plan = SwapPlan((FunctionPlan(STEP),))

    def call(kind: str, planned: int, elsewhere: int) -> int:
        run.call_begins(kind)
        library.planned += planned
        library.elsewhere += elsewhere
        assert run.call_ended(kind, plan) is None
        return library.recordings

    assert call("train", 100, 1) == 0
    assert call("train", 100, 10) == 0
    assert call("train", 100, 1) == 1
    assert call("test", 0, 1) == 1
    assert call("test", 100, 1) == 2
    # The end of a call that did not begin has no effect.
    assert run.call_ended("train", plan) is None
    # A call that never ends leaves no recording behind.
    run.call_begins("train")
    assert run.stop() and not run.stop()


def test_allocations_without_addresses_are_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, library = new_run()
    plan = feed(run, "train", SwapPlan((FunctionPlan(STEP),)), *[(STEP, 32)] * 3)
    monkeypatch.setattr(
        "tfswap.training.address_run.StepTrace.from_bytes", lambda data: recording(STEP, 32)
    )

    def call(planned: int, elsewhere: int) -> int:
        run.call_begins("train")
        library.planned += planned
        library.elsewhere += elsewhere
        assert run.call_ended("train", plan) is None
        return library.recordings

    # A tenth of each call has no address: recorded once.
    assert [call(90, 10) for _ in range(5)] == [0, 1, 1, 1, 1]
    # Half of it: something else ran, which may take long to run again.
    assert [call(50, 50), call(90, 10), call(90, 10)] == [1, 2, 3]


def test_each_shape_gets_its_own_layout() -> None:
    run, _ = new_run()
    plan = SwapPlan((FunctionPlan(STEP),))
    plan = feed(run, "train", plan, *[(STEP, 32)] * 3)
    assert len(layouts(plan, STEP)) == 1 and not run.wants("train")
    plan = feed(run, "train", plan, *[(STEP, 32), (STEP, 16)] * 3)
    assert len(layouts(plan, STEP)) == 2
    assert {slot.size_bytes for slots in layouts(plan, STEP) for slot in slots} == {
        32 * KIB,
        16 * KIB,
    }


def test_another_graph_keeps_its_on_demand_swaps() -> None:
    run, _ = new_run()
    plan = feed(run, "test", SwapPlan((FunctionPlan(STEP),)), *[(TEST, 32)] * 3)
    function = plan.function(TEST)
    assert function is not None and function.reserve and function.order[0] == ("x", "y")
    assert len(function.layouts) == 1 and layouts(plan, STEP) == ()


def test_recordings_before_a_change_of_order_are_dropped() -> None:
    run, graphs = new_run()
    plan = SwapPlan((FunctionPlan(STEP),))
    plan = feed(run, "train", plan, (STEP, 16), (STEP, 16), *[(STEP, 32)] * 3)
    plan = feed(run, "train", plan, (STEP, 16))
    assert len(layouts(plan, STEP)) == graphs.described == 1
    plan = feed(run, "train", plan, (STEP, 16), (STEP, 16))
    assert len(layouts(plan, STEP)) == 2


def test_runs_with_unplanned_moves_are_used_only_without_others() -> None:
    run, _ = new_run()
    plan = SwapPlan((FunctionPlan(STEP),))
    run.expect("train")
    plans = [run.ran("train", recording(STEP, 32), 5 * KIB, plan) for _ in range(12)]
    assert [made is None for made in plans] == [True] * 11 + [False]


def test_recording_ends_when_it_finds_nothing() -> None:
    run, _ = new_run()
    plan = feed(run, "train", SwapPlan((FunctionPlan(STEP),)), *[(STEP, 32)] * 3)
    recorded = 0
    for _ in range(1000):
        run.expect("train")
        if run.wants("train"):
            graph = STEP if recorded % 2 else None
            assert run.ran("train", recording(graph, 32), 0, plan) is None
            recorded += 1
    assert recorded == 256
    # It ends even earlier some time after the last new graph or shape.
    run, _ = new_run()
    run.expect("train")
    recorded = 0
    while run.wants("train"):
        run.ran("train", recording(None, 32), 0, plan)
        recorded += 1
    assert recorded == 64


def test_a_graph_of_many_shapes_gets_some_layouts() -> None:
    run, _ = new_run()
    plan = SwapPlan((FunctionPlan(STEP),))
    for batch in range(1, 20):
        plan = feed(run, "train", plan, *[(STEP, 2 * batch)] * 3)
    assert len(layouts(plan, STEP)) == 8
