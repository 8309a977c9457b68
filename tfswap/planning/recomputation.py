"""How a tensor is recomputed at the end of an absence, and from which tensors.

A recomputation goes back to tensors that are still in memory (Capuchin's lineage: Peng et al.,
ASPLOS 2020, section 4.3), through ops that return the same for the same inputs and have no other
effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tfswap.step.dataflow import Tensor
from tfswap.step.graph import Node, StepGraph

# The longest lineage, in ops.
_MAX_OPS = 24


@dataclass(frozen=True)
class Recomputation:
    """How the tensor of an absence can be recomputed at its end.

    Attributes:
        absence: number of the absence.
        bytes: size of its buffer, which is free in between.
        nodes: names of the nodes that compute it, in order.
        trigger: the op after which they start.
        cost_ns: their total duration.
        kept: sources that were freed earlier, with their bytes: they stay in memory, or are swapped
            or recomputed themselves.
    """

    absence: int
    bytes: int
    nodes: tuple[str, ...]
    trigger: str
    cost_ns: int
    kept: tuple[tuple[Tensor, int], ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the sources that would otherwise be free."""
        return sum(size for _, size in self.kept)

    @property
    def freed_bytes(self) -> int:
        """Net bytes freed during the absence."""
        return self.bytes - self.kept_bytes


class TensorState(Enum):
    """State of a tensor at the end of an absence."""

    LIVE = "live"
    FREED = "freed"  # could have been kept
    LOST = "lost"  # overwritten, or not readable


class Lineage:
    """The nodes that compute a tensor from live tensors.

    Attributes:
        nodes: names of the nodes, in order.
        kept: freed tensors that must be kept as sources.

    Args:
        graph: the graph of the step.
        state: returns the state of a tensor when the absence ends.
        repeatable: returns whether a node may run again for the absence.
    """

    def __init__(
        self,
        graph: StepGraph,
        state: Callable[[Tensor], TensorState],
        repeatable: Callable[[Node], bool],
    ) -> None:
        self._graph = graph
        self._state = state
        self._repeatable = repeatable
        self._tried: set[str] = set()
        self.nodes: list[str] = []
        self.kept: list[Tensor] = []

    def reach(self, name: str) -> bool:
        """Append a node after the nodes that it needs; return whether that is possible."""
        if name in self.nodes:
            return True
        node = self._graph.nodes[name]
        if name in self._tried or len(self._tried) > _MAX_OPS:
            return False
        if not self._repeatable(node):
            return False
        self._tried.add(name)
        for source, port in node.inputs:
            root = self._graph.root(source, port)
            state = self._state(root)
            if state is TensorState.LIVE or root in self.kept:
                continue
            nodes, kept = len(self.nodes), len(self.kept)
            if self.reach(source):
                continue
            del self.nodes[nodes:], self.kept[kept:]
            if state is TensorState.LOST:
                return False
            self.kept.append(root)
        self.nodes.append(name)
        return len(self.nodes) <= _MAX_OPS
