"""Op costs from Grappler's cost model (``tfswap/cc/grappler/index/op_costs.h``)."""

from __future__ import annotations

from dataclasses import dataclass

from tfswap.cost_model.traced_step import TracedStep
from tfswap.machine.machine import Device
from tfswap.ops import library
from tfswap.step.graph import StepGraph

_LOOPS = frozenset({"Enter", "RefEnter", "StatelessWhile", "While"})


@dataclass(frozen=True)
class OpCost:
    """The cost of one op.

    Args:
        duration_ns: Duration of its kernel alone.
        output_bytes: Size of each output.
    """

    duration_ns: int
    output_bytes: tuple[int, ...]


@dataclass(frozen=True)
class StepCosts:
    """A step for one batch size on one device.

    Args:
        graph: The graph after Grappler's passes.
        costs: By node.
        waits_for: By node, its control dependencies.
    """

    graph: StepGraph
    costs: dict[str, OpCost]
    waits_for: dict[str, tuple[str, ...]]


def estimate_step(step: TracedStep, batch: int, device: Device) -> StepCosts:
    """Optimize the graph for a batch size, infer its shapes and estimate its op costs.

    Raises:
        ValueError: The step has a loop, or a tensor whose size depends on values.
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
    """Parse the library's description of a graph and its costs.

    Args:
        lines: One line per node: name, nanoseconds and bytes of each output, separated by tabs.
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
                f"the step has a loop ({name}) whose number of iterations is only known at run "
                "time: record a step instead"
            )
        if min(costs[name].output_bytes, default=0) < 0:
            raise ValueError(
                f"the output size of {name} ({node.op}) depends on values that are only known at "
                "run time: record a step instead"
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
