"""Values of variables in a recorded step: their users, and the gaps between uses.

A variable's value exists before and after the step, and most steps assign a new one. Keras replaces
it, so that both values exist for a short time. The several buffers of a recording are therefore one
buffer that stays, and a second one for as long as the values overlap::

    recorded    ────old────────┐                    one buffer   ─────────────────────────
                          └────────new────                            overlap  ────

The gap from the last use to the first use in the next step crosses the step's end. The value may be
absent in this gap (TENSILE, section 3: across iterations). It may also be absent between uses in
the step, such as those of the forward and of the backward part, unless one read serves both.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tfswap.step.graph import StepGraph
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence
from tfswap.step.trace import StepTrace

if TYPE_CHECKING:
    from tfswap.step.recorded_ops import RecordedOps

# Forwards the value without using it; the readers of its output are the users.
_READ = "ReadVariableOp"


@dataclass
class Variable:
    """A variable in a recording.

    Attributes:
        at: (time, buffer) of each access to its value.
        users: Names of the ops that have the variable itself among their inputs.
        assigned: By buffer that became its value in the step, the op that assigned it.
        written: Whether its value changed.
        known: Whether each of its users ran exactly once in the step.
    """

    at: list[tuple[int, int]] = field(default_factory=list)
    users: set[str] = field(default_factory=set)
    assigned: dict[int, int] = field(default_factory=dict)
    written: bool = False
    known: bool = True

    def buffers(self) -> list[int]:
        """Return its distinct buffers, in the order of time."""
        return list(dict.fromkeys(buffer for _, buffer in sorted(self.at)))


Variables = dict[tuple[str, int], Variable]


def variable_absences(
    step: RecordedOps, graph: StepGraph, variables: Variables, min_bytes: int
) -> list[Absence]:
    """Return the absences of variables, and merge each variable's buffers into one.

    Args:
        step: The step, whose buffers are modified.
        graph: The step's graph.
        variables: Its variables.
        min_bytes: Smaller variables are not swapped.
    """
    absences = []
    for resource, variable in variables.items():
        buffers = variable.buffers()
        if not variable.known or step.buffer_bytes[buffers].max() < min_bytes:
            continue
        users = _users(step, buffers, variable)
        if not users or not _always_run_together(graph, resource[0], variable.users):
            continue
        _merge_buffers(step, buffers)

        def absence(
            used: Iterable[int],
            before: int,
            consumers: Iterable[str],
            written: bool,
            handle: tuple[str, int] = resource,
            buffer: int = buffers[0],
        ) -> Absence:
            after = max(used, key=lambda op: (step.end_ns[op], op))
            return Absence(
                buffer=buffer,
                tensor=f"{handle[0]}:{handle[1]}",
                producer_op=after if written else -1,
                after_op=after,
                before_op=before,
                consumers=tuple(sorted(consumers)),
                context=graph.nodes[handle[0]].context,
                users=tuple(step.names[op] for op in sorted(used)),
            )

        parts = _parts(step, graph, variable.users)
        for part, following in itertools.pairwise(parts):
            if part.writes:
                break  # the value is no longer the one that was swapped out in the previous step
            before = min(following.users)
            if before - max(part.users) > 1:
                absences.append(absence(part.users, before, following.direct, written=False))
        absences.append(absence(users, min(users), variable.users, variable.written))
    return absences


@dataclass
class _Part:
    """Uses of a variable without a gap between them.

    Attributes:
        users: Indices of the ops that need the value.
        direct: Names of the nodes that have the variable itself among their inputs.
        writes: Whether one of them changes the value.
    """

    users: set[int]
    direct: set[str]
    writes: bool


def _parts(step: RecordedOps, graph: StepGraph, direct: Iterable[str]) -> list[_Part]:
    """Return the uses in the order of the step; empty if a reader is unknown."""
    uses = []
    for name in direct:
        node = graph.nodes[name]
        readers = graph.readers_through_aliases(name, 0) if node.op == _READ else [name]
        places = [step.op_of_node.get(reader) for reader in readers]
        known = {place for place in places if place is not None}
        if len(known) < len(set(places)) or not known:
            return []
        uses.append(_Part(known, {name}, node.updates_variable))
    parts: list[_Part] = []
    for use in sorted(uses, key=lambda use: min(use.users)):
        if parts and step.start_ns[min(use.users)] < step.end_ns[list(parts[-1].users)].max():
            parts[-1].users |= use.users
            parts[-1].direct |= use.direct
            parts[-1].writes |= use.writes
        else:
            parts.append(use)
    return parts


def find_variables(step: RecordedOps, trace: StepTrace, graph: StepGraph) -> Variables:
    """Return the variables of a recording by their handles (node, output)."""
    variables: defaultdict[tuple[str, int], Variable] = defaultdict(Variable)
    columns = [trace.values[column].tolist() for column in ("op", "port", "buffer")]
    for op, port, buffer in zip(*columns, strict=True):
        place, held = step.place.get(op), step.buffer_of(buffer, op, port)
        node = None if place is None else graph.nodes.get(step.names[place])
        if place is None or held is None or node is None:
            continue
        variable = variables[graph.root(*node.inputs[port if port >= 0 else -1 - port])]
        variable.users.add(node.name)
        variable.known &= step.op_of_node.get(node.name) == place
        variable.written |= node.updates_variable
        seen_ns = step.start_ns[place] if port >= 0 else step.end_ns[place]
        is_new = port < 0 and node.updates_variable and held not in step.restored
        if is_new and all(held != known for _, known in variable.at):
            variable.assigned[held] = place
        variable.at.append((int(seen_ns), held))
    return variables


def _users(step: RecordedOps, buffers: Sequence[int], variable: Variable) -> list[int]:
    """Return the indices of the ops that need the value on the device, sorted by start."""
    users = {op for buffer in buffers for op in step.users[buffer]}
    users |= {step.op_of_node[name] for name in variable.users}
    return sorted(op for op in users if step.types[op] != _READ)


def _always_run_together(graph: StepGraph, handle: str, users: set[str]) -> bool:
    context = graph.nodes[handle].context
    return all(graph.nodes[name].context == context for name in users)


def _merge_buffers(step: RecordedOps, buffers: Sequence[int]) -> None:
    first, *others = buffers
    free_ns = int(step.free_ns[first])
    for buffer in others:
        next_free_ns = int(step.free_ns[buffer])
        # A buffer allocated after the previous one was freed holds the same value or replaces it.
        if free_ns <= step.alloc_ns[buffer]:
            step.buffer_bytes[first] = max(step.buffer_bytes[[first, buffer]])
            step.buffer_bytes[buffer] = 0
        step.free_ns[buffer] = max(min(free_ns, next_free_ns), int(step.alloc_ns[buffer]))
        free_ns = next_free_ns
    step.alloc_ns[first], step.free_ns[first] = 0, OUTLIVES_STEP_NS
