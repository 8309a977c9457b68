"""Rename the nodes of a plan for a function loaded from a SavedModel.

TensorFlow calls a loaded function from a wrapper and inlines it: its nodes get the prefix
"StatefulPartitionedCall/" and its arguments get other names. The pass reports for each graph a
fingerprint that does not depend on this (``PortableFingerprint`` in C++).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tfswap.plan.node_names import CLONE_INFIX, SWAP_IN_PREFIX, SWAP_OUT_PREFIX, clone_name
from tfswap.plan.schema import FunctionPlan, Recompute, Return, TensorSwap
from tfswap.plan.slots import Slot

_CALL, _STATEFUL = "PartitionedCall", "Stateful"
_MAX_DIGITS = 9
# After a copy's port: the index of the variable's swap, and the index of its return.
_MAX_INDICES = 2


def renamed(function: FunctionPlan, fingerprint: str, nodes: Iterable[str]) -> FunctionPlan | None:
    """Return a graph's plan for another graph that differs only in the names of calls.

    Args:
        function: The plan.
        fingerprint: The other graph's fingerprint.
        nodes: The names of the other graph's nodes.

    Returns:
        The renamed plan; None if a node of the plan is missing or ambiguous in the other graph.
    """
    names: dict[str, str] = {}
    for node in nodes:
        bare_name = _without_calls(node)
        names[bare_name] = "" if bare_name in names else node
    try:
        return _Renaming(names).function(function, fingerprint)
    except KeyError:
        return None


def _without_calls(node: str) -> str:
    """Remove "StatefulPartitionedCall/" and "PartitionedCall_1/" from a name."""
    *scopes, last = node.split("/")
    kept = []
    for scope in scopes:
        before, call, _ = scope.partition(_CALL)
        kept.append(before.removesuffix(_STATEFUL) if call else f"{scope}/")
    return "".join([*kept, last])


class _Renaming:
    """Renames the parts of a plan; raises KeyError for unknown and ambiguous names.

    Args:
        names: Nodes by their names without calls; "" where several nodes have that name.
    """

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def function(self, plan: FunctionPlan, fingerprint: str) -> FunctionPlan:
        return replace(
            plan,
            fingerprint=fingerprint,
            swaps=tuple(map(self._swap, plan.swaps)),
            order=tuple((self._node(a), self._node(b)) for a, b in plan.order),
            layouts=tuple(tuple(map(self._slot, layout)) for layout in plan.layouts),
            recomputes=tuple(map(self._recompute, plan.recomputes)),
        )

    def _recompute(self, recompute: Recompute) -> Recompute:
        node, _, port = recompute.tensor.rpartition(":")
        return Recompute(
            tensor=f"{self._node(node)}:{port}",
            nodes=tuple(map(self._node, recompute.nodes)),
            trigger=self._node(recompute.trigger),
            consumers=tuple(map(self._node, recompute.consumers)),
        )

    def _swap(self, swap: TensorSwap) -> TensorSwap:
        node, _, port = swap.tensor.rpartition(":")
        return replace(
            swap,
            tensor=f"{self._node(node)}:{port}",
            gates=tuple(map(self._node, swap.gates)),
            after=tuple(map(self._node, swap.after)),
            returns=tuple(map(self._return, swap.returns)),
        )

    def _return(self, back: Return) -> Return:
        trigger = self._node(back.trigger) if back.trigger else ""
        return replace(back, trigger=trigger, consumers=tuple(map(self._node, back.consumers)))

    def _slot(self, slot: Slot) -> Slot:
        return slot._replace(op=self._node(slot.op))

    def _node(self, name: str) -> str:
        for prefix in (SWAP_OUT_PREFIX, SWAP_IN_PREFIX):
            if name.startswith(prefix):
                return prefix + self._copy(name.removeprefix(prefix))
        return self._of_graph(name)

    def _of_graph(self, name: str) -> str:
        """Rename a node of the graph, or a clone of one."""
        ordinals = []
        while True:
            original, again, ordinal = name.rpartition(CLONE_INFIX)
            if not again or not _is_ordinal(ordinal):
                break
            ordinals.append(int(ordinal))
            name = original
        found = self._names[_without_calls(name)]
        if not found:
            raise KeyError(name)
        for number in reversed(ordinals):
            found = clone_name(found, number)
        return found

    def _knows(self, name: str) -> bool:
        try:
            return bool(self._of_graph(name))
        except KeyError:
            return False

    def _copy(self, rest: str) -> str:
        """Rename a copy without its prefix: the node, "_", the port, and up to two indices."""
        parts = rest.split("/")
        for end in range(len(parts), max(len(parts) - _MAX_INDICES - 1, 0), -1):
            node, _, port = "/".join(parts[:end]).rpartition("_")
            if port.isdecimal() and self._knows(node):
                return "/".join([f"{self._of_graph(node)}_{port}", *parts[end:]])
        raise KeyError(rest)


def _is_ordinal(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
