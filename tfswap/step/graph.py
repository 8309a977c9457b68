"""StepGraph: the Grappler pass's description of a graph, for planners (``graph_description.h``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

_FLAGS = {
    "g": "gateable",
    "a": "alias",
    "p": "producer",
    "r": "rewirable",
    "s": "racing",
    "o": "orderable",
    "u": "updates_variable",
    "b": "backward",
    "d": "repeatable",
}


@dataclass(frozen=True)
class Node:
    """One node.

    Args:
        name: The node's name.
        op: The op type.
        context: Control-flow context: nodes of the same context always run together.
        gateable: It may wait for a swap-out and trigger a swap-in.
        alias: Output 0 shares input 0's memory.
        producer: Its outputs may be swapped.
        rewirable: Its inputs may be replaced by swapped-in tensors.
        orderable: It may be ordered after any other node.
        racing: It must not be delayed, because the order of completion decides how a sum is
            rounded, and no order edges fix it.
        updates_variable: It assigns a new value to a variable.
        backward: It is a gradient, or computed from one.
        repeatable: It is deterministic and has no side effects.
        plain: For each output, whether it is a plain byte buffer.
        activations: For each output, whether it is a float32 activation of the forward part.
        inputs: Data inputs as (node, port), in order.
        controls: Nodes that must end before it starts.
    """

    name: str
    op: str
    context: int
    gateable: bool
    alias: bool
    producer: bool
    rewirable: bool
    orderable: bool
    racing: bool
    updates_variable: bool
    backward: bool
    repeatable: bool
    plain: tuple[bool, ...]
    activations: tuple[bool, ...]
    inputs: tuple[tuple[str, int], ...]
    controls: tuple[str, ...]


@dataclass(frozen=True)
class StepGraph:
    """All nodes of a graph, the readers of each tensor, and the pass's proposed order edges.

    Args:
        nodes: Nodes by name.
        broadcasts: (before, after): delay large copies of small tensors; they are also among the
            controls.
        delays: (before, after): delay early work on variables.
        keep_ups: (before, after): run updates of variables in time.
        sums: (before, after): let the additions of sums wait for each other.
        chain: (before, after): run one op after the other.
        readers: By tensor, the nodes that read it.
        twins: Pairs of nodes, in both directions, that oneDNN may fuse into one op: nothing may be
            ordered between them.
        triggers: By racing node, the node whose end brings back what on-demand swaps moved of its
            inputs.
        raced: The racing nodes as they would be if nothing raced.
    """

    nodes: dict[str, Node]
    broadcasts: tuple[tuple[str, str], ...] = ()
    delays: tuple[tuple[str, str], ...] = ()
    keep_ups: tuple[tuple[str, str], ...] = ()
    sums: tuple[tuple[str, str], ...] = ()
    chain: tuple[tuple[str, str], ...] = ()
    readers: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)
    triggers: dict[str, str] = field(default_factory=dict)
    raced: dict[str, Node] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> StepGraph:
        """Parse a description."""
        nodes: dict[str, Node] = {}
        edges: dict[str, list[tuple[str, str]]] = {
            "#broadcast": [],
            "#delay": [],
            "#keepup": [],
            "#sum": [],
            "#chain": [],
            "#twin": [],
            "#trigger": [],
        }
        readers: dict[tuple[str, int], list[str]] = {}
        for line in text.splitlines():
            name, *rest = line.split("\t")
            if name in edges:
                edges[name].append((rest[0], rest[1]))
                continue
            op, context, flags, plain, *inputs = rest
            data = tuple(_tensor(i) for i in inputs if not i.startswith("^"))
            nodes[name] = Node(
                name=name,
                op=op,
                context=int(context),
                **{field: flag in flags for flag, field in _FLAGS.items()},
                plain=tuple(digit != "0" for digit in plain),
                activations=tuple(digit == "2" for digit in plain),
                inputs=data,
                controls=tuple(i[1:] for i in inputs if i.startswith("^")),
            )
            for tensor in data:
                readers.setdefault(tensor, []).append(name)
        raced = {name: node for name, node in nodes.items() if node.racing}
        return StepGraph(
            {**nodes, **{name: _staying(node) for name, node in raced.items()}},
            tuple(edges["#broadcast"]),
            tuple(edges["#delay"]),
            tuple(edges["#keepup"]),
            tuple(edges["#sum"]),
            tuple(edges["#chain"]),
            {tensor: tuple(dict.fromkeys(names)) for tensor, names in readers.items()},
            dict(edges["#twin"]),
            {reader: trigger for trigger, reader in edges["#trigger"]},
            {name: replace(node, racing=False) for name, node in raced.items()},
        )

    def in_order(self, order: Iterable[tuple[str, str]]) -> StepGraph:
        """Return the graph in which nothing races if edges put the additions of all sums in order.

        Args:
            order: Order edges (before, after), such as `recorded_sums`.

        Returns:
            The graph with those edges among its `sums`; the same graph if they order not all sums.
        """
        sums = _sums_in_order(self.nodes, order)
        if not sums:
            return self
        nodes = {**self.nodes, **self.raced}
        return replace(self, nodes=nodes, sums=(*self.sums, *sums), triggers={}, raced={})

    def to_text(self) -> str:
        """Return the description, which `parse` reads."""
        lines = []
        for node in self.nodes.values():
            flags = "".join(flag for flag, field in _FLAGS.items() if getattr(node, field))
            plain = "".join(
                "2" if activation else str(int(is_plain))
                for is_plain, activation in zip(node.plain, node.activations, strict=True)
            )
            inputs = [f"{name}:{port}" for name, port in node.inputs]
            inputs += [f"^{name}" for name in node.controls]
            lines.append("\t".join([node.name, node.op, str(node.context), flags, plain, *inputs]))
        edges = {
            "#broadcast": self.broadcasts,
            "#delay": self.delays,
            "#keepup": self.keep_ups,
            "#sum": self.sums,
            "#chain": self.chain,
            "#twin": self.twins.items(),
            "#trigger": [(trigger, reader) for reader, trigger in self.triggers.items()],
        }
        lines += [f"{kind}\t{a}\t{b}" for kind, pairs in edges.items() for a, b in pairs]
        return "\n".join(lines)

    @property
    def has_movable_lists(self) -> bool:
        """Whether elements of lists, which loops keep, may leave on demand (``loop_lists.h``)."""
        return any(node.op in ("_ElementToHost", "_RowsToHost") for node in self.nodes.values())

    @property
    def order(self) -> tuple[tuple[str, str], ...]:
        """The order edges to add to a rewritten graph."""
        return (*self.delays, *self.keep_ups, *self.sums, *self.chain)

    def root(self, node: str, port: int) -> tuple[str, int]:
        """Return the tensor that a tensor is an alias of, or the tensor itself."""
        while self.nodes[node].alias and port == 0:
            node, port = self.nodes[node].inputs[0]
        return node, port

    def readers_through_aliases(self, node: str, port: int) -> Iterator[str]:
        """Yield the nodes that read a tensor or an alias of it, without the aliases themselves."""
        reached = [(node, port)]
        seen: set[str] = set()
        for tensor in reached:
            for reader in self.readers.get(tensor, ()):
                if reader in seen:
                    continue
                seen.add(reader)
                if self.nodes[reader].alias and self.nodes[reader].inputs[0] == tensor:
                    reached.append((reader, 0))
                else:
                    yield reader


def racing_sums(nodes: Mapping[str, Node]) -> Iterable[list[str]]:
    """Return the additions of each sum that is rounded in their order of arrival."""
    sums: defaultdict[tuple[str, int], list[str]] = defaultdict(list)  # by accumulator
    for name, node in nodes.items():
        if node.racing and node.op == "AssignAdd":
            sums[node.inputs[0]].append(name)
    return sums.values()


def _sums_in_order(
    nodes: Mapping[str, Node], order: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the edges of the order that put the additions of all sums in order, or none."""
    edges = set(order)
    found: list[tuple[str, str]] = []
    for additions in map(set, racing_sums(nodes)):
        sorter = TopologicalSorter(dict.fromkeys(additions, ()))
        for before, after in edges:
            if before in additions and after in additions:
                sorter.add(after, before)
        try:
            pairs = list(pairwise(sorter.static_order()))
        except CycleError:
            return []
        if not edges.issuperset(pairs):
            return []
        found += pairs
    return found


def _staying(node: Node) -> Node:
    """Return a node of which nothing moves, and which waits for nothing."""
    return replace(node, gateable=False, producer=False, orderable=False, repeatable=False)


def _tensor(text: str) -> tuple[str, int]:
    name, _, port = text.rpartition(":")
    return name, int(port)
