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
from dataclasses import dataclass

import numpy as np

from tfswap.plan.node_names import again_name
from tfswap.plan.schema import Recompute
from tfswap.planning.cloned_ops import ClonedOps
from tfswap.step.dataflow import Dataflow, Tensor, with_clones
from tfswap.step.graph import Node
from tfswap.step.profile import Profile, kept_activations
from tfswap.step.timeline import Absence, Timeline, crosses_step_end

# Ops that one tensor's making may take.
_LONGEST_CHAIN = 24
# What the step is given.
_NOT_RUN = frozenset({"Const", "HostConst", "Placeholder", "_Arg", "_DeviceArg", "VarHandleOp"})


@dataclass(frozen=True)
class Remaking:
    """How the tensor of an absence can be made again at its end.

    Attributes:
        absence: its number.
        bytes: of its buffer, which is free in between.
        nodes: names of the nodes that make it, in their order.
        trigger: the op behind which they begin.
        cost_ns: how long they take.
        kept: sources that were freed before, with their bytes: they stay, or leave.
    """

    absence: int
    bytes: int
    nodes: tuple[str, ...]
    trigger: str
    cost_ns: int
    kept: tuple[tuple[Tensor, int], ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the sources that would be free without it."""
        return sum(size for _, size in self.kept)

    @property
    def freed_bytes(self) -> int:
        """Bytes that it frees in between, all in all."""
        return self.bytes - self.kept_bytes


class Remaker:
    """One step in which more and more tensors are made again.

    Ops are numbered as in the timeline, clones behind them. Their times are those of the given
    step, in which clones take none: `timeline` moves all that comes behind them. Absences are
    numbered as in the timeline, those that clones bring behind them; one that a clone's reading
    cuts in two keeps its number for the first part.

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
        self._given = timeline
        self._flow: Dataflow = timeline.dataflow
        self._buffer_of = dict(self._flow.buffer_of)
        self._tensors_in = defaultdict(list, {b: list(t) for b, t in self._flow.tensors_in.items()})
        self._scratch_bytes = dict(self._flow.scratch_bytes)
        self._ops = ClonedOps(timeline)

        self._bytes = timeline.buffer_bytes.tolist()
        self._free_ns = timeline.buffer_free_ns.tolist()
        # Where it is an op's end: of which; and of a clone's buffer, which one makes it.
        self._freed_by = [-1] * len(self._bytes)
        self._made_by: list[int] = []

        self._absences: dict[int, Absence] = dict(enumerate(timeline.absences))
        self._crossing = {
            number for number, a in self._absences.items() if crosses_step_end(timeline, a)
        }
        self._of_buffer: defaultdict[int, list[int]] = defaultdict(list)
        for number, absence in self._absences.items():
            self._of_buffer[absence.buffer].append(number)
        self._next_absence = len(self._absences)

    @property
    def recomputes(self) -> tuple[Recompute, ...]:
        """What is made again by now."""
        return self._flow.recomputes

    def find(self, number: int) -> Remaking | None:
        """How an absence's tensor can be made again; None if it cannot (any more).

        Args:
            number: of the absence.
        """
        absence = self._absences.get(number)
        if absence is None or absence.of_variable or absence.producer_op < 0:
            return None
        if number in self._crossing:
            return None
        node, port = _tensor(absence.tensor)
        chain = _Chain(self, absence)
        if (node, port) not in self._buffer_of or not chain.reach(node):
            return None
        trigger = self._ops.trigger(absence)
        if trigger is None:
            return None
        return Remaking(
            number,
            self._bytes[absence.buffer],
            tuple(chain.nodes),
            self._ops.names[trigger],
            sum(
                self._ops.takes_ns[self._ops.op_of[n]] for n in chain.nodes if n in self._ops.op_of
            ),
            tuple((tensor, self._bytes[self._buffer_of[tensor]]) for tensor in chain.kept),
        )

    def state(self, root: Tensor, absence: Absence) -> str:
        """Whether a tensor is "there" when an absence ends, was "freed" before that, or is "lost".

        What was freed could have been kept; what is lost was written over, or is not to be read.
        """
        made, buffer = self._ops.op_of.get(root[0]), self._buffer_of.get(root)
        if made is None:  # a constant, or what was taken in by another op
            return "there" if self._flow.maker(root).op in _NOT_RUN else "lost"
        if buffer is None:  # it stays through the step, or is too small to be listed
            return "there"
        if buffer in self._flow.fixed:
            return "lost"
        at_ns, at_rank = self._ops.start_ns[absence.before_op], self._ops.rank[absence.before_op]
        for other in self._tensors_in[buffer]:
            later = self._ops.op_of.get(other[0])
            if later is None or self._ops.rank[later] <= self._ops.rank[made]:
                continue
            if self._ops.start_ns[later] < at_ns:
                return "lost"  # written over
        free_by = self._freed_by[buffer]
        if free_by < 0:
            return "there" if self._free_ns[buffer] >= at_ns else "freed"
        end_ns = self._ops.end_ns[free_by]
        return "there" if end_ns >= at_ns and self._ops.rank[free_by] >= at_rank else "freed"

    def repeatable(self, node: Node, absence: Absence) -> bool:
        """Whether a node may be run again for an absence."""
        known = node.alias or node.name in self._ops.op_of
        return node.repeatable and node.context == absence.context and known

    @property
    def flow(self) -> Dataflow:
        """Of the step, with the clones; its buffers and bytes as they were given."""
        return self._flow

    def apply(self, remaking: Remaking) -> None:
        """Has the step do that."""
        this = self._absences.pop(remaking.absence)
        ordinal = len(self._flow.recomputes)
        node, port = _tensor(this.tensor)
        graph = self._flow.graph
        readers = self._readers(remaking.nodes)
        clones = self._ops.insert(remaking.nodes, this.before_op, ordinal)
        for name in clones:
            if name in self._scratch_bytes:
                self._scratch_bytes[again_name(name, ordinal)] = self._scratch_bytes[name]
        self._keep_sources(readers, clones)
        new_buffer = self._make_buffers(remaking, this, readers, clones, ordinal)
        self._cut_absences(remaking, this, readers, clones, ordinal)
        self._move_absences(this, new_buffer, clones[node], f"{again_name(node, ordinal)}:{port}")
        recompute = Recompute(this.tensor, remaking.nodes, remaking.trigger, this.consumers)
        self._flow = dataclasses.replace(
            self._flow,
            graph=with_clones(graph, recompute, ordinal),
            recomputes=(*self._flow.recomputes, recompute),
        )

    def _readers(self, nodes: tuple[str, ...]) -> dict[Tensor, list[str]]:
        """Which of the nodes read which tensors: of the step, and of each other."""
        graph, cloned = self._flow.graph, set(nodes)
        readers: defaultdict[Tensor, list[str]] = defaultdict(list)
        for name in nodes:
            if name not in self._ops.op_of:
                continue
            for source, port in graph.nodes[name].inputs:
                # Aliases among the clones are read through.
                while source in cloned and graph.nodes[source].alias and port == 0:
                    source, port = graph.nodes[source].inputs[0]
                tensor = (source, port) if source in cloned else graph.root(source, port)
                if name not in readers[tensor]:
                    readers[tensor].append(name)
        return readers

    def _free_behind(self, buffer: int, clone: int) -> None:
        """Keeps a buffer until a clone has ended."""
        freed_by = self._freed_by[buffer]
        if freed_by < 0:
            if self._free_ns[buffer] > self._ops.start_ns[clone]:
                return
        elif self._ops.rank[freed_by] >= self._ops.rank[clone]:
            return
        elif self._ops.end_ns[freed_by] > self._ops.start_ns[clone]:
            return  # an op that was there before, and ends later
        self._freed_by[buffer] = clone

    def _keep_sources(self, readers: dict[Tensor, list[str]], clones: dict[str, int]) -> None:
        for tensor, names in readers.items():
            buffer = self._buffer_of.get(tensor)
            if buffer is not None and tensor[0] not in clones:
                for name in names:
                    self._free_behind(buffer, clones[name])

    def _make_buffers(
        self,
        remaking: Remaking,
        this: Absence,
        readers: dict[Tensor, list[str]],
        clones: dict[str, int],
        ordinal: int,
    ) -> int:
        """Where the clones put what they make; answers where the tensor is from now on."""
        freed = self._free_ns[this.buffer], self._freed_by[this.buffer]
        # Tensors that take the buffer over later do so where it is from now on.
        at_rank = self._ops.rank[this.before_op]
        later = [
            other
            for other in self._tensors_in[this.buffer]
            if other[0] in self._ops.op_of and self._ops.rank[self._ops.op_of[other[0]]] >= at_rank
        ]
        self._freed_by[this.buffer] = this.after_op
        again: dict[int, int] = {}  # by buffer, the one that the clones have instead
        for name, clone in clones.items():
            for port in range(len(self._flow.graph.nodes[name].plain)):
                buffer = self._buffer_of.get((name, port))
                if buffer is None:
                    continue
                last = max([clone, *(clones[n] for n in readers.get((name, port), ()))])
                if buffer not in again:
                    again[buffer] = self._new_buffer(self._bytes[buffer], clone, last)
                new = again[buffer]
                self._free_behind(new, last)
                if f"{name}:{port}" == this.tensor:
                    self._free_ns[new], self._freed_by[new] = freed
                tensor = (again_name(name, ordinal), port)
                self._buffer_of[tensor] = new
                self._tensors_in[new].append(tensor)
            if name in self._scratch_bytes:
                self._new_buffer(self._scratch_bytes[name], clone, clone)
        new = again[this.buffer]
        for other in later:
            self._tensors_in[this.buffer].remove(other)
            self._tensors_in[new].append(other)
            self._buffer_of[other] = new
        return new

    def _new_buffer(self, size: int, clone: int, freed_by: int) -> int:
        self._bytes.append(size)
        self._free_ns.append(0)
        self._freed_by.append(freed_by)
        self._made_by.append(clone)
        return len(self._bytes) - 1

    def _cut_absences(
        self,
        remaking: Remaking,
        this: Absence,
        readers: dict[Tensor, list[str]],
        clones: dict[str, int],
        ordinal: int,
    ) -> None:
        """What the clones read is used once more."""
        at_ns, at_rank = self._ops.start_ns[this.before_op], self._ops.rank[this.before_op]
        kept = {tensor for tensor, _ in remaking.kept}
        for tensor, names in readers.items():
            buffer = self._buffer_of.get(tensor)
            if buffer is None or tensor[0] in clones:
                continue
            text = f"{tensor[0]}:{tensor[1]}"
            consumers = tuple(again_name(name, ordinal) for name in names)
            first, last = clones[names[0]], clones[names[-1]]
            for number in list(self._of_buffer[buffer]):
                absence = self._absences.get(number)
                if absence is None or absence.tensor != text or number in self._crossing:
                    continue
                if self._ops.rank[absence.after_op] >= at_rank:
                    continue
                late = absence.consumers
                if self._ops.rank[absence.before_op] < self._ops.rank[first]:
                    self._absences[number] = dataclasses.replace(
                        absence, consumers=(*late, *consumers)
                    )
                elif self._ops.end_ns[absence.after_op] <= at_ns:
                    self._absences[number] = dataclasses.replace(
                        absence, before_op=first, consumers=(*consumers, *late)
                    )
                    if absence.before_op != this.before_op:
                        self._add(dataclasses.replace(absence, after_op=last))
            if tensor in kept:
                self._add_kept(tensor, first, consumers, this)

    def _add(self, absence: Absence) -> None:
        self._absences[self._next_absence] = absence
        self._of_buffer[absence.buffer].append(self._next_absence)
        self._next_absence += 1

    def _add_kept(
        self, tensor: Tensor, first: int, consumers: tuple[str, ...], this: Absence
    ) -> None:
        """A source that would have been freed is absent until the clones read it."""
        maker, buffer = self._flow.maker(tensor), self._buffer_of[tensor]
        if not maker.producer or not maker.plain[tensor[1]]:
            return
        if self._bytes[buffer] < self._flow.min_bytes:
            return
        graph, rank = self._flow.graph, self._ops.rank
        known = (self._ops.op_of.get(name) for name in graph.readers_through_aliases(*tensor))
        users = [op for op in known if op is not None and rank[op] < rank[first]]
        producer = self._ops.op_of[tensor[0]]
        after = max([producer, *users], key=lambda op: (self._ops.end_ns[op], rank[op]))
        if self._ops.end_ns[after] > self._ops.start_ns[first] or rank[after] < rank[producer]:
            return
        self._add(
            Absence(
                buffer=buffer,
                tensor=f"{tensor[0]}:{tensor[1]}",
                producer_op=producer,
                after_op=after,
                before_op=first,
                consumers=consumers,
                context=this.context,
            )
        )

    def _move_absences(self, this: Absence, buffer: int, clone: int, tensor: str) -> None:
        """The tensor's later absences are its clone's; earlier ones end for earlier readers."""
        at_rank, late = self._ops.rank[this.before_op], set(this.consumers)
        for number in list(self._of_buffer[this.buffer]):
            absence = self._absences.get(number)
            if absence is None:
                continue
            if self._ops.rank[absence.after_op] >= at_rank:
                if absence.tensor == this.tensor:
                    absence = dataclasses.replace(absence, tensor=tensor, producer_op=clone)
                self._absences[number] = dataclasses.replace(absence, buffer=buffer)
                self._of_buffer[this.buffer].remove(number)
                self._of_buffer[buffer].append(number)
            elif absence.tensor == this.tensor:
                early = tuple(name for name in absence.consumers if name not in late)
                self._absences[number] = dataclasses.replace(absence, consumers=early)

    def timeline(self) -> Timeline:
        """The step with all clones, whose time everything behind them has moved by."""
        given = self._given
        if not self._made_by and not self._flow.recomputes[len(given.recomputes) :]:
            return given
        later = self._ops.later()
        rank = self._ops.rank
        made_ns = [later.start_ns[rank[op]] for op in self._made_by]
        free_ns = later.before(np.array(self._free_ns, dtype=np.int64))
        for buffer, op in enumerate(self._freed_by):
            if op >= 0:
                free_ns[buffer] = later.end_ns[rank[op]]
        return Timeline(
            op_names=later.names,
            op_start_ns=later.start_ns,
            op_end_ns=later.end_ns,
            op_gateable=given.op_gateable[later.like],
            op_context=given.op_context[later.like],
            resident_bytes=given.resident_bytes,
            buffer_bytes=np.array(self._bytes, dtype=np.int64),
            buffer_alloc_ns=np.concatenate(
                [later.at(given.buffer_alloc_ns), np.array(made_ns, dtype=np.int64)]
            ),
            buffer_free_ns=free_ns,
            absences=self._listed_absences(),
            step_ns=given.step_ns + later.inserted_ns,
            op_types=tuple(given.op_types[op] for op in later.like) if given.op_types else (),
            dataflow=dataclasses.replace(
                self._flow,
                buffer_of=dict(self._buffer_of),
                scratch_bytes=dict(self._scratch_bytes),
            ),
        )

    def _listed_absences(self) -> tuple[Absence, ...]:
        """With places in the step instead of numbers; those of a buffer in the order of time."""
        rank = self._ops.rank
        listed = [
            Absence(
                a.buffer,
                a.tensor,
                a.producer_op if a.producer_op < 0 else rank[a.producer_op],
                rank[a.after_op],
                rank[a.before_op],
                a.consumers,
                a.context,
                a.users,
            )
            for a in self._absences.values()
        ]
        listed.sort(key=lambda a: (a.after_op >= a.before_op, a.after_op))
        return tuple(listed)


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
        for ordinal, recompute in enumerate(timeline.recomputes)
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

    def __init__(self, remaker: Remaker, absence: Absence) -> None:
        self._remaker = remaker
        self._graph = remaker.flow.graph
        self._absence = absence
        self._tried: set[str] = set()
        self.nodes: list[str] = []
        self.kept: list[Tensor] = []

    def reach(self, name: str) -> bool:
        """Adds a node, behind those that it needs; says whether that can be."""
        if name in self.nodes:
            return True
        node = self._graph.nodes[name]
        if name in self._tried or len(self._tried) > _LONGEST_CHAIN:
            return False
        if not self._remaker.repeatable(node, self._absence):
            return False
        self._tried.add(name)
        for source, port in node.inputs:
            root = self._graph.root(source, port)
            state = self._remaker.state(root, self._absence)
            if state == "there" or root in self.kept:
                continue
            nodes, kept = len(self.nodes), len(self.kept)
            if self.reach(source):
                continue
            del self.nodes[nodes:], self.kept[kept:]
            if state == "lost":
                return False
            self.kept.append(root)
        self.nodes.append(name)
        return len(self.nodes) <= _LONGEST_CHAIN


def _tensor(text: str) -> Tensor:
    node, _, port = text.rpartition(":")
    return node, int(port)
