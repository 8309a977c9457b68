r"""Tensors that are made again instead of kept or copied: what that does to a step.

::

    without   --X--  --T--  -early-  .......................  -late-
              T's buffer  ########################################
    with      --X--  --T--  -early-  .................  --T'--  -late-
              T's buffer  ###########                   #############
              X's buffer  ####################################  (its source stays, or leaves)

Ops from the first late reader on come later by what the clones take: they have the same cores, or
the same stream. A source that was freed before stays until then; in what is between, it is absent
like any tensor, and may be swapped or be made again itself.

What is made again goes back to tensors that are still there (Capuchin's lineage: Peng et al.,
ASPLOS 2020, section 4.3), through ops that make the same from the same inputs and do nothing else.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfswap.dataflow import Dataflow, Tensor
from tfswap.grappler.graph import Node, StepGraph
from tfswap.plan import Recompute, again_name
from tfswap.profile import Profile, kept_activations
from tfswap.timeline import Absence, Timeline, crosses_step_end

# Ops that one tensor's making may take.
_LONGEST_CHAIN = 24
# What the step is given.
_NOT_RUN = frozenset({"Const", "HostConst", "Placeholder", "_Arg", "_DeviceArg", "VarHandleOp"})
_FOREVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Remaking:
    """How the tensor of an absence can be made again at its end.

    Attributes:
        place: of the absence in its timeline.
        bytes: of its buffer, which is free in between.
        nodes: names of the nodes that make it, in their order.
        trigger_op: index of the op behind which they begin.
        cost_ns: how long they take.
        kept: sources that were freed before, with their bytes: they stay, or leave.
    """

    place: int
    bytes: int
    nodes: tuple[str, ...]
    trigger_op: int
    cost_ns: int
    kept: tuple[tuple[Tensor, int], ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the sources that would be free without it."""
        return sum(size for _, size in self.kept)


class Remaker:
    """Finds how tensors of one timeline can be made again, and makes the timeline with that.

    Args:
        timeline: one unswapped step, with its dataflow.

    Raises:
        ValueError: the timeline has none.
    """

    def __init__(self, timeline: Timeline) -> None:
        if timeline.dataflow is None:
            raise ValueError(
                "this timeline does not say what its ops read, so nothing can be made again: take "
                "one of a training, or policy='auto'"
            )
        self._timeline = timeline
        self._flow: Dataflow = timeline.dataflow
        self._op_of = {name: op for op, name in reversed(list(enumerate(timeline.op_names)))}
        self._triggers = np.flatnonzero(timeline.op_gateable)

    def find(self, place: int) -> Remaking | None:
        """How an absence's tensor can be made again; None if it cannot.

        Args:
            place: of the absence in the timeline.
        """
        timeline, absence = self._timeline, self._timeline.absences[place]
        if absence.of_variable or absence.producer_op < 0 or crosses_step_end(timeline, absence):
            return None
        chain = _Chain(self._timeline, self._flow, self._op_of, absence)
        node, _, port = absence.tensor.rpartition(":")
        if (node, int(port)) not in self._flow.buffer_of or not chain.reach(node):
            return None
        at_ns = timeline.op_start_ns[absence.before_op]
        usable = self._triggers[self._triggers < absence.before_op]
        usable = usable[timeline.op_end_ns[usable] <= at_ns]
        usable = usable[timeline.op_context[usable] == absence.context]
        if not len(usable):
            return None
        trigger = int(usable[np.argmax(timeline.op_end_ns[usable])])
        return Remaking(
            place,
            int(timeline.buffer_bytes[absence.buffer]),
            tuple(chain.nodes),
            trigger,
            sum(self._duration_ns(name) for name in chain.nodes),
            tuple((tensor, self._bytes(tensor)) for tensor in chain.kept),
        )

    def _duration_ns(self, node: str) -> int:
        op = self._op_of.get(node)
        if op is None:
            return 0
        return int(self._timeline.op_end_ns[op] - self._timeline.op_start_ns[op])

    def _bytes(self, tensor: Tensor) -> int:
        return int(self._timeline.buffer_bytes[self._flow.buffer_of[tensor]])

    def apply(self, remaking: Remaking) -> Timeline:
        """The step in which that is done; its dataflow has the clones."""
        return _Insertion(self._timeline, self._flow, self._op_of, remaking).timeline()


def remade_profile(profile: Profile, timeline: Timeline | None) -> Profile:
    """The profile of a step some of whose tensors are made again.

    Args:
        profile: of the step in which all are kept.
        timeline: of the step with clones; None: there are none.
    """
    if timeline is None or timeline.dataflow is None:
        return profile
    large = {profile.timeline.op_names[op] for op in profile.large_ops}
    clones = {
        again_name(node, ordinal)
        for ordinal, recompute in enumerate(timeline.dataflow.recomputes)
        for node in recompute.nodes
    }
    return dataclasses.replace(
        profile,
        timeline=timeline,
        large_ops=tuple(
            op for op, name in enumerate(timeline.op_names) if name in large or name in clones
        ),
        activations=kept_activations(timeline.absences, timeline.dataflow.graph),
    )


class _Chain:
    """The nodes that make a tensor from what is there when an absence ends."""

    def __init__(
        self, timeline: Timeline, flow: Dataflow, op_of: dict[str, int], absence: Absence
    ) -> None:
        self._timeline = timeline
        self._flow = flow
        self._op_of = op_of
        self._absence = absence
        self._at_ns = int(timeline.op_start_ns[absence.before_op])
        self.nodes: list[str] = []
        self.kept: list[Tensor] = []
        self._tried: set[str] = set()

    def reach(self, name: str) -> bool:
        """Adds a node, behind those that it needs; says whether that can be."""
        if name in self.nodes:
            return True
        node = self._flow.graph.nodes[name]
        if not self._repeatable(node) or name in self._tried or len(self._tried) > _LONGEST_CHAIN:
            return False
        self._tried.add(name)
        for source, port in node.inputs:
            root = self._flow.graph.root(source, port)
            state = self._state(root)
            if state == "there" or root in self.kept:
                continue
            before = len(self.nodes), len(self.kept)
            if self.reach(source):
                continue
            del self.nodes[before[0] :], self.kept[before[1] :]
            if state == "lost":
                return False
            self.kept.append(root)
        self.nodes.append(name)
        return len(self.nodes) <= _LONGEST_CHAIN

    def _repeatable(self, node: Node) -> bool:
        return (
            node.repeatable
            and node.context == self._absence.context
            and (node.alias or node.name in self._op_of)
        )

    def _state(self, root: Tensor) -> str:
        """Whether a source is there, was freed and could have stayed, or is lost."""
        made = self._op_of.get(root[0])
        buffer = self._flow.buffer_of.get(root)
        if made is None:  # a constant, or what was taken in by another op
            return "there" if self._flow.maker(root).op in _NOT_RUN else "lost"
        if buffer is None:  # it stays through the step, or is too small to be listed
            return "there"
        if buffer in self._flow.fixed:
            return "lost"
        start_ns = self._timeline.op_start_ns
        for other in self._flow.tensors_in[buffer]:
            later = self._op_of.get(other[0])
            if later is not None and made < later and start_ns[later] < self._at_ns:
                return "lost"  # written over
        if int(self._timeline.buffer_free_ns[buffer]) >= self._at_ns:
            return "there"
        return "freed"


class _Insertion:
    """A timeline with the clones of one remaking."""

    def __init__(
        self, timeline: Timeline, flow: Dataflow, op_of: dict[str, int], remaking: Remaking
    ) -> None:
        self._old = timeline
        self._flow = flow
        self._op_of = op_of
        self._remaking = remaking
        self._absence = timeline.absences[remaking.place]
        self._ordinal = len(flow.recomputes)
        self._at = self._absence.before_op
        self._at_ns = int(timeline.op_start_ns[self._at])
        self._node, _, port = self._absence.tensor.rpartition(":")
        self._port = int(port)
        self._names = [n for n in remaking.nodes if not flow.graph.nodes[n].alias or n in op_of]
        self._starts: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        at_ns = self._at_ns
        for name in self._names:
            self._starts[name] = at_ns
            op = op_of[name]
            at_ns += int(timeline.op_end_ns[op] - timeline.op_start_ns[op])
            self._ends[name] = at_ns
        self._delay_ns = at_ns - self._at_ns

    def timeline(self) -> Timeline:
        self._list_readers()
        self._make_buffers()
        old, at, count = self._old, self._at, len(self._names)
        sources = [self._op_of[name] for name in self._names]

        def inserted(values: NDArray[Any], new: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([values[:at], np.asarray(new, dtype=values.dtype), values[at:]])

        start_ns, end_ns = old.op_start_ns.copy(), old.op_end_ns.copy()
        start_ns[at:] += self._delay_ns
        end_ns[end_ns > self._at_ns] += self._delay_ns
        end_ns[at:] = start_ns[at:] + (old.op_end_ns[at:] - old.op_start_ns[at:])
        recompute = Recompute(
            self._absence.tensor,
            self._remaking.nodes,
            old.op_names[self._remaking.trigger_op],
            self._absence.consumers,
        )
        clones = [again_name(name, self._ordinal) for name in self._names]
        types = old.op_types
        if types:
            types = (*types[:at], *(types[op] for op in sources), *types[at:])
        flow = dataclasses.replace(
            self._flow,
            graph=with_clones(self._flow.graph, recompute, self._ordinal),
            buffer_of={**self._flow.buffer_of, **self._new_tensors},
            scratch_bytes={
                **self._flow.scratch_bytes,
                **{
                    clone: self._flow.scratch_bytes[name]
                    for clone, name in zip(clones, self._names, strict=True)
                    if name in self._flow.scratch_bytes
                },
            },
            recomputes=(*self._flow.recomputes, recompute),
        )
        return Timeline(
            op_names=(*old.op_names[:at], *clones, *old.op_names[at:]),
            op_start_ns=inserted(start_ns, [self._starts[n] for n in self._names]),
            op_end_ns=inserted(end_ns, [self._ends[n] for n in self._names]),
            op_gateable=inserted(old.op_gateable, old.op_gateable[sources]),
            op_context=inserted(old.op_context, old.op_context[sources]),
            resident_bytes=old.resident_bytes,
            buffer_bytes=np.concatenate([old.buffer_bytes, self._bytes]).astype(np.int64),
            buffer_alloc_ns=np.concatenate([self._alloc_ns, self._new_alloc_ns]).astype(np.int64),
            buffer_free_ns=np.concatenate([self._free_ns, self._new_free_ns]).astype(np.int64),
            absences=self._absences(count),
            step_ns=old.step_ns + self._delay_ns,
            op_types=types,
            dataflow=flow,
        )

    def _list_readers(self) -> None:
        """Which clones read which tensors of the step, and of each other."""
        graph, cloned = self._flow.graph, set(self._remaking.nodes)
        self._readers: defaultdict[Tensor, list[str]] = defaultdict(list)
        for name in self._names:
            for source, port in graph.nodes[name].inputs:
                # Aliases among the clones are read through.
                while source in cloned and graph.nodes[source].alias and port == 0:
                    source, port = graph.nodes[source].inputs[0]
                tensor = (source, port) if source in cloned else graph.root(source, port)
                if name not in self._readers[tensor]:
                    self._readers[tensor].append(name)

    def _make_buffers(self) -> None:
        old, graph, cloned = self._old, self._flow.graph, set(self._remaking.nodes)
        after_ns = int(old.op_end_ns[self._absence.after_op])
        later_ns = old.buffer_alloc_ns >= self._at_ns
        self._alloc_ns = old.buffer_alloc_ns + np.where(later_ns, self._delay_ns, 0)
        stays = (old.buffer_free_ns > self._at_ns) & (old.buffer_free_ns < _FOREVER)
        self._free_ns = old.buffer_free_ns + np.where(stays, self._delay_ns, 0)
        freed_ns = int(self._free_ns[self._absence.buffer])
        self._free_ns[self._absence.buffer] = after_ns
        for tensor, readers in self._readers.items():
            buffer = self._flow.buffer_of.get(tensor)
            if buffer is not None and tensor[0] not in cloned:
                until_ns = max(self._ends[name] for name in readers)
                self._free_ns[buffer] = max(self._free_ns[buffer], until_ns)

        size: list[int] = []
        alloc_ns: list[int] = []
        free_ns: list[int] = []
        self._new_tensors: dict[Tensor, int] = {}
        again: dict[int, int] = {}  # by buffer, the one that the clones have instead
        first = len(old.buffer_bytes)
        for name in self._names:
            for port in range(len(graph.nodes[name].plain)):
                buffer = self._flow.buffer_of.get((name, port))
                if buffer is None:
                    continue
                last = [self._ends[n] for n in self._readers.get((name, port), ())]
                until_ns = max([self._ends[name], *last])
                if (name, port) == (self._node, self._port):
                    until_ns = freed_ns
                if buffer not in again:
                    again[buffer] = first + len(size)
                    size.append(int(old.buffer_bytes[buffer]))
                    alloc_ns.append(self._starts[name])
                    free_ns.append(until_ns)
                new = again[buffer]
                free_ns[new - first] = max(free_ns[new - first], until_ns)
                self._new_tensors[again_name(name, self._ordinal), port] = new
            scratch = self._flow.scratch_bytes.get(name, 0)
            if scratch:
                size.append(scratch)
                alloc_ns.append(self._starts[name])
                free_ns.append(self._ends[name])
        self._bytes, self._new_alloc_ns, self._new_free_ns = size, alloc_ns, free_ns
        self._new_buffer = again[self._absence.buffer]
        # Tensors that take the buffer over later do so where it is now.
        for other in self._flow.tensors_in[self._absence.buffer]:
            op = self._op_of.get(other[0])
            if op is not None and op >= self._at:
                self._new_tensors[other] = self._new_buffer

    def _absences(self, count: int) -> tuple[Absence, ...]:
        at, this = self._at, self._absence
        position = {name: at + place for place, name in enumerate(self._names)}
        clone_op = position[self._node]
        read = {
            f"{node}:{port}": (sorted(position[n] for n in names), names)
            for (node, port), names in self._readers.items()
            if node not in self._remaking.nodes
        }
        made: list[Absence] = []
        for place, absence in enumerate(self._old.absences):
            if place == self._remaking.place:
                continue
            moved = _moved(absence, at, count)
            if absence.buffer == this.buffer:
                moved = self._of_this_buffer(absence, moved, clone_op)
            readers = read.get(absence.tensor)
            if readers is None:
                made.append(moved)
                continue
            ops, names = readers
            clones = tuple(again_name(name, self._ordinal) for name in names)
            if crosses_step_end(self._old, absence) or absence.after_op >= at:
                made.append(moved)
            elif absence.before_op < at:
                consumers = (*moved.consumers, *clones)
                made.append(dataclasses.replace(moved, consumers=consumers))
            elif self._old.op_end_ns[absence.after_op] <= self._at_ns:
                consumers = (*clones, *moved.consumers)
                made.append(dataclasses.replace(moved, before_op=ops[0], consumers=consumers))
                if absence.before_op > at:
                    made.append(dataclasses.replace(moved, after_op=ops[-1]))
            else:  # an op that still runs when the clones begin
                made.append(moved)
        for kept in self._absences_of_kept(read):
            made = _in_order(made, kept)
        return tuple(made)

    def _of_this_buffer(self, absence: Absence, moved: Absence, clone_op: int) -> Absence:
        this = self._absence
        if absence.after_op >= self._at:
            moved = dataclasses.replace(moved, buffer=self._new_buffer)
            if absence.tensor == this.tensor:
                clone = again_name(self._node, self._ordinal)
                moved = dataclasses.replace(
                    moved, tensor=f"{clone}:{self._port}", producer_op=clone_op
                )
            return moved
        if absence.tensor == this.tensor:
            late = set(this.consumers)
            early = tuple(name for name in absence.consumers if name not in late)
            return dataclasses.replace(moved, consumers=early)
        return moved

    def _absences_of_kept(self, read: dict[str, tuple[list[int], list[str]]]) -> Iterable[Absence]:
        """Sources that would have been freed are absent until the clones read them."""
        old = self._old
        for (node, port), size in self._remaking.kept:
            maker = self._flow.maker((node, port))
            buffer = self._flow.buffer_of[node, port]
            if not maker.producer or not maker.plain[port] or size < self._flow.min_bytes:
                continue
            readers = self._flow.graph.readers_through_aliases(node, port)
            users = [self._op_of[r] for r in readers if r in self._op_of]
            users = [op for op in users if op < self._at]
            producer = self._op_of[node]
            after = max([producer, *users], key=lambda op: (int(old.op_end_ns[op]), op))
            if old.op_end_ns[after] > self._at_ns or after < producer:
                continue
            ops, names = read[f"{node}:{port}"]
            yield Absence(
                buffer=buffer,
                tensor=f"{node}:{port}",
                producer_op=producer,
                after_op=after,
                before_op=ops[0],
                consumers=tuple(again_name(name, self._ordinal) for name in names),
                context=self._absence.context,
            )


def _moved(absence: Absence, at: int, count: int) -> Absence:
    """The same with so many ops inserted."""
    if max(absence.producer_op, absence.after_op, absence.before_op) < at:
        return absence
    return Absence(
        absence.buffer,
        absence.tensor,
        absence.producer_op + (count if absence.producer_op >= at else 0),
        absence.after_op + (count if absence.after_op >= at else 0),
        absence.before_op + (count if absence.before_op >= at else 0),
        absence.consumers,
        absence.context,
        absence.users,
    )


def _in_order(absences: Sequence[Absence], new: Absence) -> list[Absence]:
    """With one more, those of its buffer in the order of time."""
    others = [absence for absence in absences if absence.buffer != new.buffer]
    same = [absence for absence in absences if absence.buffer == new.buffer]
    return others + sorted([*same, new], key=lambda a: (a.after_op >= a.before_op, a.after_op))


def with_clones(graph: StepGraph, recompute: Recompute, ordinal: int) -> StepGraph:
    """The graph as the pass has it after one recompute.

    Args:
        graph: Before that.
        recompute: What is made again.
        ordinal: Its place in the plan.
    """
    nodes = dict(graph.nodes)
    touched: dict[Tensor, list[str]] = {}

    def reads(tensor: Tensor) -> list[str]:
        return touched.setdefault(tensor, list(graph.readers.get(tensor, ())))

    def add(node: Node) -> None:
        nodes[node.name] = node
        for tensor in node.inputs:
            if node.name not in reads(tensor):
                reads(tensor).append(node.name)

    cloned = set(recompute.nodes)
    for name in recompute.nodes:
        old = nodes[name]
        inputs = tuple(
            (again_name(source, ordinal), port) if source in cloned else (source, port)
            for source, port in old.inputs
        )
        behind_a_clone = any(source in cloned for source, _ in old.inputs)
        add(
            dataclasses.replace(
                old,
                name=again_name(name, ordinal),
                inputs=inputs,
                controls=() if behind_a_clone else (recompute.trigger,),
            )
        )
    node, _, port = recompute.tensor.rpartition(":")
    root = graph.root(node, int(port))

    def again(tensor: Tensor) -> Tensor:
        clone = again_name(tensor[0], ordinal)
        if tensor != root and clone not in nodes:
            alias = nodes[tensor[0]]
            inputs = (again(alias.inputs[0]), *alias.inputs[1:])
            add(dataclasses.replace(alias, name=clone, inputs=inputs))
        return clone, tensor[1]

    for consumer in recompute.consumers:
        old = nodes[consumer]
        inputs = tuple(
            again(tensor) if graph.root(*tensor) == root else tensor for tensor in old.inputs
        )
        for tensor in old.inputs:
            if tensor not in inputs and consumer in reads(tensor):
                reads(tensor).remove(consumer)
        add(dataclasses.replace(old, inputs=inputs))
    readers = {**graph.readers, **{tensor: tuple(names) for tensor, names in touched.items()}}
    return dataclasses.replace(graph, nodes=nodes, readers=readers)
