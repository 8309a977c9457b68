"""Dataflow: which tensors the ops of a recorded step read, and in which buffers they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tfswap.grappler.graph import Node, StepGraph
from tfswap.plan import Recompute

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
