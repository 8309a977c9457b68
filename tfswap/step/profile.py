"""Convert a recorded step to the timeline for planners.

The recording was made with on-demand swaps or an initial plan, so buffers may have been swapped out
and in. The timeline shows the step without swaps: a buffer that returned is the same buffer, and
time spent waiting for memory or for copies is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfswap.step.graph import StepGraph
from tfswap.step.list_elements import let_leave, list_elements
from tfswap.step.op_floor import StepFloor
from tfswap.step.recorded_floor import recorded_floor
from tfswap.step.recorded_ops import RecordedOps
from tfswap.step.section_floor import SectionFloor
from tfswap.step.timeline import Absence, Timeline, peak_load
from tfswap.step.trace import StepTrace
from tfswap.step.variables import find_variables, variable_absences


@dataclass(frozen=True)
class Profile:
    """A recorded step, for planners.

    Args:
        timeline: The unswapped step, with the order edges. Elements of loops' lists, which leave on
            demand, count only while ops use them.
        fingerprint: The graph's fingerprint.
        order: The order edges that the pass proposes for the graph: (before, after).
        unswapped_peak_bytes: Peak load of the step in stock TensorFlow, without the order edges.
        worst_peak_bytes: Peak load if all updates of variables ran at the step's end, which stock
            TensorFlow's executor may do because it does not order ready ops.
        large_ops: The timeline's ops that access buffers large enough to be swapped.
        activations: Indices of the absences of float32 activations that only the backward part
            reads afterwards. Lossy codecs are allowed only for these.
        section_floors: The smallest budgets with sections, sorted by the number of sections; empty
            if the pass did not compute them.
        floor: What the largest op needs at once; None if unknown.
    """

    timeline: Timeline
    fingerprint: str
    order: tuple[tuple[str, str], ...]
    unswapped_peak_bytes: int
    worst_peak_bytes: int
    large_ops: tuple[int, ...] = ()
    activations: frozenset[int] = frozenset()
    section_floors: tuple[SectionFloor, ...] = ()
    floor: StepFloor | None = None

    def without_dataflow(self) -> Profile:
        """Return the profile without the dataflow that recomputes need."""
        return replace(self, timeline=self.timeline.without_dataflow())


def profile_step(
    trace: StepTrace,
    graph: StepGraph,
    fingerprint: str = "",
    min_bytes: int = 1 << 20,
    variables_leave: bool = False,
    sums: Iterable[tuple[str, str]] = (),
) -> Profile:
    """Convert a recorded step to a profile.

    Args:
        trace: The recording of one call of the training function; of several steps in a loop, the
            last one is used.
        graph: The function's graph, as the pass describes it.
        fingerprint: The graph's fingerprint.
        min_bytes: Smaller tensors are not swapped.
        variables_leave: Whether values of variables may be swapped out between steps.
        sums: Order edges of a plan for sums that race; see `StepGraph.in_order`. The floor is that
            of swaps on demand, which have no such edges.

    Raises:
        ValueError: The recording has no ops of this graph.
    """
    step = RecordedOps(trace, graph, min_bytes)
    variables = find_variables(step, trace, graph)
    values = {buffer for variable in variables.values() for buffer in variable.buffers()}
    elements = list_elements(step, trace)
    on_demand = _absences(step, graph, min_bytes, values)
    early_ns = _early_returns(step, graph)
    floor = recorded_floor(step, variables, on_demand, elements, min_bytes, early_ns)
    graph = graph.in_order(sums)
    of_variables: list[Absence] = []
    if variables_leave:
        of_variables = variable_absences(step, graph, variables, min_bytes)  # merges buffers
    unswapped_bytes = _peak_without_delays(step, graph, late_updates=False)
    worst_bytes = _peak_without_delays(step, graph, late_updates=True)
    let_leave(step, elements)
    absences = [*_absences(step, graph, min_bytes, values), *of_variables]
    timeline = step.timeline(graph, absences, step.dataflow(trace, graph, min_bytes, of_variables))
    return Profile(
        timeline,
        fingerprint,
        graph.order,
        unswapped_bytes,
        worst_bytes,
        step.users_of(min_bytes),
        kept_activations(absences, graph),
        floor=floor,
    )


def kept_activations(absences: Sequence[Absence], graph: StepGraph) -> frozenset[int]:
    """Return the indices of the absences of activations that only the backward part ends."""
    found = set()
    for index, absence in enumerate(absences):
        node, _, port = absence.tensor.rpartition(":")
        if graph.nodes[node].activations[int(port)] and all(
            graph.nodes[reader].backward for reader in absence.consumers
        ):
            found.add(index)
    return frozenset(found)


def _early_returns(step: RecordedOps, graph: StepGraph) -> dict[int, int]:
    """Return when on-demand swaps bring back what racing ops read, by op; 0: they move none."""
    returns_ns = {}
    for name in graph.raced.keys() & step.op_of_node.keys():
        trigger = step.op_of_node.get(graph.triggers.get(name, ""))
        returns_ns[step.op_of_node[name]] = 0 if trigger is None else int(step.end_ns[trigger])
    return returns_ns


def _absences(
    step: RecordedOps, graph: StepGraph, min_bytes: int, values: Collection[int]
) -> list[Absence]:
    """Return the absences of ops' outputs.

    Args:
        step: The step.
        graph: Its graph.
        min_bytes: Smaller outputs are not swapped.
        values: Buffers of variables. An output in the buffer that a variable had before (a
            transpose may be a view) would free no memory.
    """
    absences: list[Absence] = []
    last_end: dict[int, int] = {}  # by buffer: the op that ends its last absence
    for name, producer in step.op_of_node.items():
        node = graph.nodes[name]
        if not node.producer or node.alias:
            continue
        for port, plain in enumerate(node.plain):
            buffer = step.outputs.get((producer, port))
            if not plain or buffer is None or step.buffer_bytes[buffer] < min_bytes:
                continue
            if buffer in values and step.alloc_ns[buffer] < step.start_ns[producer]:
                continue
            for absence in _absences_of_tensor(step, graph, name, port, producer, buffer):
                # Of tensors that share a buffer, such as slices, only one can be swapped at a time.
                end = last_end.get(buffer, -1)
                if end > absence.after_op or (
                    end >= 0 and step.end_ns[end] > step.end_ns[absence.after_op]
                ):
                    continue
                last_end[buffer] = absence.before_op
                absences.append(absence)
    return absences


def _absences_of_tensor(
    step: RecordedOps, graph: StepGraph, name: str, port: int, producer: int, buffer: int
) -> list[Absence]:
    context = graph.nodes[name].context
    names: dict[int, list[str]] = {}  # of the readers, by op
    racing: set[int] = set()
    together: list[tuple[int, int]] = []
    for reader_name in graph.readers_through_aliases(name, port):
        node = graph.nodes[reader_name]
        place = step.op_of_node.get(reader_name)
        twin = graph.twins.get(reader_name)
        if twin is not None:
            twins_place = step.op_of_node.get(twin)
            if place is None:
                place = twins_place  # one op ran for both
            elif twins_place is not None:
                together.append((place, twins_place))
        # A reader that was fused, is on a branch or forwards the tensor keeps it on the device.
        if place is None or not node.rewirable or node.context != context:
            return []
        names.setdefault(place, []).append(reader_name)
        if node.racing:
            racing.add(place)
    readers = sorted(names)
    users = sorted(set(step.users[buffer]))
    absences: list[Absence] = []
    last = producer
    for i, reader in enumerate(readers):
        between = [u for u in users if last < u < reader and u not in readers]
        # No other op may use the buffer (in place, or a slice of it) during the absence.
        if (
            not {last, reader} <= racing
            and not any(a < reader <= b for a, b in together)
            and step.start_ns[reader] >= step.end_ns[last]
            and reader > last
            and not any(step.end_ns[u] > step.end_ns[last] for u in between)
            and step.alloc_ns[buffer] < step.end_ns[last]
            and step.start_ns[reader] < step.free_ns[buffer]
            and step.end_ns[producer] <= step.end_ns[last]
        ):
            absences.append(
                Absence(
                    buffer=buffer,
                    tensor=f"{name}:{port}",
                    producer_op=producer,
                    after_op=last,
                    before_op=reader,
                    consumers=tuple(n for r in readers[i:] for n in names[r]),
                    context=context,
                )
            )
        if step.end_ns[reader] > step.end_ns[last]:
            last = reader
    return absences


def _peak_without_delays(step: RecordedOps, graph: StepGraph, late_updates: bool) -> int:
    """Return the peak load if delayed ops run at the step's start, as in stock TensorFlow.

    With `late_updates`, the inputs of variable updates stay alive until the step's end.
    """
    step_ns = int(step.end_ns.max())
    alloc_ns, free_ns = step.alloc_ns.copy(), step.free_ns.copy()
    if late_updates:
        updates = {step.op_of_node.get(update) for update, _ in graph.keep_ups}
        read = [i for i, users in enumerate(step.users) if not updates.isdisjoint(users)]
        free_ns[read] = np.maximum(free_ns[read], step_ns)
    for _, delayed in graph.delays:
        place = step.op_of_node.get(delayed)
        buffer = None if place is None else step.outputs.get((place, 0))
        if buffer is not None:
            alloc_ns[buffer] = 0
    undelayed = Timeline(
        op_names=(),
        op_start_ns=np.empty(0, np.int64),
        op_end_ns=np.empty(0, np.int64),
        op_gateable=np.empty(0, bool),
        op_context=np.empty(0, np.int32),
        resident_bytes=step.resident_bytes,
        buffer_bytes=step.buffer_bytes,
        buffer_alloc_ns=alloc_ns,
        buffer_free_ns=free_ns,
        absences=(),
        step_ns=step_ns,
    )
    return peak_load(undelayed)
