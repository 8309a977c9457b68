"""AddressRun: plan addresses for the graphs of a training while it runs.

A training runs several graphs (its step, validation), and one graph with several shapes (a smaller
last batch, sequences of other lengths). Each gets a layout from its own recorded runs. All layouts
begin at the slab's first address, because the graphs run one after the other. Buffers that outlive
a run, and runs without a layout, use the slab's second half.

A layout comes with an order of ops that keeps its addresses free when they are needed.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tfswap.addresses.layout import plan_layout
from tfswap.io.amounts import readable_bytes
from tfswap.ops.loaded_library import Library
from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.report.address_map import AddressMap, Box
from tfswap.step.graph import StepGraph
from tfswap.step.output_sizes import alike, planned_output_bytes, recorded_output_bytes
from tfswap.step.trace import StepTrace

_LAYOUT_TIME_S = 1.0
# A call that finds a smaller part of its bytes at planned addresses ran something without a layout.
_PLANNED = 0.95
# A planned part that is smaller than usual by this much means that something else ran.
_UNUSUAL = 0.01
_COUNTED = (
    "bytes_out",
    "slab_hit_bytes",
    "slab_moved_bytes",
    "slab_missed_bytes",
)
# Recorded runs of a graph: until this many moved no more than planned, and at most this many.
_AS_PLANNED, _MAX_RUNS = 3, 12
# After a call without a layout, this many calls of its kind are recorded to see it again, and at
# most this many in total without success. (The last batch of an epoch is rare.)
_PATIENCE, _MAX_IN_VAIN = 64, 256
# Each layout makes TensorFlow optimise the graph again, for the order of ops that it needs.
_MAX_SHAPES = 8
# After this many calls without a recording, planning has come to rest.
_QUIET_CALLS = 3


@dataclass
class _Shape:
    """Recordings of a graph with tensors of one shape.

    Attributes:
        sizes: Bytes of each op's first output.
        traces: The recordings.
        as_planned: Number of recordings that moved no more than planned.
    """

    sizes: dict[str, int]
    traces: list[StepTrace] = field(default_factory=list)
    as_planned: int = 0


class AddressRun:
    """Watch the calls of a training and record graphs until their addresses can be planned.

    Args:
        lib: The library.
        device: Number of the device.
        limit_bytes: Cap on the slab and all beside it, where the slab is one block of fixed size (a
            GPU). None where the slab returns idle memory.
        label: Label of the training, as the pass knows it.

    Attributes:
        maps: An address map for each layout.
        problem: Why no more layouts can be made; "" if they can.
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
        self.recorded: str | None = None
        self._recording = False
        self._before: dict[str, int] = {}
        self._shapes: dict[str, list[_Shape]] = defaultdict(list)
        self._patience: Counter[str] = Counter()  # by kind of call
        self._in_vain: Counter[str] = Counter()
        self._quiet: Counter[str] = Counter()  # calls since one was recorded
        # The planned part of a call in which nothing new was found: buffers that are made elsewhere
        # (a GPU's batches) never have planned addresses, so they are not searched for again.
        self._usual: dict[str, float] = {}
        self.maps: list[AddressMap] = []

    def call_begins(self, kind: str) -> None:
        """Note that a call of this kind (any text) begins."""
        if self.wants(kind):
            self._library.start_recording(self._device, host_times=True)
            self._recording = True
        self._before = self._library.step_counts(self._device)

    def call_ended(self, kind: str, plan: SwapPlan, steps: int = 1) -> SwapPlan | None:
        """Take a call that has ended.

        Args:
            kind: Kind of the call.
            plan: The plan that was active.
            steps: Number of steps in the call.

        Returns:
            The plan with new addresses; None if it stays.
        """
        self.recorded = None
        if not self._before:
            return None
        recording = self.stop()
        self._quiet[kind] = 0 if recording else self._quiet[kind] + 1
        after = self._library.step_counts(self._device)
        since = {key: after[key] - self._before[key] for key in _COUNTED}
        self._before = {}
        hit, moved, missed = (since[f"slab_{name}_bytes"] for name in ("hit", "moved", "missed"))
        planned = hit / max(hit + moved + missed, 1)
        unusual = planned <= min(_PLANNED, self._usual.get(kind, 1.0) - _UNUSUAL)
        if recording:
            in_vain = self._in_vain[kind]
            trace = StepTrace.from_bytes(recording)
            self.recorded = trace.main_graph()
            with_addresses = self.ran(kind, trace, since["bytes_out"] // steps, plan)
            if with_addresses is not None:
                return with_addresses
            nothing_new = self._in_vain[kind] > in_vain and self.recorded is not None
            if nothing_new and unusual:
                self._usual[kind] = planned
                self._patience[kind] = 0
        elif unusual:
            self.expect(kind)
        return None

    def stop(self) -> bytes:
        """End the current recording, if there is one, and return its bytes."""
        if not self._recording:
            return b""
        self._recording = False
        return self._library.stop_recording(self._device)

    def expect(self, kind: str) -> None:
        """Record the next calls of this kind: one ran something without addresses."""
        if self._in_vain[kind] < _MAX_IN_VAIN:
            self._patience[kind] = _PATIENCE

    def wants(self, kind: str) -> bool:
        """Return whether the next call of this kind should be recorded."""
        return self._patience[kind] > 0 and not self.problem

    def is_quiet(self, kind: str) -> bool:
        """Return whether no call of this kind has been recorded for some time."""
        return self._quiet[kind] >= _QUIET_CALLS

    def ran(
        self,
        kind: str,
        trace: StepTrace,
        bytes_out: int,
        plan: SwapPlan,
    ) -> SwapPlan | None:
        """Take a recording.

        Args:
            kind: Kind of the call: any text.
            trace: The recording.
            bytes_out: Bytes that left the device in the call.
            plan: The plan that was active.

        Returns:
            The plan with addresses of the recorded graph, if it has been recorded often enough.
        """
        fingerprint = trace.main_graph()
        if fingerprint is None:
            self._was_in_vain(kind)
            return None
        function = plan.function(fingerprint)
        layouts = () if function is None else function.layouts
        sizes = recorded_output_bytes(trace)
        known = any(alike(sizes, planned_output_bytes(layout)) for layout in layouts)
        if known or len(layouts) >= _MAX_SHAPES:
            self._was_in_vain(kind)
            return None
        shapes = self._shapes[fingerprint]
        shape = next((s for s in shapes if alike(sizes, s.sizes)), None)
        if shape is None:
            shape = _Shape(sizes)
            shapes.append(shape)
        shape.traces.append(trace)
        shape.as_planned += bytes_out <= (0 if function is None else function.bytes_per_step)
        if shape.as_planned < _AS_PLANNED and len(shape.traces) < _MAX_RUNS:
            return None
        shapes.clear()  # their recordings are without the new order of ops
        self._patience.clear()
        laid_out = self._laid_out(fingerprint, function, shape.traces)
        return None if laid_out is None else plan.with_function(laid_out)

    def _was_in_vain(self, kind: str) -> None:
        self._in_vain[kind] += 1
        left = _MAX_IN_VAIN - self._in_vain[kind]
        self._patience[kind] = min(self._patience[kind] - 1, left)

    def _laid_out(
        self, fingerprint: str, function: FunctionPlan | None, traces: list[StepTrace]
    ) -> FunctionPlan | None:
        description = self._library.describe_under_plan(fingerprint, self._label)
        graph = StepGraph.parse(description)
        if function is None:  # it keeps its on-demand swaps
            function = FunctionPlan(fingerprint, order=graph.order, reserve=True)
        graph = graph.in_order(function.order)
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
