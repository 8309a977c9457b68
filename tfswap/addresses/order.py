"""StepOrder: the order of ops that holds in every run of a step.

The executor is free to choose any order that the edges of the graph and of the plan allow, and the
choice differs between steps. Where two buffers share an address, the first one's last reader must
end before the second one's op starts; `StepOrder.enforce` finds the missing edges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from tfswap.plan.node_names import SWAP_IN_PREFIX, SWAP_OUT_PREFIX, swap_out_name
from tfswap.plan.schema import FunctionPlan
from tfswap.step.graph import StepGraph

_MERGES = ("Merge", "RefMerge")
_BACK_EDGES = ("NextIteration", "RefNextIteration")

# Prefixes of op types whose outputs never reuse an input's memory, though they may be as large.
_NEVER_IN_PLACE = (
    "ArgMax",
    "AvgPool",
    "BatchMatMul",
    "BroadcastTo",
    "Concat",
    "Conv",
    "Cumsum",
    "DepthwiseConv",
    "Einsum",
    "Fused",
    "Gather",
    "MatMul",
    "Max",
    "Mean",
    "MirrorPad",
    "Pad",
    "Resize",
    "Slice",
    "Sum",
    "Tile",
    "Transpose",
    "UnsortedSegment",
)


class StepOrder:
    """The nodes and edges of a graph under a plan.

    Args:
        graph: The graph.
        function: The graph's plan: swaps and order edges.
    """

    def __init__(self, graph: StepGraph, function: FunctionPlan) -> None:
        self._graph = graph
        contexts = Counter(node.context for node in graph.nodes.values())
        self._context = max(contexts, key=contexts.__getitem__, default=0)
        self._before: dict[str, set[str]] = defaultdict(set)
        for name, node in graph.nodes.items():
            # A Merge waits for only one of its inputs.
            if node.op not in _MERGES:
                self._before[name].update(input_ for input_, _ in node.inputs)
            self._before[name].update(node.controls)
        if not (function.swaps or function.reserve):  # the pass adds no broadcast edges
            for before, after in graph.broadcasts:
                self._before[after].discard(before)
        for before, after in function.order:
            self._before[after].add(before)
        self._outs: set[str] = set()
        self._ins: set[str] = set()
        self._eager_ins: set[str] = set()
        self._read_swaps(function)
        # Twins, which oneDNN may fuse into one op, wait for each other's predecessors.
        self._before.update(
            {
                one: (self._before[one] | self._before[other]) - {one, other}
                for one, other in graph.twins.items()
            }
        )

    def _read_swaps(self, function: FunctionPlan) -> None:
        seen: Counter[str] = Counter()
        for swap in function.swaps:
            node = swap.tensor.rpartition(":")[0]
            out = swap_out_name(swap.tensor, seen[swap.tensor])
            key = out.removeprefix(SWAP_OUT_PREFIX)
            seen[swap.tensor] += 1
            usual = self._is_usual(node)
            if usual:
                self._outs.add(out)
            self._before[out].update(swap.after or (node,))
            for gate in swap.gates:
                self._before[gate].add(out)
            for ordinal, back in enumerate(swap.returns):
                name = f"{SWAP_IN_PREFIX}{key}/{ordinal}"
                if not swap.lazy:
                    self._eager_ins.add(name)
                if not swap.after or swap.returns_in_step:
                    self._before[name].add(out)
                if back.trigger:
                    self._before[name].add(back.trigger)
                if usual and (not back.trigger or self._is_usual(back.trigger)):
                    self._ins.add(name)
                for consumer in back.consumers:
                    self._before[consumer].add(name)

    def _is_usual(self, name: str) -> bool:
        node = self._graph.nodes.get(name)
        return node is not None and node.context == self._context

    def may_come_first(self, name: str) -> bool:
        """Return whether other ops may be ordered after it."""
        return name in self._outs or self._is_usual(name)

    def may_wait(self, name: str) -> bool:
        """Return whether it may be ordered after other ops."""
        if name in self._ins:
            return True
        node = self._graph.nodes.get(name)
        return node is not None and node.orderable and node.context == self._context

    def is_swap_in(self, name: str) -> bool:
        """Return whether it is a swap-in of the plan, which starts long before it allocates."""
        return name in self._ins

    def is_lazy_swap_in(self, name: str) -> bool:
        """Return whether it is an on-demand swap-in, which runs only if memory was short."""
        return name.startswith(SWAP_IN_PREFIX) and name not in self._eager_ins

    def may_write_in_place(self, name: str) -> bool:
        """Return whether an op of this type may reuse an input's memory for its output."""
        node = self._graph.nodes.get(name)
        return (
            node is not None
            and not node.alias
            and not node.op.lstrip("_").startswith(_NEVER_IN_PLACE)
        )

    def op_type(self, name: str) -> str:
        """Return the op's type; "" for an op that is not in the graph."""
        node = self._graph.nodes.get(name)
        return "" if node is None else node.op

    def is_alias(self, name: str) -> bool:
        """Return whether its output is an alias of its input."""
        node = self._graph.nodes.get(name)
        return node is not None and node.alias

    def last_gate(self, name: str, start_ns: Mapping[str, int]) -> str | None:
        """Return the op to order so that `name` waits: itself, or its latest orderable predecessor.

        Args:
            name: The op.
            start_ns: Start times of ops.
        """
        last: str | None = None
        pending, seen = [name], {name}
        while pending:
            at = pending.pop()
            if at in start_ns and self.may_wait(at):
                if last is None or start_ns[at] > start_ns[last]:
                    last = at
                continue
            for before in self._before.get(at, ()):
                if before not in seen:
                    seen.add(before)
                    pending.append(before)
        return last

    def enforce(
        self, wanted: Mapping[str, Iterable[str]], start_ns: Mapping[str, int]
    ) -> tuple[tuple[str, str], ...]:
        """Return the edges (before, after) that must be added.

        Args:
            wanted: By op, the ops that must end before it starts. They started before it in the
                recording, so no edge closes a cycle. Ops that cannot be ordered are skipped.
            start_ns: Start times of ops; for swap-ins, the times of their allocations.
        """
        order = sorted(start_ns, key=start_ns.__getitem__)
        bit = {name: 1 << place for place, name in enumerate(order)}
        ended: dict[str, int] = {}  # bit sets: the ops that end before each op starts
        edges: list[tuple[str, str]] = []
        for name in order:
            before_it = 0
            for before in self._nearest_recorded(name, start_ns):
                before_it |= ended.get(before, 0) | bit[before]
            first = wanted.get(name, ()) if self.may_wait(name) else ()
            known = [n for n in first if n in ended and self.may_come_first(n)]
            for before in sorted(known, key=lambda n: -bit[n]):
                # Skip an op that itself waits for this one, which is possible with twins.
                if before_it & bit[before] == 0 and ended[before] & bit[name] == 0:
                    edges.append((before, name))
                    before_it |= ended[before] | bit[before]
            ended[name] = before_it
        # After a Merge, the order of one step may contradict the data flow of another.
        return tuple(edges) if self._is_acyclic(edges) else ()

    def _is_acyclic(self, edges: Iterable[tuple[str, str]]) -> bool:
        before = {name: set(names) for name, names in self._before.items()}
        for name, node in self._graph.nodes.items():
            if node.op in _MERGES:
                before[name] |= {
                    input_ for input_, _ in node.inputs if self.op_type(input_) not in _BACK_EDGES
                }
        for first, then in edges:
            before.setdefault(then, set()).add(first)
        try:
            TopologicalSorter(before).prepare()
        except CycleError:
            return False
        return True

    def _nearest_recorded(self, name: str, start_ns: Mapping[str, int]) -> Iterator[str]:
        """Yield the nearest recorded predecessors of a node."""
        pending, seen = list(self._before.get(name, ())), {name}
        while pending:
            at = pending.pop()
            if at in seen:
                continue
            seen.add(at)
            if at in start_ns:
                yield at
            else:
                pending += self._before.get(at, ())
