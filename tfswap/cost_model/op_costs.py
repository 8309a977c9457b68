"""What each op takes, by Grappler's cost model (``tfswap/cc/grappler/index/op_costs.h``)."""

from __future__ import annotations

from dataclasses import dataclass

from tfswap.cost_model.traced_step import TracedStep
from tfswap.machine.machine import Device
from tfswap.ops import library
from tfswap.step.graph import StepGraph

_LOOPS = frozenset({"Enter", "RefEnter", "StatelessWhile", "While"})


@dataclass(frozen=True)
class OpCost:
    """One op.

    Args:
        duration_ns: Of its kernel alone.
        output_bytes: Size of each output.
    """

    duration_ns: int
    output_bytes: tuple[int, ...]


@dataclass(frozen=True)
class StepCosts:
    """A step at one batch, on one device.

    Args:
        graph: The graph that Grappler's passes leave.
        costs: By node.
        waits_for: By node, those that must end before it without it reading anything of theirs.
    """

    graph: StepGraph
    costs: dict[str, OpCost]
    waits_for: dict[str, tuple[str, ...]]


def estimate_step(step: TracedStep, batch: int, device: Device) -> StepCosts:
    """Optimises the graph at that batch, infers its shapes, and costs its ops.

    Raises:
        ValueError: The step has a loop, or a tensor whose size hangs on values.
    """
    text = library.load().estimate_step(
        step.at_batch(batch),
        step.kept,
        device.ops_per_s,
        device.product_ops_per_s * device.efficiency,
        device.bytes_per_s,
    )
    lines, _, description = text.partition("\n\n")
    return step_costs(lines, description)


def step_costs(lines: str, description: str) -> StepCosts:
    """Parse what the library returns for a graph.

    Args:
        lines: One line a node: its name, nanoseconds and the bytes of its outputs, separated by
            tabs.
        description: The graph.

    Raises:
        ValueError: The step has a loop, or a tensor whose size depends on values.
    """
    graph = StepGraph.parse(description)
    costs = {}
    for line in lines.splitlines():
        name, duration_ns, *output_bytes = line.split("\t")
        costs[name] = OpCost(int(duration_ns), tuple(map(int, output_bytes)))
    for name, node in graph.nodes.items():
        if node.op in _LOOPS:
            raise ValueError(
                f"the step has a loop ({name}), and how often it turns is not known without a run: "
                "record a step instead"
            )
        if min(costs[name].output_bytes, default=0) < 0:
            raise ValueError(
                f"the size of what {name} ({node.op}) makes hangs on values that only a run shows: "
                "record a step instead"
            )
    return StepCosts(graph, costs, _control_edges(description))


def _control_edges(description: str) -> dict[str, tuple[str, ...]]:
    edges = {}
    for line in description.splitlines():
        name, _, *fields = line.split("\t")
        if name.startswith("#"):
            continue
        before = tuple(field[1:] for field in fields if field.startswith("^"))
        if before:
            edges[name] = before
    return edges
