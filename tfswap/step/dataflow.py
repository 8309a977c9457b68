"""Dataflow: which tensors the ops of a recorded step read, and in which buffers they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tfswap.plan.node_names import again_name
from tfswap.plan.schema import Recompute
from tfswap.step.graph import Node, StepGraph

Tensor = tuple[str, int]
"""A node's name and the number of its output."""


@dataclass(frozen=True, eq=False)
class Dataflow:
    """What a timeline leaves out: tensors, for planners that have some made again.

    Attributes:
        graph: the step's, with the clones that make tensors again.
        buffer_of: by tensor, the index of its buffer in the timeline; aliases are left out. What
            stays through the step has none.
        scratch_bytes: by node, what it works in beside inputs and outputs, if anything.
        min_bytes: smaller tensors are not swapped.
        fixed: buffers that no clone may read: values of variables that may leave.
        recomputes: the tensors that are made again, in the order in which that was decided.
    """

    graph: StepGraph
    buffer_of: Mapping[Tensor, int]
    scratch_bytes: Mapping[str, int]
    min_bytes: int
    fixed: frozenset[int] = frozenset()
    recomputes: tuple[Recompute, ...] = ()

    @cached_property
    def tensors_in(self) -> dict[int, tuple[Tensor, ...]]:
        """By buffer, the tensors that are in it one after the other, aliases left out."""
        tensors: defaultdict[int, list[Tensor]] = defaultdict(list)
        for tensor, buffer in self.buffer_of.items():
            tensors[buffer].append(tensor)
        return {buffer: tuple(those) for buffer, those in tensors.items()}

    def maker(self, tensor: Tensor) -> Node:
        """The node that makes a tensor."""
        return self.graph.nodes[tensor[0]]


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
            replace(
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
            add(replace(alias, name=clone, inputs=inputs))
        return clone, tensor[1]

    for consumer in recompute.consumers:
        old = nodes[consumer]
        inputs = tuple(
            again(tensor) if graph.root(*tensor) == root else tensor for tensor in old.inputs
        )
        for tensor in old.inputs:
            if tensor not in inputs and consumer in reads(tensor):
                reads(tensor).remove(consumer)
        add(replace(old, inputs=inputs))
    readers = {**graph.readers, **{tensor: tuple(names) for tensor, names in touched.items()}}
    return replace(graph, nodes=nodes, readers=readers)
