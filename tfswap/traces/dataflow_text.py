"""A dataflow as lines of text, for files: see `tfswap.traces.timeline_file`."""

from __future__ import annotations

from collections.abc import Sequence

from tfswap.step.dataflow import Dataflow
from tfswap.step.graph import StepGraph


def dataflow_lines(flow: Dataflow) -> list[str]:
    """What `dataflow_of_lines` reads. The step has no clones yet."""
    lines = [f"{flow.min_bytes}", "\t".join(map(str, sorted(flow.fixed)))]
    lines += [f"{name}\t{port}\t{buffer}" for (name, port), buffer in flow.buffer_of.items()]
    lines += [f"{name}\t{size}" for name, size in flow.scratch_bytes.items()]
    return [*lines, "", *flow.graph.to_text().split("\n")]


def dataflow_of_lines(lines: Sequence[str], buffers: int) -> Dataflow | None:
    """The dataflow; None if there are no lines.

    Args:
        lines: that `dataflow_lines` made.
        buffers: how many the timeline has.

    Raises:
        ValueError: what they say cannot be.
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
                raise ValueError(f"{node.name!r} is an alias of nothing")
        edges = (*graph.broadcasts, *graph.order, *graph.twins.items())
        named = [name for edge in edges for name in edge]
        named += [name for node in graph.nodes.values() for name in node.controls]
        unknown = next((name for name in named if name not in graph.nodes), None)
        if unknown is not None:
            raise ValueError(f"an edge names {unknown!r}, which is no node")
        if _runs_in_circles(graph):
            raise ValueError("aliases run in a circle")
        fixed = frozenset(int(buffer) for buffer in lines[1].split("\t") if buffer)
        buffer_of: dict[tuple[str, int], int] = {}
        scratch_bytes: dict[str, int] = {}
        for line in lines[2:end]:
            name, *numbers = line.split("\t")
            if len(numbers) == 1:
                scratch_bytes[name] = _number(numbers[0], 1 << 50)
                continue
            output, buffer = numbers
            place = _number(output, len(graph.nodes[name].plain))
            buffer_of[name, place] = _number(buffer, buffers)
        if fixed and not 0 <= min(fixed) <= max(fixed) < buffers:
            raise ValueError("there is no such buffer")
        return Dataflow(graph, buffer_of, scratch_bytes, _number(lines[0], 1 << 50), fixed)
    except (ValueError, KeyError, IndexError) as error:
        raise ValueError(f"its dataflow cannot be: {error}") from error


def _number(text: str, end: int) -> int:
    number = int(text)
    if not 0 <= number < end:
        raise ValueError(f"{number} is not below {end}")
    return number


def _runs_in_circles(graph: StepGraph) -> bool:
    ends: set[str] = set()  # those from which the way to a root is known to end
    for name in graph.nodes:
        way: list[str] = []
        on_it: set[str] = set()
        at, port = name, 0
        while graph.nodes[at].alias and port == 0 and at not in ends:
            if at in on_it:
                return True
            way.append(at)
            on_it.add(at)
            at, port = graph.nodes[at].inputs[0]
        ends.update(way)
    return False
