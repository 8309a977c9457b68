"""From a recorded step to the timeline that planners see.

The recording was made under lazy swaps or a first plan, so some buffers may have left and come
back while it ran. The timeline is that of the step without swaps: a buffer that came back is
the same buffer, time spent waiting for memory or for copies is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tfswap.dataflow import Dataflow
from tfswap.grappler.graph import StepGraph
from tfswap.plan import SWAP_IN_PREFIX, SWAP_OUT_PREFIX
from tfswap.section_floor import SectionFloor
from tfswap.step_variables import variable_absences
from tfswap.timeline import OUTLIVES_STEP_NS, Absence, Timeline, peak_load
from tfswap.trace import StepTrace

# Between two ops an executor thread needs some microseconds; a longer gap was a wait.
_LONGEST_GAP_NS = 20_000

# The kind of a buffer that an op works in (slots.Key).
_SCRATCH = 1

# Ops that wait for something outside of the step.
_WAITING_TYPES = frozenset(
    {"IteratorGetNext", "IteratorGetNextAsOptional", "_CopyFromHost", "_HostRecv", "_Recv"}
)


@dataclass(frozen=True)
class Profile:
    """A step as planners see it.

    Args:
        timeline: The unswapped step, under the order edges.
        fingerprint: Names its graph.
        order: The order edges that the pass proposes for the graph: (before, after).
        unswapped_peak_bytes: Peak load of the step as stock TensorFlow runs it, without the order
            edges.
        worst_peak_bytes: Peak load if all updates of variables ran at the step's very end, which
            stock TensorFlow's executor may do: its queue has no order.
        large_ops: The timeline's ops that make or read what is large enough to be swapped.
        activations: Places of those absences, of float32 activations, behind which only the
            backward part reads: in none other may a tensor be kept lossily.
        section_floors: The least budgets with sections, the fewest first; empty where the pass did
            not look.
    """

    timeline: Timeline
    fingerprint: str
    order: tuple[tuple[str, str], ...]
    unswapped_peak_bytes: int
    worst_peak_bytes: int
    large_ops: tuple[int, ...] = ()
    activations: frozenset[int] = frozenset()
    section_floors: tuple[SectionFloor, ...] = ()

    def only_swaps(self) -> Profile:
        """The same without what it takes to make tensors again."""
        return replace(self, timeline=self.timeline.only_swaps())


def profile_step(
    trace: StepTrace,
    graph: StepGraph,
    fingerprint: str = "",
    min_bytes: int = 1 << 20,
    variables_leave: bool = False,
) -> Profile:
    """Makes the timeline of the recorded step.

    Args:
        trace: The recording of one call of the training function (of several steps in a loop, the
            last is taken).
        graph: The function's graph.
        fingerprint: The graph's.
        min_bytes: Smaller tensors are not swapped.
        variables_leave: Whether values of variables may be away between steps.

    Raises:
        ValueError: The recording has no ops of this graph.
    """
    step = RecordedOps(trace, graph, min_bytes)
    of_variables = variable_absences(step, trace, graph, min_bytes) if variables_leave else []
    absences = [*_absences(step, graph, min_bytes), *of_variables]
    timeline = step.timeline(graph, absences, step.dataflow(trace, graph, min_bytes, of_variables))
    return Profile(
        timeline,
        fingerprint,
        graph.order,
        _peak_without_delays(step, timeline, graph, late_updates=False),
        _peak_without_delays(step, timeline, graph, late_updates=True),
        step.users_of(min_bytes),
        kept_activations(absences, graph),
    )


def kept_activations(absences: Sequence[Absence], graph: StepGraph) -> frozenset[int]:
    """Places of the absences of activations that only the backward part ends."""
    found = set()
    for place, absence in enumerate(absences):
        node, _, port = absence.tensor.rpartition(":")
        if graph.nodes[node].activations[int(port)] and all(
            graph.nodes[reader].backward for reader in absence.consumers
        ):
            found.add(place)
    return frozenset(found)


class RecordedOps:
    """One step cut out of a recording, with its times moved to the axis without waits."""

    def __init__(self, trace: StepTrace, graph: StepGraph, min_bytes: int) -> None:
        ops = trace.ops
        names = trace.names
        group, inside = _one_step(trace, graph)
        first_ns = int(ops["start_ns"][group].min())
        last_ns = int(ops["end_ns"][group].max())
        self.clock = _Clock(ops[inside], names)
        copy = np.fromiter((name.startswith("tfswap/") for name in names), bool, len(names))
        kept = np.flatnonzero(inside & ~copy[ops["name"]])
        kept = kept[np.argsort(ops["start_ns"][kept], kind="stable")]

        self.first_ns = first_ns
        self.last_ns = last_ns
        self.names = tuple(names[i] for i in ops["name"][kept])
        # The wait came first, then the work.
        start_ns = self.clock(ops["start_ns"][kept] + ops["wait_ns"][kept])
        self.end_ns = self.clock(ops["end_ns"][kept])
        order = np.argsort(start_ns, kind="stable")
        kept = kept[order]
        self.names = tuple(self.names[i] for i in order)
        self.types = tuple(names[i] for i in ops["type"][kept])
        self.start_ns = start_ns[order]
        self.end_ns = self.end_ns[order]
        self.place = {int(op): place for place, op in enumerate(kept)}
        in_group = set(np.flatnonzero(group).tolist())
        # Nodes of inner loops run often; only the group's own have one place in the step.
        self.op_of_node = {
            name: place
            for place, (name, op) in enumerate(zip(self.names, kept, strict=True))
            if int(op) in in_group and name in graph.nodes
        }
        self._read_buffers(trace, min_bytes)
        self._read_accesses(trace, graph)

    def _read_buffers(self, trace: StepTrace, min_bytes: int) -> None:
        buffers = trace.buffers
        large = buffers["bytes"] >= min_bytes
        of_variable = np.zeros(len(buffers), dtype=bool)
        of_variable[trace.values["buffer"]] = True
        alloc_ns = buffers["alloc_ns"]
        free_ns = np.where(buffers["free_ns"] < 0, np.iinfo(np.int64).max, buffers["free_ns"])
        present = (alloc_ns < self.last_ns) & (free_ns > self.first_ns)
        stays = present & (alloc_ns < self.first_ns) & (free_ns > self.last_ns)
        stays &= ~(of_variable & large)
        self.resident_bytes = int(trace.resident_bytes + buffers["bytes"][stays].sum())
        moving = np.flatnonzero(present & ~stays)
        self.buffer_place = {int(b): place for place, b in enumerate(moving)}
        self.buffer_bytes = buffers["bytes"][moving].astype(np.int64)
        self.alloc_ns = self.clock(np.maximum(alloc_ns[moving], self.first_ns))
        freed = free_ns[moving] <= self.last_ns
        self.free_ns = np.where(
            freed, self.clock(np.minimum(free_ns[moving], self.last_ns)), OUTLIVES_STEP_NS
        )

    def _read_accesses(self, trace: StepTrace, graph: StepGraph) -> None:
        """Fills `outputs` (op, port) -> buffer and `users` buffer -> places of ops."""
        self.outputs: dict[tuple[int, int], int] = {}
        self.users: list[list[int]] = []
        rows = [
            (op, port, self.buffer_place[buffer])
            for op, port, buffer in zip(
                trace.accesses["op"].tolist(),
                trace.accesses["port"].tolist(),
                trace.accesses["buffer"].tolist(),
                strict=True,
            )
            if buffer in self.buffer_place
        ]
        rows = self._apart_from_what_left(trace, rows, graph)
        self.users = [[] for _ in self.buffer_bytes]
        self.same, taken = self._buffers_that_came_back(trace, rows, graph)
        same = self.same
        for place, origin in enumerate(same.tolist()):
            if place in taken:
                # Without the swap it could not have been taken: the other tensor was still there.
                self.free_ns[origin] = max(self.free_ns[origin], self.end_ns[taken[place]])
                self.alloc_ns[place] = self.start_ns[taken[place]]
            elif origin != place:
                self.free_ns[origin] = max(self.free_ns[origin], self.free_ns[place])
                self.buffer_bytes[place] = 0
        for op, port, place in rows:
            op_place = self.place.get(op)
            if op_place is None:
                continue
            logical = int(same[place])
            if place in taken:
                taker = taken[place]
                later = op_place != taker and self.start_ns[op_place] >= self.start_ns[taker]
                if later or (op_place == taker and port < 0):
                    logical = place
            self.users[logical].append(op_place)
            if port < 0:
                self.outputs[op_place, -1 - port] = logical

    def _apart_from_what_left(
        self, trace: StepTrace, rows: list[tuple[int, int, int]], graph: StepGraph
    ) -> list[tuple[int, int, int]]:
        """Gives tensors buffers of their own that took over the memory of one that had left.

        A planned copy-out gives its tensor up at once, so that the last op which reads it before it
        is back may write in its place. Without the swap it could not.
        """
        op_names = [trace.names[i] for i in trace.ops["name"]]
        return_keys = {
            name[len(SWAP_IN_PREFIX) :].rpartition("/")[0]
            for name in op_names
            if name.startswith(SWAP_IN_PREFIX)
        }
        now: dict[int, int] = {}  # by buffer: what its memory is by now
        left: set[int] = set()
        taken: dict[int, tuple[int, int]] = {}  # by new buffer: the op, and the one that had left
        sizes, alloc_ns, free_ns = map(
            np.ndarray.tolist, (self.buffer_bytes, self.alloc_ns, self.free_ns)
        )
        apart = []
        for op, port, place in rows:  # by the ops' starts
            name, op_place = op_names[op], self.place.get(op)
            current = now.get(place, place)
            node = graph.nodes.get(name)
            if port == 0 and name.startswith(SWAP_OUT_PREFIX):
                if name[len(SWAP_OUT_PREFIX) :] in return_keys:
                    left.add(current)
            elif port < 0 and name.startswith(SWAP_IN_PREFIX):
                left.discard(current)  # a lazy one that is handed back had not left
            elif port < 0 and current in left and op_place is not None:
                if node is not None and not node.alias:
                    taken[len(sizes)] = (op, current)
                    sizes.append(sizes[place])
                    alloc_ns.append(int(self.start_ns[op_place]))
                    free_ns.append(free_ns[current])
                    free_ns[current] = int(self.end_ns[op_place])
                    current = now[place] = len(sizes) - 1
            elif port >= 0 and taken.get(current, (-1, 0))[0] == op:
                current = taken[current][1]  # it reads what it takes over
            apart.append((op, port, current))
        self.buffer_bytes = np.array(sizes, dtype=np.int64)
        self.alloc_ns = np.array(alloc_ns, dtype=np.int64)
        self.free_ns = np.array(free_ns, dtype=np.int64)
        return apart

    def _buffers_that_came_back(
        self, trace: StepTrace, rows: list[tuple[int, int, int]], graph: StepGraph
    ) -> tuple[NDArray[np.int64], dict[int, int]]:
        """Which buffers are swapped-in copies of which, and which of those were taken in place.

        Returns:
            For each buffer the one that it is a copy of, itself if it is none; and of the copies
            whose memory an op took for its own output, the op's place.
        """
        op_names = [trace.names[i] for i in trace.ops["name"]]
        far: dict[str, int] = {}  # the buffer that left, by the copy's key
        same = np.arange(len(self.buffer_bytes))
        taken: dict[int, int] = {}
        for op, port, place in rows:  # by the ops' starts
            name, op_place = op_names[op], self.place.get(op)
            if port == 0 and name.startswith(SWAP_OUT_PREFIX):
                far[name[len(SWAP_OUT_PREFIX) :]] = place
            elif port == -1 and name.startswith(SWAP_IN_PREFIX):
                key = name[len(SWAP_IN_PREFIX) :].rpartition("/")[0]
                origin = far.get(key, place)
                if origin == place:
                    continue  # it had not left
                its_own = origin in taken and _names(self.names[taken[origin]], key)
                same[place] = origin if its_own else same[origin]
            elif port < 0 and op_place is not None and same[place] != place:
                node = graph.nodes.get(name)
                if node is None or not node.alias:
                    taken.setdefault(place, op_place)
        return same, taken

    def users_of(self, min_bytes: int) -> tuple[int, ...]:
        """Places of the ops that use buffers of at least so many bytes."""
        large = np.flatnonzero(self.buffer_bytes >= min_bytes)
        return tuple(sorted({op for buffer in large for op in self.users[buffer]}))

    def dataflow(
        self, trace: StepTrace, graph: StepGraph, min_bytes: int, of_variables: Iterable[Absence]
    ) -> Dataflow:
        """Which tensors are in which buffers."""
        node_of = {place: name for name, place in self.op_of_node.items()}
        buffer_of: dict[tuple[str, int], int] = {}
        for (op, port), buffer in sorted(self.outputs.items()):
            node = graph.nodes.get(node_of.get(op, ""))
            # As oneDNN runs them, ops have more outputs than in the graph.
            if node is not None and not node.alias and port < len(node.plain):
                buffer_of[node.name, port] = buffer
        written = set(self.outputs.values())
        scratch: Counter[str] = Counter()
        names, kinds = trace.buffers["name"], trace.buffers["kind"]
        for buffer, place in self.buffer_place.items():
            if kinds[buffer] == _SCRATCH and place not in written:
                scratch[trace.names[names[buffer]]] += int(self.buffer_bytes[place])
        return Dataflow(
            graph,
            buffer_of,
            dict(scratch),
            min_bytes,
            frozenset(absence.buffer for absence in of_variables),
        )

    def timeline(self, graph: StepGraph, absences: list[Absence], dataflow: Dataflow) -> Timeline:
        nodes = [graph.nodes.get(name) for name in self.names]
        own = [self.op_of_node.get(name) == i for i, name in enumerate(self.names)]
        return Timeline(
            op_names=self.names,
            op_start_ns=self.start_ns,
            op_end_ns=self.end_ns,
            op_gateable=np.array(
                [
                    mine and node is not None and node.gateable
                    for mine, node in zip(own, nodes, strict=True)
                ],
                dtype=bool,
            ),
            op_context=np.array(
                [-1 if node is None else node.context for node in nodes], dtype=np.int32
            ),
            resident_bytes=self.resident_bytes,
            buffer_bytes=self.buffer_bytes,
            buffer_alloc_ns=self.alloc_ns,
            buffer_free_ns=self.free_ns,
            absences=tuple(absences),
            step_ns=int(self.end_ns.max()),
            op_types=tuple(self.types),
            dataflow=dataflow,
        )


def _names(op_name: str, key: str) -> bool:
    """Whether a copy's key is that of an output of the op."""
    return key.rpartition("_")[0] == op_name.replace(":", "_")


def op_durations(trace: StepTrace, graph: StepGraph) -> dict[str, int]:
    """By op, how long it ran in the recorded step, in ns; one that ran often, in all.

    Waits for memory are left out, as are ops that wait for something outside of the step.

    Raises:
        ValueError: The recording has no ops of this graph.
    """
    _, inside = _one_step(trace, graph)
    durations: Counter[str] = Counter()
    ops = trace.ops[inside]
    took_ns = ops["end_ns"] - ops["start_ns"] - ops["wait_ns"]
    for name, type_, ns in zip(
        ops["name"].tolist(), ops["type"].tolist(), took_ns.tolist(), strict=True
    ):
        if trace.names[type_] not in _WAITING_TYPES:
            durations[trace.names[name]] += max(ns, 0)
    return dict(durations)


def planned_durations(timeline: Timeline) -> dict[str, int]:
    """Likewise of a profiled step: what plans go by."""
    durations: Counter[str] = Counter()
    took_ns = (timeline.op_end_ns - timeline.op_start_ns).tolist()
    types = timeline.op_types or ("",) * len(took_ns)
    for name, type_, ns in zip(timeline.op_names, types, took_ns, strict=True):
        if type_ not in _WAITING_TYPES:
            durations[name] += ns
    return dict(durations)


def _one_step(trace: StepTrace, graph: StepGraph) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of the recorded ops, the graph's own of one step, and all that ended while those ran.

    Raises:
        ValueError: There are none.
    """
    ops, names = trace.ops, trace.names
    in_graph = np.fromiter((name in graph.nodes for name in names), bool, len(names))
    ended = ops["end_ns"] >= 0
    ours = in_graph[ops["name"]] & ended
    if not ours.any():
        raise ValueError(
            "the recording holds no op of the training graph: the step ran elsewhere (on "
            "another device, or compiled by XLA)"
        )
    group = _main_group(ops, ours)
    inside = (
        np.isin(ops["step_id"], np.unique(ops["step_id"][group]))
        & ended
        & (ops["start_ns"] >= ops["start_ns"][group].min())
        & (ops["end_ns"] <= ops["end_ns"][group].max())
    )
    return group, np.asarray(inside)


def _main_group(ops: NDArray[np.void], ours: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The ops of one step: outside of loops, or the last full turn of the loop around steps."""
    keys = np.stack(
        [ops["step_id"].astype(np.int64), ops["frame"].astype(np.int64), ops["iteration"]], axis=1
    )
    unique, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    counts = np.bincount(group, weights=ours, minlength=len(unique))
    full = np.flatnonzero(counts >= 0.9 * counts.max())
    last_start = [int(ops["start_ns"][group == g].max()) for g in full]
    chosen = full[int(np.argmax(last_start))]
    return np.asarray(ours & (group == chosen))


class _Clock:
    """Maps recorded times to the axis on which waits take no time."""

    def __init__(self, ops: NDArray[np.void], names: tuple[str, ...]) -> None:
        waiting = np.fromiter((name in _WAITING_TYPES for name in names), bool, len(names))
        working = ops[~waiting[ops["type"]]]
        start_ns = working["start_ns"] + working["wait_ns"]
        order = np.argsort(start_ns, kind="stable")
        start_ns = start_ns[order]
        busy_until = np.maximum.accumulate(working["end_ns"][order])
        gap_ns = np.maximum(start_ns[1:] - busy_until[:-1], 0)
        cut_ns = np.maximum(gap_ns - _LONGEST_GAP_NS, 0)
        long = np.flatnonzero(cut_ns)
        # Piecewise linear: flat across the part of each gap that is cut out.
        after_ns = start_ns[1:][long]
        cuts = np.ravel(np.stack([after_ns - cut_ns[long], after_ns], 1))
        self._recorded = np.concatenate([[start_ns[0]], cuts])
        removed = np.concatenate([[0], np.cumsum(cut_ns[long])])
        removed_at = np.concatenate([[0], np.ravel(np.stack([removed[:-1], removed[1:]], 1))])
        self._moved = self._recorded - removed_at - start_ns[0]

    def __call__(self, recorded_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        recorded_ns = np.asarray(recorded_ns, dtype=np.int64)
        place = np.searchsorted(self._recorded, recorded_ns, side="right") - 1
        before = np.maximum(place, 0)
        moved = self._moved[before] + (recorded_ns - self._recorded[before])
        # Inside a cut the clock stands still.
        after = np.minimum(before + 1, len(self._recorded) - 1)
        moved = np.where(after > before, np.minimum(moved, self._moved[after]), moved)
        return np.maximum(np.where(place < 0, 0, moved), 0).astype(np.int64)


def _absences(step: RecordedOps, graph: StepGraph, min_bytes: int) -> list[Absence]:
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
            for absence in _absences_of_tensor(step, graph, name, port, producer, buffer):
                # Tensors that share a buffer, one being a part of the other, cannot both leave.
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
        # A reader that was fused away, hangs on a branch or hands the tensor on keeps it here.
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
        # Whoever else uses the buffer (in place, or a slice of it) would find it gone.
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


def _peak_without_delays(
    step: RecordedOps, timeline: Timeline, graph: StepGraph, late_updates: bool
) -> int:
    """Peak load if the delayed ops had run when the step began, as stock TensorFlow has it.

    With `late_updates`, what the updates read stays until the step's end.
    """
    alloc_ns = timeline.buffer_alloc_ns.copy()
    free_ns = timeline.buffer_free_ns.copy()
    if late_updates:
        updates = {step.op_of_node.get(update) for update, _ in graph.keep_ups}
        read = [i for i, users in enumerate(step.users) if not updates.isdisjoint(users)]
        free_ns[read] = np.maximum(free_ns[read], timeline.step_ns)
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
        resident_bytes=timeline.resident_bytes,
        buffer_bytes=timeline.buffer_bytes,
        buffer_alloc_ns=alloc_ns,
        buffer_free_ns=free_ns,
        absences=(),
        step_ns=timeline.step_ns,
    )
    return peak_load(undelayed)
