"""AddressRun: addresses for the graphs of a training, one after the other, while it goes on.

A training runs several graphs (its step, the validation's), and one graph for tensors of several
shapes (a last batch that is smaller, sequences of other lengths). Each gets a layout of its own
from its own recorded runs; all of them begin at the slab's first address, because they run one
after the other. What still lives then, and what runs without a layout, has the slab's second half.

A layout comes with an order of ops, so that places are free. Where idle places are given back it is
kept only if steps are about as fast with it: an op that comes out of order there costs some other
address, and no memory.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tfswap.addresses.layout import plan_layout
from tfswap.io.amounts import readable_bytes
from tfswap.ops.loaded_library import Library
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.report.address_map import AddressMap, Box
from tfswap.step.graph import StepGraph
from tfswap.step.output_sizes import alike, sizes_planned, sizes_recorded
from tfswap.step.trace import StepTrace

_LAYOUT_TIME_S = 1.0
# A call that finds less of its bytes at planned addresses ran something that has none.
_PLANNED = 0.95
# So much less at planned addresses than usual, and something else ran.
_UNUSUAL = 0.01
_COUNTED = (
    "bytes_out",
    "slab_hit_bytes",
    "slab_moved_bytes",
    "slab_missed_bytes",
    "slab_lasting_bytes",
)
# How often a graph is recorded: until so many runs moved no more than planned, but at most so many.
_AS_PLANNED, _MOST_RUNS = 3, 12
# Something without a layout has run: so many calls of the same kind are recorded to meet it again,
# and in all so many in vain. (The last batch of an epoch comes once in a while.)
_PATIENCE, _MOST_IN_VAIN = 64, 256
# Each layout has the graph optimised again, for the order of ops that it needs.
_MOST_SHAPES = 8
# So many calls under a new order of ops are timed, behind the one that optimises the graph, and may
# take so much longer than before.
_TIMED_CALLS = 5
_SLOWER = 1.05
# After so many calls for other shapes meanwhile, the order stays, timed or not.
_MOST_OTHERS = 16
# After so many calls without one that is recorded, nothing more is to be expected.
_QUIET_CALLS = 3
# Calls whose allocations differ by more than this part are for tensors of other shapes. (In order,
# more ops write into their inputs' buffers: up to 0.11 less is allocated.)
_SAME_SIZE = 0.25


@dataclass
class _Shape:
    """What was recorded of a graph for tensors of one shape.

    Attributes:
        sizes: By op, the bytes of its first output.
        traces: The recordings.
        as_planned: How many of them moved no more than planned.
        call_bytes: What such a call allocates.
    """

    sizes: dict[str, int]
    traces: list[StepTrace] = field(default_factory=list)
    as_planned: int = 0
    call_bytes: int = 0


@dataclass
class _OnTrial:
    """An order of ops that a layout wants.

    Attributes:
        fingerprint: Of the graph.
        order: The edges.
        before_s: What calls took without it.
        call_bytes: What they allocated.
        others: Calls for other shapes meanwhile.
        taken_s: What calls have taken under it.
    """

    fingerprint: str
    order: tuple[tuple[str, str], ...]
    before_s: float
    call_bytes: int
    others: int = 0
    taken_s: list[float] = field(default_factory=list)


class AddressRun:
    """Watches the calls of a training, and records graphs until their addresses can be planned.

    Args:
        lib: The library.
        device: Whose addresses.
        limit_bytes: What a slab and all beside it may take, where it is one block that stays as it
            is. Defaults to None: a slab gives back what is idle.
        label: The training's, for the pass.

    Attributes:
        maps: Of the layouts that were made.
        problem: Why there are no more; "" if nothing is in the way.
        said: What is to be told of the last call; "" if nothing.
        recorded: Fingerprint of the graph that the last call ran, if it was recorded.
    """

    def __init__(
        self, lib: Library, device: int, limit_bytes: int | None = None, label: str = ""
    ) -> None:
        self._library = lib
        self._label = label
        self._device = device
        self._limit_bytes = limit_bytes
        self.problem = ""
        self.said = ""
        self.recorded: str | None = None
        self._recording = False
        self._before: dict[str, int] = {}
        self._begun_s = 0.0
        self._on_trial: dict[str, _OnTrial] = {}  # by kind of call
        self._shapes: dict[str, list[_Shape]] = defaultdict(list)
        self._patience: Counter[str] = Counter()  # by kind of call
        self._in_vain: Counter[str] = Counter()
        self._quiet: Counter[str] = Counter()  # calls since one was recorded
        # The planned part of a call in which nothing new was found: what comes from elsewhere (the
        # batches of a GPU) has no places, and there is no use in looking for it again.
        self._usual: dict[str, float] = {}
        self.maps: list[AddressMap] = []

    def call_begins(self, kind: str) -> None:
        """A call of this kind (any text) begins."""
        if self.wants(kind):
            self._library.start_recording(self._device, host_times=True)
            self._recording = True
        self._before = self._library.step_counts(self._device)
        self._begun_s = time.perf_counter()

    def call_ended(self, kind: str, plan: SwapPlan, steps: int = 1) -> SwapPlan | None:
        """It has ended.

        Args:
            kind: Of call.
            plan: In force meanwhile.
            steps: In one call.

        Returns:
            The plan with addresses for what has been recorded often enough now, if anything has;
            or without the order of ops for them, if it has turned out to cost time.
        """
        self.said = ""
        self.recorded = None
        if not self._before:
            return None
        taken_s = time.perf_counter() - self._begun_s
        recording = self.stop()
        self._quiet[kind] = 0 if recording else self._quiet[kind] + 1
        after = self._library.step_counts(self._device)
        since = {key: after[key] - self._before[key] for key in _COUNTED}
        self._before = {}
        hit, moved, missed = (since[f"slab_{name}_bytes"] for name in ("hit", "moved", "missed"))
        planned = hit / max(hit + moved + missed, 1)
        call_bytes = hit + moved + missed + since["slab_lasting_bytes"]
        unusual = planned <= min(_PLANNED, self._usual.get(kind, 1.0) - _UNUSUAL)
        if recording:
            in_vain = self._in_vain[kind]
            trace = StepTrace.from_bytes(recording)
            self.recorded = trace.main_graph()
            with_addresses = self.ran(kind, trace, since["bytes_out"] // steps, plan, call_bytes)
            if with_addresses is not None:
                return with_addresses
            nothing_new = self._in_vain[kind] > in_vain and self.recorded is not None
            if nothing_new and unusual:
                self._usual[kind] = planned
                self._patience[kind] = 0
        elif unusual:
            self.expect(kind)
        return self.timed(kind, taken_s, call_bytes, plan)

    def stop(self) -> bytes:
        """Ends the recording that is under way, if there is one, and answers it."""
        if not self._recording:
            return b""
        self._recording = False
        return self._library.stop_recording(self._device)

    def expect(self, kind: str) -> None:
        """Something without addresses ran in a call of this kind, and is to be recorded."""
        if self._in_vain[kind] < _MOST_IN_VAIN:
            self._patience[kind] = _PATIENCE

    def wants(self, kind: str) -> bool:
        """Whether the next call of this kind should be recorded."""
        return self._patience[kind] > 0 and not self.problem

    def is_trying(self, kind: str) -> bool:
        """Whether it is still to be seen what an order of ops costs calls of this kind."""
        return kind in self._on_trial

    def is_quiet(self, kind: str) -> bool:
        """Whether no call of this kind has been recorded for some time."""
        return self._quiet[kind] >= _QUIET_CALLS

    def timed(self, kind: str, taken_s: float, call_bytes: int, plan: SwapPlan) -> SwapPlan | None:
        """Takes the time of a call, recorded or not, that has led to no new addresses.

        Args:
            kind: Of call.
            taken_s: Its time.
            call_bytes: What it allocated.
            plan: In force meanwhile.

        Returns:
            The plan without the order of ops that was on trial, if it costs time.
        """
        trial = self._on_trial.get(kind)
        if trial is None:
            return None
        if abs(call_bytes - trial.call_bytes) > _SAME_SIZE * trial.call_bytes:
            trial.others += 1
            if trial.others >= _MOST_OTHERS:
                del self._on_trial[kind]
            return None
        trial.taken_s.append(taken_s)
        if len(trial.taken_s) <= _TIMED_CALLS:
            return None
        del self._on_trial[kind]
        now_s = statistics.median(trial.taken_s[1:])
        function = plan.function(trial.fingerprint)
        if function is None or now_s <= _SLOWER * trial.before_s:
            return None
        self.said = (
            f"addresses no longer keep ops in order: with it, a step took {now_s:.2f} s, not "
            f"{trial.before_s:.2f} s"
        )
        wanted = set(trial.order)
        order = tuple(edge for edge in function.order if edge not in wanted)
        return plan.with_function(dataclasses.replace(function, order=order))

    def ran(
        self,
        kind: str,
        trace: StepTrace,
        bytes_out: int,
        plan: SwapPlan,
        call_bytes: int = 0,
    ) -> SwapPlan | None:
        """Takes a recording.

        Args:
            kind: Of call: any text.
            trace: The recording.
            bytes_out: What left the device meanwhile.
            plan: In force meanwhile.
            call_bytes: What it allocated.

        Returns:
            The plan with addresses for what has been recorded often enough now, if anything has.
        """
        fingerprint = trace.main_graph()
        if fingerprint is None:
            self._was_in_vain(kind)
            return None
        function = plan.function(fingerprint)
        layouts = () if function is None else function.layouts
        sizes = sizes_recorded(trace)
        known = any(alike(sizes, sizes_planned(layout)) for layout in layouts)
        if known or len(layouts) >= _MOST_SHAPES:
            self._was_in_vain(kind)
            return None
        shapes = self._shapes[fingerprint]
        shape = next((s for s in shapes if alike(sizes, s.sizes)), None)
        if shape is None:
            shape = _Shape(sizes)
            shapes.append(shape)
        shape.traces.append(trace)
        shape.call_bytes = call_bytes
        shape.as_planned += bytes_out <= (0 if function is None else function.bytes_per_step)
        if shape.as_planned < _AS_PLANNED and len(shape.traces) < _MOST_RUNS:
            return None
        shapes.clear()  # what others did was without the order of ops that follows
        self._patience.clear()
        laid_out = self._laid_out(fingerprint, function, shape.traces)
        if laid_out is None:
            return None
        self._try_order(kind, shape, function, laid_out)
        return plan.with_function(laid_out)

    def _try_order(
        self, kind: str, shape: _Shape, before: FunctionPlan | None, now: FunctionPlan
    ) -> None:
        """Has the order of ops of a new layout timed, where doing without costs no memory."""
        known = () if before is None else before.order
        order = tuple(edge for edge in now.order if edge not in set(known))
        if self._limit_bytes is not None or not order:
            return
        before_s = statistics.median(trace.end_ns - trace.start_ns for trace in shape.traces) / 1e9
        self._on_trial[kind] = _OnTrial(now.fingerprint, order, before_s, shape.call_bytes)

    def _was_in_vain(self, kind: str) -> None:
        self._in_vain[kind] += 1
        left = _MOST_IN_VAIN - self._in_vain[kind]
        self._patience[kind] = min(self._patience[kind] - 1, left)

    def _laid_out(
        self, fingerprint: str, function: FunctionPlan | None, traces: list[StepTrace]
    ) -> FunctionPlan | None:
        graph = StepGraph.parse(self._library.describe_under_plan(fingerprint, self._label))
        if function is None:  # it keeps its lazy swaps
            function = FunctionPlan(fingerprint, order=graph.order, reserve=True)
        layout = plan_layout(traces, graph, function, seconds=_LAYOUT_TIME_S)
        needed_bytes = layout.height_bytes + layout.beside_bytes
        if self._limit_bytes is not None and needed_bytes > self._limit_bytes:
            self.problem = (
                f"addresses are not planned: a slab of {readable_bytes(layout.height_bytes)} and "
                f"{readable_bytes(layout.beside_bytes)} beside it are more than the budget"
            )
            return None
        boxes = tuple(
            Box(slot, lived.begin_ns, lived.end_ns)
            for slot, lived in zip(layout.slots, layout.lived, strict=False)
        )
        self.maps.append(AddressMap(fingerprint, boxes, layout.height_bytes, layout.max_live_bytes))
        return dataclasses.replace(
            function,
            layouts=(*function.layouts, layout.slots),
            order=(*function.order, *layout.order),
        )
