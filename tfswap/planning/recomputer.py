r"""Recompute tensors instead of keeping or copying them: the effect on a step.

::

    without   --X--  --T--  -early-  .......................  -late-
              T's buffer  ########################################
    with      --X--  --T--  -early-  .................  --T'--  -late-
              T's buffer  ###########                   #############
              X's buffer  ####################################  (its source, kept or swapped)

The first late reader and all ops after it are delayed by the duration of the clones, which use the
same cores or the same stream. A source that would have been freed earlier is kept for the clones.
Until then it has an absence like any other tensor, so it can be swapped or recomputed itself.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from functools import partial

import numpy as np

from tfswap.plan.node_names import clone_name
from tfswap.plan.schema import Recompute
from tfswap.planning.cloned_ops import ClonedOps
from tfswap.planning.recomputation import Lineage, Recomputation, TensorState
from tfswap.step.dataflow import Dataflow, Tensor, with_clones
from tfswap.step.graph import Node
from tfswap.step.timeline import Absence, Timeline, crosses_step_end

# Inputs of the step: live from its start.
_STEP_INPUTS = frozenset({"Const", "HostConst", "Placeholder", "_Arg", "_DeviceArg", "VarHandleOp"})


class Recomputer:
    """One step in which more and more tensors are recomputed.

    Ops are numbered as in the timeline, followed by clones. Their times are those of the given
    step, in which clones take no time; `timeline` shifts everything after the clones. Absences are
    numbered as in the timeline, followed by those that clones add. An absence that a clone's read
    splits keeps its number for the first part.

    Args:
        timeline: one unswapped step, with its dataflow.

    Raises:
        ValueError: the timeline has no dataflow.
    """

    def __init__(self, timeline: Timeline) -> None:
        if timeline.dataflow is None:
            raise ValueError(
                "this timeline has no dataflow (the inputs of its ops), so no tensor can be "
                "recomputed: record one from a training, or use policy='auto'"
            )
        self._given = timeline
        self._flow: Dataflow = timeline.dataflow
        self._buffer_of = dict(self._flow.buffer_of)
        self._tensors_in = defaultdict(list, {b: list(t) for b, t in self._flow.tensors_in.items()})
        self._scratch_bytes = dict(self._flow.scratch_bytes)
        self._ops = ClonedOps(timeline)

        self._bytes = timeline.buffer_bytes.tolist()
        self._free_ns = timeline.buffer_free_ns.tolist()
        # The op whose end frees each buffer; -1: none. Then, for buffers of clones, the op that
        # allocates each.
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

    def find(self, number: int) -> Recomputation | None:
        """Return how an absence's tensor can be recomputed; None if it cannot, or no longer.

        Args:
            number: of the absence.
        """
        absence = self._absences.get(number)
        if absence is None or absence.of_variable or absence.producer_op < 0:
            return None
        if number in self._crossing:
            return None
        node, port = _tensor(absence.tensor)
        lineage = Lineage(
            self._flow.graph,
            partial(self._state, absence=absence),
            partial(self._repeatable, absence=absence),
        )
        if (node, port) not in self._buffer_of or not lineage.reach(node):
            return None
        trigger = self._ops.trigger(absence)
        if trigger is None:
            return None
        return Recomputation(
            number,
            self._bytes[absence.buffer],
            tuple(lineage.nodes),
            self._ops.names[trigger],
            sum(
                self._ops.duration_ns[self._ops.op_of[n]]
                for n in lineage.nodes
                if n in self._ops.op_of
            ),
            tuple((tensor, self._bytes[self._buffer_of[tensor]]) for tensor in lineage.kept),
        )

    def _state(self, root: Tensor, absence: Absence) -> TensorState:
        made, buffer = self._ops.op_of.get(root[0]), self._buffer_of.get(root)
        if made is None:  # a constant, or fused into another op
            is_input = self._flow.maker(root).op in _STEP_INPUTS
            return TensorState.LIVE if is_input else TensorState.LOST
        if buffer is None:  # resident through the step, or too small to be listed
            return TensorState.LIVE
        if buffer in self._flow.fixed:
            return TensorState.LOST
        at_ns, at_rank = self._ops.start_ns[absence.before_op], self._ops.rank[absence.before_op]
        for other in self._tensors_in[buffer]:
            later = self._ops.op_of.get(other[0])
            if later is None or self._ops.rank[later] <= self._ops.rank[made]:
                continue
            if self._ops.start_ns[later] < at_ns:
                return TensorState.LOST  # overwritten
        free_by = self._freed_by[buffer]
        if free_by < 0:
            live = self._free_ns[buffer] >= at_ns
        else:
            live = self._ops.end_ns[free_by] >= at_ns and self._ops.rank[free_by] >= at_rank
        return TensorState.LIVE if live else TensorState.FREED

    def _repeatable(self, node: Node, absence: Absence) -> bool:
        known = node.alias or node.name in self._ops.op_of
        return node.repeatable and node.context == absence.context and known

    def apply(self, recomputation: Recomputation) -> None:
        """Recompute a tensor in the step."""
        target = self._absences.pop(recomputation.absence)
        ordinal = len(self._flow.recomputes)
        node, port = _tensor(target.tensor)
        graph = self._flow.graph
        readers = self._readers(recomputation.nodes)
        clones = self._ops.insert(recomputation.nodes, target.before_op, ordinal)
        for name in clones:
            if name in self._scratch_bytes:
                self._scratch_bytes[clone_name(name, ordinal)] = self._scratch_bytes[name]
        self._keep_sources(readers, clones)
        new_buffer = self._make_buffers(recomputation, target, readers, clones, ordinal)
        self._cut_absences(recomputation, target, readers, clones, ordinal)
        self._move_absences(target, new_buffer, clones[node], f"{clone_name(node, ordinal)}:{port}")
        recompute = Recompute(
            target.tensor, recomputation.nodes, recomputation.trigger, target.consumers
        )
        self._flow = dataclasses.replace(
            self._flow,
            graph=with_clones(graph, recompute, ordinal),
            recomputes=(*self._flow.recomputes, recompute),
        )

    def _readers(self, nodes: tuple[str, ...]) -> dict[Tensor, list[str]]:
        """Return which of the nodes read which tensors, of the step and of each other."""
        graph, cloned = self._flow.graph, set(nodes)
        readers: defaultdict[Tensor, list[str]] = defaultdict(list)
        for name in nodes:
            if name not in self._ops.op_of or graph.nodes[name].alias:
                continue
            for source, port in graph.nodes[name].inputs:
                # Read through aliases among the clones.
                while source in cloned and graph.nodes[source].alias and port == 0:
                    source, port = graph.nodes[source].inputs[0]
                tensor = (source, port) if source in cloned else graph.root(source, port)
                if name not in readers[tensor]:
                    readers[tensor].append(name)
        return readers

    def _free_after(self, buffer: int, clone: int) -> None:
        """Keep a buffer at least until a clone has ended."""
        freed_by = self._freed_by[buffer]
        if freed_by < 0:
            if self._free_ns[buffer] > self._ops.start_ns[clone]:
                return
        elif self._ops.rank[freed_by] >= self._ops.rank[clone]:
            return
        elif self._ops.end_ns[freed_by] > self._ops.start_ns[clone]:
            return  # freed by an op of the given step that ends later
        self._freed_by[buffer] = clone

    def _keep_sources(self, readers: dict[Tensor, list[str]], clones: dict[str, int]) -> None:
        for tensor, names in readers.items():
            buffer = self._buffer_of.get(tensor)
            if buffer is not None and tensor[0] not in clones:
                for name in names:
                    self._free_after(buffer, clones[name])

    def _make_buffers(
        self,
        recomputation: Recomputation,
        target: Absence,
        readers: dict[Tensor, list[str]],
        clones: dict[str, int],
        ordinal: int,
    ) -> int:
        """Allocate the clones' buffers; return the one that holds the tensor from now on."""
        freed = self._free_ns[target.buffer], self._freed_by[target.buffer]
        # Tensors that reuse the buffer later reuse the new one.
        at_rank = self._ops.rank[target.before_op]
        later = [
            other
            for other in self._tensors_in[target.buffer]
            if other[0] in self._ops.op_of and self._ops.rank[self._ops.op_of[other[0]]] >= at_rank
        ]
        self._freed_by[target.buffer] = target.after_op
        new_buffers: dict[int, int] = {}  # by buffer, the clones' buffer
        for name, clone in clones.items():
            for port in range(len(self._flow.graph.nodes[name].plain)):
                buffer = self._buffer_of.get((name, port))
                if buffer is None:
                    continue
                last = max([clone, *(clones[n] for n in readers.get((name, port), ()))])
                if buffer not in new_buffers:
                    new_buffers[buffer] = self._new_buffer(self._bytes[buffer], clone, last)
                new = new_buffers[buffer]
                self._free_after(new, last)
                if f"{name}:{port}" == target.tensor:
                    self._free_ns[new], self._freed_by[new] = freed
                tensor = (clone_name(name, ordinal), port)
                self._buffer_of[tensor] = new
                self._tensors_in[new].append(tensor)
            if name in self._scratch_bytes:
                self._new_buffer(self._scratch_bytes[name], clone, clone)
        new = new_buffers[target.buffer]
        for other in later:
            self._tensors_in[target.buffer].remove(other)
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
        recomputation: Recomputation,
        target: Absence,
        readers: dict[Tensor, list[str]],
        clones: dict[str, int],
        ordinal: int,
    ) -> None:
        """Split absences where the clones read the tensors."""
        at_ns, at_rank = self._ops.start_ns[target.before_op], self._ops.rank[target.before_op]
        kept = {tensor for tensor, _ in recomputation.kept}
        for tensor, names in readers.items():
            buffer = self._buffer_of.get(tensor)
            if buffer is None or tensor[0] in clones:
                continue
            text = f"{tensor[0]}:{tensor[1]}"
            consumers = tuple(clone_name(name, ordinal) for name in names)
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
                    if absence.before_op != target.before_op:
                        self._add(dataclasses.replace(absence, after_op=last))
            if tensor in kept:
                self._add_kept_absence(tensor, first, consumers, target)

    def _add(self, absence: Absence) -> None:
        self._absences[self._next_absence] = absence
        self._of_buffer[absence.buffer].append(self._next_absence)
        self._next_absence += 1

    def _add_kept_absence(
        self, tensor: Tensor, first: int, consumers: tuple[str, ...], target: Absence
    ) -> None:
        """Add the absence of a kept source until the clones read it."""
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
                context=target.context,
            )
        )

    def _move_absences(self, target: Absence, buffer: int, clone: int, tensor: str) -> None:
        """Move later absences to the clone; shorten the reader lists of earlier ones."""
        at_rank, late = self._ops.rank[target.before_op], set(target.consumers)
        for number in list(self._of_buffer[target.buffer]):
            absence = self._absences.get(number)
            if absence is None:
                continue
            if self._ops.rank[absence.after_op] >= at_rank:
                if absence.tensor == target.tensor:
                    absence = dataclasses.replace(absence, tensor=tensor, producer_op=clone)
                self._absences[number] = dataclasses.replace(absence, buffer=buffer)
                self._of_buffer[target.buffer].remove(number)
                self._of_buffer[buffer].append(number)
            elif absence.tensor == target.tensor:
                early = tuple(name for name in absence.consumers if name not in late)
                self._absences[number] = dataclasses.replace(absence, consumers=early)

    def timeline(self) -> Timeline:
        """Return the step with all clones, with everything after them shifted."""
        given = self._given
        if not self._made_by and not self._flow.recomputes[len(given.recomputes) :]:
            return given
        shifted = self._ops.shifted()
        rank = self._ops.rank
        made_ns = [shifted.start_ns[rank[op]] for op in self._made_by]
        free_ns = shifted.shift_frees(np.array(self._free_ns, dtype=np.int64))
        for buffer, op in enumerate(self._freed_by):
            if op >= 0:
                free_ns[buffer] = shifted.end_ns[rank[op]]
        alloc_ns = np.concatenate(
            [shifted.shift_allocations(given.buffer_alloc_ns), np.array(made_ns, dtype=np.int64)]
        )
        # One recorded step gave a buffer that was freed before its allocation; why is not known.
        free_ns = np.maximum(free_ns, alloc_ns)
        return Timeline(
            op_names=shifted.names,
            op_start_ns=shifted.start_ns,
            op_end_ns=shifted.end_ns,
            op_gateable=given.op_gateable[shifted.original],
            op_context=given.op_context[shifted.original],
            resident_bytes=given.resident_bytes,
            buffer_bytes=np.array(self._bytes, dtype=np.int64),
            buffer_alloc_ns=alloc_ns,
            buffer_free_ns=free_ns,
            absences=self._listed_absences(),
            step_ns=given.step_ns + shifted.inserted_ns,
            op_types=tuple(given.op_types[op] for op in shifted.original) if given.op_types else (),
            dataflow=dataclasses.replace(
                self._flow,
                buffer_of=dict(self._buffer_of),
                scratch_bytes=dict(self._scratch_bytes),
            ),
        )

    def _listed_absences(self) -> tuple[Absence, ...]:
        """Return the absences with ranks instead of op numbers, each buffer's by time."""
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


def _tensor(text: str) -> Tensor:
    node, _, port = text.rpartition(":")
    return node, int(port)
