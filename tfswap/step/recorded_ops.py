"""The ops of one step of a recording, and the buffers that they use.

The recording was made with on-demand swaps or an initial plan. A buffer that was swapped out and in
appears as one buffer that stayed. Waits take no time on the time axis (`step_clock`).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tfswap.plan.node_names import RESTORED_VARIABLE, SWAP_IN_PREFIX, SWAP_OUT_PREFIX
from tfswap.step.dataflow import Dataflow
from tfswap.step.graph import StepGraph, racing_sums
from tfswap.step.step_clock import StepClock
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline
from tfswap.step.trace import StepTrace

# The kind of temporary buffers (slots.Key).
_TEMPORARY = 1


class RecordedOps:
    """One step of a recording, with its times moved to the axis without waits."""

    def __init__(self, trace: StepTrace, graph: StepGraph, min_bytes: int) -> None:
        ops = trace.ops
        names = trace.names
        group, inside = select_step(trace, graph)
        first_ns = int(ops["start_ns"][group].min())
        last_ns = int(ops["end_ns"][group].max())
        self.clock = StepClock(ops[inside], names)
        copy = np.fromiter((name.startswith("tfswap/") for name in names), bool, len(names))
        kept = np.flatnonzero(inside & ~copy[ops["name"]])
        kept = kept[np.argsort(ops["start_ns"][kept], kind="stable")]

        self.first_ns = first_ns
        self.last_ns = last_ns
        self.names = tuple(names[i] for i in ops["name"][kept])
        # An op waits for memory before it works.
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
        # Nodes of inner loops run several times; only the group's own run exactly once.
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
        moving = np.flatnonzero(present & ~stays & ~_unused_copies_of_variables(trace))
        self.buffer_place = {int(b): place for place, b in enumerate(moving)}
        self.buffer_bytes = buffers["bytes"][moving].astype(np.int64)
        self.alloc_ns = self.clock(np.maximum(alloc_ns[moving], self.first_ns))
        freed = free_ns[moving] <= self.last_ns
        self.free_ns = np.where(
            freed, self.clock(np.minimum(free_ns[moving], self.last_ns)), OUTLIVES_STEP_NS
        )

    def _read_accesses(self, trace: StepTrace, graph: StepGraph) -> None:
        """Set `outputs`, (op, port) -> buffer, and `users`, buffer -> indices of ops."""
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
        rows = self._separate_reused_memory(trace, rows, graph)
        self.users = [[] for _ in self.buffer_bytes]
        # By buffer, what it is a copy of, and the op that made it in a swapped-in copy's memory.
        self._same, self.reused = self._buffers_that_came_back(trace, rows, graph)
        for place, origin in enumerate(self._same.tolist()):
            if place in self.reused:
                taker = self.reused[place]
                # Without the swap, the op could not have reused the memory of a live tensor.
                self.free_ns[origin] = max(self.free_ns[origin], self.end_ns[taker])
                self.alloc_ns[place] = self.start_ns[taker]
            elif origin != place:
                self.free_ns[origin] = max(self.free_ns[origin], self.free_ns[place])
                self.buffer_bytes[place] = 0
        for op, port, place in rows:
            op_place = self.place.get(op)
            if op_place is None:
                continue
            logical = self._owner(place, op_place, port)
            self.users[logical].append(op_place)
            if port < 0:
                self.outputs[op_place, -1 - port] = logical
        written = set(self.outputs.values())
        self.temporary: dict[int, str] = {}  # by buffer: the name of its op
        self.restored: set[int] = set()  # buffers of variables' values that came back
        for buffer, place in self.buffer_place.items():
            name = trace.names[trace.buffers["name"][buffer]]
            if name == RESTORED_VARIABLE:
                self.restored.add(place)
            elif trace.buffers["kind"][buffer] == _TEMPORARY and place not in written:
                self.temporary[place] = name

    def _owner(self, place: int, op_place: int, port: int) -> int:
        """Return the buffer that an op's access belongs to: a copy's is to what it is a copy of,
        until an op has made its output in the copy's memory.
        """
        if place in self.reused:
            taker = self.reused[place]
            later = op_place != taker and self.start_ns[op_place] >= self.start_ns[taker]
            if later or (op_place == taker and port < 0):
                return place
        return int(self._same[place])

    def buffer_of(self, recorded: int, op: int, port: int) -> int | None:
        """Return the buffer that an op's access belongs to; None if it is not of this step.

        Args:
            recorded: Index of the buffer in the recording.
            op: Index of the op in the recording.
            port: As in a recording: -1 minus the output if the op has made it.
        """
        place, op_place = self.buffer_place.get(recorded), self.place.get(op)
        if place is None or op_place is None:
            return None
        for taker, separated in self._separated.get(place, ()):  # sorted
            if taker < op or (taker == op and port < 0):
                place = separated
        return self._owner(place, op_place, port)

    def _separate_reused_memory(
        self, trace: StepTrace, rows: list[tuple[int, int, int]], graph: StepGraph
    ) -> list[tuple[int, int, int]]:
        """Separate tensors that reused the memory of a swapped-out tensor into new buffers.

        A planned copy-out releases its reference at once, so the last op that reads the tensor
        before it returns may write its output in place. Without the swap it could not.
        """
        op_names = [trace.names[i] for i in trace.ops["name"]]
        return_keys = {
            name[len(SWAP_IN_PREFIX) :].rpartition("/")[0]
            for name in op_names
            if name.startswith(SWAP_IN_PREFIX)
        }
        now: dict[int, int] = {}  # by recorded buffer: the buffer that its memory belongs to now
        left: set[int] = set()
        taken: dict[int, tuple[int, int]] = {}  # by new buffer: the op, and the swapped-out buffer
        sizes, alloc_ns, free_ns = map(
            np.ndarray.tolist, (self.buffer_bytes, self.alloc_ns, self.free_ns)
        )
        separated = []
        # By recorded buffer: (op, the buffer that the memory belongs to from this op on).
        self._separated: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for op, port, place in rows:  # sorted by the ops' starts
            name, op_place = op_names[op], self.place.get(op)
            current = now.get(place, place)
            node = graph.nodes.get(name)
            if port == 0 and name.startswith(SWAP_OUT_PREFIX):
                if name[len(SWAP_OUT_PREFIX) :] in return_keys:
                    left.add(current)
            elif port < 0 and name.startswith(SWAP_IN_PREFIX):
                left.discard(current)  # an on-demand swap that did not take place
            elif port < 0 and current in left and op_place is not None:
                if node is not None and not node.alias:
                    taken[len(sizes)] = (op, current)
                    sizes.append(sizes[place])
                    alloc_ns.append(int(self.start_ns[op_place]))
                    free_ns.append(free_ns[current])
                    free_ns[current] = int(self.end_ns[op_place])
                    current = now[place] = len(sizes) - 1
                    self._separated[place].append((op, current))
            elif port >= 0 and taken.get(current, (-1, 0))[0] == op:
                current = taken[current][1]  # the op reads the tensor whose memory it reuses
            separated.append((op, port, current))
        self.buffer_bytes = np.array(sizes, dtype=np.int64)
        self.alloc_ns = np.array(alloc_ns, dtype=np.int64)
        self.free_ns = np.array(free_ns, dtype=np.int64)
        return separated

    def _buffers_that_came_back(
        self, trace: StepTrace, rows: list[tuple[int, int, int]], graph: StepGraph
    ) -> tuple[NDArray[np.int64], dict[int, int]]:
        """Find the buffers that are swapped-in copies, and the ops that reused their memory.

        Returns:
            For each buffer, the buffer that it is a copy of, or itself; and by copy, the index of
            the op that reused its memory for an output.
        """
        op_names = [trace.names[i] for i in trace.ops["name"]]
        far: dict[str, int] = {}  # by the copy's key: the buffer that was swapped out
        same = np.arange(len(self.buffer_bytes))
        taken: dict[int, int] = {}
        written: defaultdict[int, set[str]] = defaultdict(set)  # by copy: ops that reused it
        for op, port, place in rows:  # sorted by the ops' starts
            name, op_place = op_names[op], self.place.get(op)
            if port == 0 and name.startswith(SWAP_OUT_PREFIX):
                far[name[len(SWAP_OUT_PREFIX) :]] = place
            elif port == -1 and name.startswith(SWAP_IN_PREFIX):
                key = name[len(SWAP_IN_PREFIX) :].rpartition("/")[0]
                origin = far.get(key, place)
                if origin == place:
                    continue  # it was not swapped out
                is_output = key.rpartition("_")[0] in written[origin]
                same[place] = origin if is_output else same[origin]
            elif port < 0 and op_place is not None and same[place] != place:
                node = graph.nodes.get(name)
                if node is None or not node.alias:
                    taken.setdefault(place, op_place)
                    written[place].add(name.replace(":", "_"))
        return same, taken

    def temporary_bytes(self) -> dict[int, int]:
        """Return the most temporary memory that each op has at once, by its index."""
        last = {name: op for op, name in enumerate(self.names)}
        changes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for place, name in self.temporary.items():
            if name in last:
                size = int(self.buffer_bytes[place])
                begin, end = int(self.alloc_ns[place]), int(self.free_ns[place])
                changes[last[name]] += [(begin, size), (end, -size)]
        return {
            op: max(itertools.accumulate(change for _, change in sorted(those)))
            for op, those in changes.items()
        }

    def users_of(self, min_bytes: int) -> tuple[int, ...]:
        """Return the indices of the ops that use buffers of at least this size."""
        large = np.flatnonzero(self.buffer_bytes >= min_bytes)
        return tuple(sorted({op for buffer in large for op in self.users[buffer]}))

    def dataflow(
        self, trace: StepTrace, graph: StepGraph, min_bytes: int, of_variables: Iterable[Absence]
    ) -> Dataflow:
        """Return the step's tensors and their buffers."""
        node_of = {place: name for name, place in self.op_of_node.items()}
        buffer_of: dict[tuple[str, int], int] = {}
        for (op, port), buffer in sorted(self.outputs.items()):
            node = graph.nodes.get(node_of.get(op, ""))
            # With oneDNN, ops have more outputs than in the graph.
            if node is not None and not node.alias and port < len(node.plain):
                buffer_of[node.name, port] = buffer
        scratch: Counter[str] = Counter()
        for place, name in self.temporary.items():
            scratch[name] += int(self.buffer_bytes[place])
        return Dataflow(
            graph,
            buffer_of,
            dict(scratch),
            min_bytes,
            frozenset(absence.buffer for absence in of_variables),
        )

    def timeline(self, graph: StepGraph, absences: list[Absence], dataflow: Dataflow) -> Timeline:
        """Return the timeline with these absences."""
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


def _unused_copies_of_variables(trace: StepTrace) -> NDArray[np.bool_]:
    """Return a mask of buffers into which a variable's value came back that no recorded op uses.

    They were evicted again, or the next step uses them. The value counts in the variable's buffer.
    """
    restored = np.fromiter((name == RESTORED_VARIABLE for name in trace.names), bool)
    unused = restored[trace.buffers["name"]]
    unused[trace.accesses["buffer"]] = False
    unused[trace.values["buffer"]] = False
    return np.asarray(unused)


def select_step(trace: StepTrace, graph: StepGraph) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks of one step's recorded ops: the graph's own, and all that ran within the step.

    Raises:
        ValueError: The recording has no ops of this graph.
    """
    ops, names = trace.ops, trace.names
    in_graph = np.fromiter((name in graph.nodes for name in names), bool, len(names))
    ended = ops["end_ns"] >= 0
    ours = in_graph[ops["name"]] & ended
    if not ours.any():
        raise ValueError(
            "the recording has no op of the training graph: the step ran on another device, or XLA "
            "compiled it"
        )
    group = _main_group(ops, ours)
    inside = (
        np.isin(ops["step_id"], np.unique(ops["step_id"][group]))
        & ended
        & (ops["start_ns"] >= ops["start_ns"][group].min())
        & (ops["end_ns"] <= ops["end_ns"][group].max())
    )
    return group, np.asarray(inside)


def recorded_sums(trace: StepTrace, graph: StepGraph) -> tuple[tuple[str, str], ...]:
    """Return edges (before, after) that keep the recorded order of the additions that race.

    Args:
        trace: The recording.
        graph: The graph as the pass describes it.

    Returns:
        The edges; () if an addition was not recorded.

    Raises:
        ValueError: The recording has no ops of this graph.
    """
    sums = list(racing_sums(graph.nodes))
    if not sums:
        return ()
    ops = trace.ops[select_step(trace, graph)[0]]
    # Additions lock the accumulator, so that they end in their order.
    ended_ns = {trace.names[op["name"]]: int(op["end_ns"]) for op in ops}
    if not all(name in ended_ns for additions in sums for name in additions):
        return ()
    in_order = [sorted(additions, key=ended_ns.__getitem__) for additions in sums]
    return tuple(edge for additions in in_order for edge in itertools.pairwise(additions))


def _main_group(ops: NDArray[np.void], ours: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of one step's ops: outside of loops, or the last full iteration of a loop."""
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
