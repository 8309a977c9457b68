"""The order in which one stream runs a step's ops."""

from __future__ import annotations

import heapq

from tfswap.cost_model.op_costs import StepCosts
from tfswap.step.graph import Node

_DATA = frozenset({"IteratorGetNext", "Placeholder"})

# Ops that only lead to updates of variables, and not to one of these, can run early.
_MILESTONES = ("Conv", "DepthwiseConv", "MatMul", "BatchMatMul", "Einsum", "_Fused")


def single_stream_order(step: StepCosts, creation: dict[str, int]) -> list[str]:
    """Return all nodes in execution order, each after its inputs and control dependencies.

    The forward and backward passes run in the order in which Python created their ops. Ops that
    lead only to variable updates run as soon as possible. Ops that depend on variables alone (an
    optimizer's ``momentum * m``) run right before their first reader, as with the pass's order
    edges.
    """
    needs = {
        name: [tensor[0] for tensor in node.inputs] + list(step.waits_for.get(name, ()))
        for name, node in step.graph.nodes.items()
    }
    # Ops that may be fused need the inputs of both, and run one after the other.
    twins = step.graph.twins
    needs |= {name: [*needs[name], *needs[twin]] for name, twin in twins.items()}
    topological = _topological(needs)
    of_data = _reached_from_data(step, needs, topological)
    ending = _leading_to_updates(step, needs, topological)
    made: dict[str, int] = {}
    for name in topological:
        # A node that a Grappler pass created runs right after its inputs.
        after_inputs = max((made[before] for before in needs[name]), default=0)
        made[name] = creation.get(name, after_inputs)

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


def is_data(node: Node) -> bool:
    """Return whether a node provides the batch; arguments may be variables too."""
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
        if is_data(step.graph.nodes[name]) or any(b in reached for b in needs[name]):
            reached.add(name)
    return reached


def _leading_to_updates(
    step: StepCosts, needs: dict[str, list[str]], topological: list[str]
) -> set[str]:
    """Return nodes after the last milestones: no convolution or matrix product depends on them."""
    leading: set[str] = set(needs)
    for name in reversed(topological):
        milestone = step.graph.nodes[name].op.startswith(_MILESTONES)
        if milestone:
            leading.discard(name)
        if milestone or name not in leading:
            leading.difference_update(needs[name])
    return leading
