"""Dataflow: the tensors that the ops of a recorded step read, and the tensors' buffers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tfswap.plan.node_names import clone_name
from tfswap.plan.schema import Recompute
from tfswap.step.graph import Node, StepGraph

Tensor = tuple[str, int]
"""A node's name and the index of its output."""


@dataclass(frozen=True, eq=False)
class Dataflow:
    """The tensors of a timeline, for planners that recompute some of them.

    Attributes:
        graph: The step's graph, including the clones that recompute tensors.
        buffer_of: By tensor, the index of its buffer in the timeline. Aliases, and tensors that
            stay through the whole step, have no entry.
        scratch_bytes: By node, the size of its temporary memory, if it has any.
        min_bytes: Smaller tensors are not swapped.
        fixed: Buffers that clones must not read: values of variables that may be swapped out.
        recomputes: The recomputed tensors, in the order of the decisions.
    """

    graph: StepGraph
    buffer_of: Mapping[Tensor, int]
    scratch_bytes: Mapping[str, int]
    min_bytes: int
    fixed: frozenset[int] = frozenset()
    recomputes: tuple[Recompute, ...] = ()

    @cached_property
    def tensors_in(self) -> dict[int, tuple[Tensor, ...]]:
        """By buffer, the tensors that it holds one after the other, without aliases."""
        tensors: defaultdict[int, list[Tensor]] = defaultdict(list)
        for tensor, buffer in self.buffer_of.items():
            tensors[buffer].append(tensor)
        return {buffer: tuple(those) for buffer, those in tensors.items()}

    def maker(self, tensor: Tensor) -> Node:
        """Return the node that produces a tensor."""
        return self.graph.nodes[tensor[0]]


def with_clones(graph: StepGraph, recompute: Recompute, ordinal: int) -> StepGraph:
    """Return the graph after the pass has applied one recompute.

    Args:
        graph: The graph before it.
        recompute: The recompute.
        ordinal: Its index in the plan.
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
            (clone_name(source, ordinal), port) if source in cloned else (source, port)
            for source, port in old.inputs
        )
        reads_a_clone = any(source in cloned for source, _ in old.inputs)
        add(
            replace(
                old,
                name=clone_name(name, ordinal),
                inputs=inputs,
                controls=() if reads_a_clone else (recompute.trigger,),
            )
        )
    node, _, port = recompute.tensor.rpartition(":")
    root = graph.root(node, int(port))

    def recomputed(tensor: Tensor) -> Tensor:
        clone = clone_name(tensor[0], ordinal)
        if tensor != root and clone not in nodes:
            alias = nodes[tensor[0]]
            inputs = (recomputed(alias.inputs[0]), *alias.inputs[1:])
            add(replace(alias, name=clone, inputs=inputs))
        return clone, tensor[1]

    for consumer in recompute.consumers:
        old = nodes[consumer]
        inputs = tuple(
            recomputed(tensor) if graph.root(*tensor) == root else tensor for tensor in old.inputs
        )
        for tensor in old.inputs:
            if tensor not in inputs and consumer in reads(tensor):
                reads(tensor).remove(consumer)
        add(replace(old, inputs=inputs))
    readers = {**graph.readers, **{tensor: tuple(names) for tensor, names in touched.items()}}
    return replace(graph, nodes=nodes, readers=readers)
