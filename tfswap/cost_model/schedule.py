"""The order in which one stream would run a step's ops."""

from __future__ import annotations

import heapq

from tfswap.cost_model.op_costs import StepCosts
from tfswap.step.graph import Node

_DATA = frozenset({"IteratorGetNext", "Placeholder"})

# From these a variable's new value still has a long way to go; what leads to none is an end.
_MILESTONES = ("Conv", "DepthwiseConv", "MatMul", "BatchMatMul", "Einsum", "_Fused")


def one_stream(step: StepCosts, creation: dict[str, int]) -> list[str]:
    """Names of all nodes, each after all that it needs.

    Forward and backward part go in the order in which Python made them. What leads to nothing but
    updates of variables is done as soon as it can be; what hangs on variables alone (an optimizer's
    ``momentum * m``) when somebody reads it, as the pass's order edges have it.
    """
    needs = {
        name: [tensor[0] for tensor in node.inputs] + list(step.waits_for.get(name, ()))
        for name, node in step.graph.nodes.items()
    }
    # What may run as one op needs all that both need, and comes one behind the other.
    twins = step.graph.twins
    needs |= {name: [*needs[name], *needs[twin]] for name, twin in twins.items()}
    topological = _topological(needs)
    of_data = _reached_from_data(step, needs, topological)
    ending = _leading_to_updates(step, needs, topological)
    made: dict[str, int] = {}
    for name in topological:
        # A node that a pass has made comes right behind what it reads.
        behind = max((made[before] for before in needs[name]), default=0)
        made[name] = creation.get(name, behind)

    readers: dict[str, list[str]] = {name: [] for name in needs}
    pending = {}
    for name in of_data:
        waits = {before for before in needs[name] if before in of_data}
        pending[name] = len(waits)
        for before in waits:
            readers[before].append(name)
    place = {name: i for i, name in enumerate(topological)}
    ready = [
        (name not in ending, made[name], place[name], name) for name in of_data if not pending[name]
    ]
    heapq.heapify(ready)
    order: list[str] = []
    done: set[str] = set()

    def run(name: str) -> None:
        waiting = [name]
        while waiting:
            first = [b for b in needs[waiting[-1]] if b not in done and b not in of_data]
            if first:
                waiting.append(first[0])
                continue
            at = waiting.pop()
            if at not in done:
                done.add(at)
                order.append(at)

    while ready:
        *_, name = heapq.heappop(ready)
        run(name)
        if name in twins:
            run(twins[name])
        for reader in readers[name]:
            pending[reader] -= 1
            if pending[reader] == 0:
                key = (reader not in ending, made[reader], place[reader], reader)
                heapq.heappush(ready, key)
    for name in topological:
        if name not in done:
            run(name)
    return order


def brings_data(node: Node) -> bool:
    """Whether it brings the batch into the graph; arguments may be variables too."""
    return node.op in _DATA or (node.op == "_Arg" and node.plain == (True,))


def _topological(needs: dict[str, list[str]]) -> list[str]:
    order: list[str] = []
    done: set[str] = set()
    for root in needs:
        stack = [(root, iter(needs[root]))]
        while stack:
            name, rest = stack[-1]
            following = next((b for b in rest if b not in done), None)
            if following is not None:
                stack.append((following, iter(needs[following])))
                continue
            stack.pop()
            if name not in done:
                done.add(name)
                order.append(name)
    return order


def _reached_from_data(
    step: StepCosts, needs: dict[str, list[str]], topological: list[str]
) -> set[str]:
    reached: set[str] = set()
    for name in topological:
        if brings_data(step.graph.nodes[name]) or any(b in reached for b in needs[name]):
            reached.add(name)
    return reached


def _leading_to_updates(
    step: StepCosts, needs: dict[str, list[str]], topological: list[str]
) -> set[str]:
    """Nodes behind the last milestones: no convolution or matrix product hangs on them."""
    leading: set[str] = set(needs)
    for name in reversed(topological):
        milestone = step.graph.nodes[name].op.startswith(_MILESTONES)
        if milestone:
            leading.discard(name)
        if milestone or name not in leading:
            leading.difference_update(needs[name])
    return leading
