"""Convert a dataflow to lines of text and back, for `tfswap.traces.timeline_file`."""

from __future__ import annotations

from collections.abc import Sequence

from tfswap.step.dataflow import Dataflow
from tfswap.step.graph import StepGraph


def dataflow_lines(flow: Dataflow) -> list[str]:
    """Return the lines that `dataflow_of_lines` parses, for a step without clones."""
    lines = [f"{flow.min_bytes}", "\t".join(map(str, sorted(flow.fixed)))]
    lines += [f"{name}\t{port}\t{buffer}" for (name, port), buffer in flow.buffer_of.items()]
    lines += [f"{name}\t{size}" for name, size in flow.scratch_bytes.items()]
    return [*lines, "", *flow.graph.to_text().split("\n")]


def dataflow_of_lines(lines: Sequence[str], buffers: int) -> Dataflow | None:
    """Parse the lines of `dataflow_lines`; return None if there are none.

    Args:
        lines: Untrusted input.
        buffers: Number of buffers of the timeline.

    Raises:
        ValueError: The lines are not a valid dataflow.
    """
    if not lines:
        return None
    try:
        end = lines.index("", 2)
        graph = StepGraph.parse("\n".join(lines[end + 1 :]))
        for node in graph.nodes.values():
            if not node.name:
                raise ValueError("a node has no name")
            for name, port in node.inputs:
                if not 0 <= port < len(graph.nodes[name].plain):
                    raise ValueError(f"{node.name!r} reads output {port} of {name!r}")
            if node.alias and not node.inputs:
                raise ValueError(f"{node.name!r} is an alias without an input")
        edges = (*graph.broadcasts, *graph.order, *graph.twins.items())
        named = [name for edge in edges for name in edge]
        named += [name for node in graph.nodes.values() for name in node.controls]
        unknown = next((name for name in named if name not in graph.nodes), None)
        if unknown is not None:
            raise ValueError(f"an edge names {unknown!r}, which is not a node")
        if _aliases_form_cycle(graph):
            raise ValueError("aliases form a cycle")
        fixed = frozenset(int(buffer) for buffer in lines[1].split("\t") if buffer)
        buffer_of: dict[tuple[str, int], int] = {}
        scratch_bytes: dict[str, int] = {}
        for line in lines[2:end]:
            name, *numbers = line.split("\t")
            if len(numbers) == 1:
                scratch_bytes[name] = _number(numbers[0], 1 << 50)
                continue
            output, buffer = numbers
            port = _number(output, len(graph.nodes[name].plain))
            buffer_of[name, port] = _number(buffer, buffers)
        if fixed and not 0 <= min(fixed) <= max(fixed) < buffers:
            raise ValueError(f"a fixed buffer is not below {buffers}")
        return Dataflow(graph, buffer_of, scratch_bytes, _number(lines[0], 1 << 50), fixed)
    except (ValueError, KeyError, IndexError) as error:
        raise ValueError(f"its dataflow is invalid: {error}") from error


def _number(text: str, end: int) -> int:
    number = int(text)
    if not 0 <= number < end:
        raise ValueError(f"{number} is not below {end}")
    return number


def _aliases_form_cycle(graph: StepGraph) -> bool:
    acyclic: set[str] = set()  # nodes whose chain of aliases is known to end
    for name in graph.nodes:
        chain: set[str] = set()
        node, port = name, 0
        while graph.nodes[node].alias and port == 0 and node not in acyclic:
            if node in chain:
                return True
            chain.add(node)
            node, port = graph.nodes[node].inputs[0]
        acyclic |= chain
    return False
