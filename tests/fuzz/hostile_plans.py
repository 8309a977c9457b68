"""Invalid and unusual plans of a real graph, as untrusted input of a training."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from typing import Any

from hostile import NUMBERS, TEXTS, changed

from tfswap.plan.schema import FunctionPlan, SwapPlan
from tfswap.step.graph import StepGraph

_TIERS = ("host", "compressed", "file", "tape")
_CODECS = ("", "zvc", "rle", "csr", "lz4", "zstd", "zfp", "bfp", "ans", "zip")
_OFFSETS = (0, 0, 1024, 4096, 1 << 20, 1 << 40, 1 << 50, -2)


class HostilePlans:
    """Generate plans, the same ones from the same seed.

    Args:
        graph: The graph.
        plan: A valid plan for it, with one entry.
        seed: The seed of all random choices.
    """

    def __init__(self, graph: StepGraph, plan: SwapPlan, seed: int) -> None:
        self._graph = graph
        self._dice = random.Random(seed)
        self._all_nodes = list(graph.nodes)
        self._all_tensors = [t for t, readers in graph.readers.items() if readers]
        # Nodes and tensors that valid plans may use, so that the pass applies some of the plans.
        mild = {node.name for node in graph.nodes.values() if node.gateable and node.context == 0}
        self._mild_nodes = [name for name in self._all_nodes if name in mild]
        self._mild_tensors = [tensor for tensor in self._all_tensors if tensor[0] in mild]
        self._is_mild = False
        self._good: dict[str, Any] = json.loads(plan.to_json())

    def next(self) -> str:
        """Return the text of the next plan."""
        plan = copy.deepcopy(self._good)
        function = plan["functions"][0]
        self._is_mild = self._dice.random() < 0.5
        for _ in range(self._dice.choice((1, 1, 1, 2, 3, 6))):
            change = self._dice.choice(
                (
                    self._swap_anything,
                    self._swap_anything,
                    self._order,
                    self._order,
                    self._make_again,
                    self._change_swap,
                    self._change_swap,
                    self._lay_out,
                    self._swap_twice,
                )
            )
            change(function)
        if self._dice.random() < 0.15:
            plan = changed(plan, self._dice)
        return json.dumps(plan)

    @property
    def _nodes(self) -> list[str]:
        return self._mild_nodes if self._is_mild else self._all_nodes

    @property
    def _tensors(self) -> list[tuple[str, int]]:
        return self._mild_tensors if self._is_mild else self._all_tensors

    def _node(self) -> str:
        return self._dice.choice(self._nodes)

    def _some(self, names: list[str], most: int = 3) -> list[str]:
        return self._dice.sample(names, min(len(names), self._dice.randrange(most + 1)))

    def _swap_anything(self, function: dict[str, Any]) -> None:
        node, port = self._dice.choice(self._tensors)
        readers = list(self._graph.readers_through_aliases(node, port))
        returns = []
        for _ in range(self._dice.choice((0, 1, 1, 1, 2))):
            trigger = self._dice.choice(("", self._node(), self._node()))
            returns.append({"trigger": trigger, "consumers": self._some(readers), "next_use": 0})
        swap = {
            "tensor": f"{node}:{port}",
            "size_bytes": 1 << 20,
            "gates": self._some(self._nodes, 2),
            "returns": returns,
            "lazy": self._dice.random() < 0.3,
            "tier": self._dice.choice(_TIERS[:3]),
            "codec": self._dice.choice(_CODECS),
            "threads": self._dice.choice((1, 2, 64)),
        }
        if self._dice.random() < 0.2:
            swap["after"] = self._some(self._nodes)
        function["swaps"].append(swap)

    def _order(self, function: dict[str, Any]) -> None:
        for _ in range(self._dice.choice((1, 2, 20))):
            edge = [self._node(), self._node()]
            if self._is_mild:
                edge.sort(key=self._nodes.index)  # forward, where nodes are sorted
            function["order"].append(edge)

    def _make_again(self, function: dict[str, Any]) -> None:
        node, port = self._dice.choice(self._tensors)
        readers = list(self._graph.readers_through_aliases(node, port))
        function["recomputes"].append(
            {
                "tensor": f"{node}:{port}",
                "nodes": [*self._some(self._nodes, 2), node],
                "trigger": self._node(),
                "consumers": self._some(readers) or [self._node()],
            }
        )

    def _change_swap(self, function: dict[str, Any]) -> None:
        if not function["swaps"]:
            return
        swap = self._dice.choice(function["swaps"])
        what = self._dice.randrange(8)
        if what == 0:
            swap["tensor"] = self._dice.choice((*TEXTS, self._node() + ":4294967295", "^a"))
        elif what == 1:
            swap["gates"] = self._some(self._nodes, 4) * self._dice.choice((1, 2))
        elif what == 2:
            for back in swap["returns"]:
                back["trigger"] = self._node()
        elif what == 3:
            for back in swap["returns"]:
                back["consumers"] += self._some(self._nodes, 2)
        elif what == 4:
            swap["tier"], swap["codec"] = self._dice.choice(_TIERS), self._dice.choice(_CODECS)
        elif what == 5:
            swap["after"] = self._some(self._nodes)
        elif what == 6:
            key = self._dice.choice(("size_bytes", "rate_percent", "threads"))
            swap[key] = self._dice.choice(NUMBERS)
        else:
            swap["returns"] = []

    def _swap_twice(self, function: dict[str, Any]) -> None:
        if function["swaps"]:
            function["swaps"].append(copy.deepcopy(self._dice.choice(function["swaps"])))

    def _lay_out(self, function: dict[str, Any]) -> None:
        """Give an address to every node, mostly the same one."""
        slots = []
        for node in self._some(self._nodes, len(self._nodes)):
            size = self._dice.choice((1, 4096, 1 << 16, 1 << 20, 1 << 50))
            slots.append([node, 0, self._dice.choice((0, 0, 1)), self._dice.choice(_OFFSETS), size])
        function["layouts"].append(slots)


def good_plan(fingerprint: str) -> SwapPlan:
    """Return a plan of on-demand swaps in reserve only, to begin with."""
    return SwapPlan(
        (dataclasses.replace(FunctionPlan(fingerprint), reserve=True),),
        unmatched="bootstrap",
        min_bytes=0,
    )
