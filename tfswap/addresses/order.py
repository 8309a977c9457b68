"""StepOrder: which ops of a step end before which others start, in every run of it.

What a graph's edges and a plan's leave open is up to the executor, and differs from step to step.
Where two buffers share an address, the first one's last reader must have ended before the second
one's op starts; `StepOrder.enforce` finds the edges that are missing for that.
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

# Begins of op types whose outputs never share an input's memory, though they may be as large.
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
    """The nodes of a graph under a plan, and their edges.

    Args:
        graph: The graph.
        function: Its plan: swaps and order edges.
    """

    def __init__(self, graph: StepGraph, function: FunctionPlan) -> None:
        self._graph = graph
        contexts = Counter(node.context for node in graph.nodes.values())
        self._context = max(contexts, key=contexts.__getitem__, default=0)
        self._before: dict[str, set[str]] = defaultdict(set)
        for name, node in graph.nodes.items():
            # A Merge waits for one of its inputs only.
            if node.op not in _MERGES:
                self._before[name].update(input_ for input_, _ in node.inputs)
            self._before[name].update(node.controls)
        if not (function.swaps or function.reserve):  # a step of TensorFlow's own
            for before, after in graph.broadcasts:
                self._before[after].discard(before)
        for before, after in function.order:
            self._before[after].add(before)
        self._outs: set[str] = set()
        self._ins: set[str] = set()
        self._eager_ins: set[str] = set()
        self._read_swaps(function)
        # Two that oneDNN may make one of wait for what either waits for.
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
        """Whether others may be made to wait for its end."""
        return name in self._outs or self._is_usual(name)

    def may_wait(self, name: str) -> bool:
        """Whether it may be made to wait for others."""
        if name in self._ins:
            return True
        node = self._graph.nodes.get(name)
        return node is not None and node.orderable and node.context == self._context

    def is_swap_in(self, name: str) -> bool:
        """Whether it is a swap-in of the plan: it starts long before it allocates."""
        return name in self._ins

    def is_lazy_swap_in(self, name: str) -> bool:
        """Whether it brings something back that left because memory was short, which is seldom."""
        return name.startswith(SWAP_IN_PREFIX) and name not in self._eager_ins

    def may_write_in_place(self, name: str) -> bool:
        """Whether an op of that kind may put its output where an input was."""
        node = self._graph.nodes.get(name)
        return (
            node is not None
            and not node.alias
            and not node.op.lstrip("_").startswith(_NEVER_IN_PLACE)
        )

    def op_type(self, name: str) -> str:
        """The op's kind; "" for what is not the graph's."""
        node = self._graph.nodes.get(name)
        return "" if node is None else node.op

    def is_alias(self, name: str) -> bool:
        """Whether its output is its input."""
        node = self._graph.nodes.get(name)
        return node is not None and node.alias

    def last_gate(self, name: str, start_ns: Mapping[str, int]) -> str | None:
        """What has to wait so that the op does: itself, or what it needs that started last.

        Args:
            name: The op.
            start_ns: When ops started.
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
        """The edges (before, after) that are missing.

        Args:
            wanted: By op, others that shall have ended before it starts. They started before it
                when times were taken, so no edge closes a cycle. Those that nobody can wait for,
                or that cannot wait, are passed over.
            start_ns: When ops started (swap-ins: when they allocated).
        """
        order = sorted(start_ns, key=start_ns.__getitem__)
        bit = {name: 1 << place for place, name in enumerate(order)}
        ended: dict[str, int] = {}  # before each op starts, as bits
        edges: list[tuple[str, str]] = []
        for name in order:
            before_it = 0
            for before in self._nearest_recorded(name, start_ns):
                before_it |= ended.get(before, 0) | bit[before]
            first = wanted.get(name, ()) if self.may_wait(name) else ()
            known = [n for n in first if n in ended and self.may_come_first(n)]
            for before in sorted(known, key=lambda n: -bit[n]):
                # One that waits for this op, as a twin may for what the other one does, cannot.
                if before_it & bit[before] == 0 and ended[before] & bit[name] == 0:
                    edges.append((before, name))
                    before_it |= ended[before] | bit[before]
            ended[name] = before_it
        # Behind a Merge, what ran first in one step may need what ran later in another.
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
        """What a node waits for, through nodes that were not seen to run."""
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
