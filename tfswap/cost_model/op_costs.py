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


def estimate_step(step: TracedStep, batch: int | None, device: Device) -> StepCosts:
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
    durations_ns, sizes = {}, {}
    for line in lines.splitlines():
        name, duration_ns, *output_bytes = line.split("\t")
        durations_ns[name] = int(duration_ns)
        sizes[name] = list(map(int, output_bytes))
    _complete(sizes, graph)
    for name, node in graph.nodes.items():
        if node.op in _LOOPS:
            raise ValueError(
                f"the step has a loop ({name}) whose number of iterations is only known at run "
                "time: record a step instead"
            )
        if min(sizes[name], default=0) < 0:
            raise ValueError(
                f"the output size of {name} ({node.op}) depends on values that are only known at "
                "run time: record a step instead"
            )
    costs = {name: OpCost(durations_ns[name], tuple(sizes[name])) for name in sizes}
    return StepCosts(graph, costs, _control_edges(description))


def _complete(sizes: dict[str, list[int]], graph: StepGraph) -> None:
    """Replace unknown sizes (below 0) where those of other tensors tell.

    All aliases of a tensor (Reshape) have as many bytes, so a known one tells what was summed.
    A BroadcastGradientArgs returns dimensions to sum over: no more than its longer input has.
    """
    known: dict[tuple[str, int], int] = {}
    for name, outputs in sizes.items():
        for port, size in enumerate(outputs):
            root = graph.root(name, port)
            known[root] = max(size, known.get(root, -1))
    for name, outputs in sizes.items():
        for port, size in enumerate(outputs):
            if size < 0:
                outputs[port] = known[graph.root(name, port)]
    for name, node in graph.nodes.items():
        if node.op == "BroadcastGradientArgs":
            most = max(sizes[before][port] for before, port in node.inputs)
            sizes[name] = [most if size < 0 else size for size in sizes[name]]


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
