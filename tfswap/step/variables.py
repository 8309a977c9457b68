"""Values of variables in a recorded step: who uses them, and how long nobody does.

A variable's value is there before the step and after it, and most steps give it a new one. Keras
replaces it: for a moment both are there. So what a recording has as several buffers is one that
stays, and a second one for as long as they overlap::

    recorded    ────old────────┐                    one buffer   ─────────────────────────
                          └────────new────                            overlap  ────

The gap from its last use to the first one in the next step crosses the step's end: in it, the value
may be away (TENSILE, section 3: across iterations), as it may between uses in the step, such as
those of the forward and of the backward part, if nothing reads it for both.
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

# Hands on the value without looking at it; who reads what it gives is a user.
_READ = "ReadVariableOp"


@dataclass
class _Variable:
    """What a recording says of a variable.

    Attributes:
        at: Its buffers, with the time at which an op saw them.
        users: Names of the ops that have the variable itself among their inputs.
        written: Whether its value changed.
        known: Whether all of its users have one place in the step.
    """

    at: list[tuple[int, int]] = field(default_factory=list)
    users: set[str] = field(default_factory=set)
    written: bool = False
    known: bool = True

    def buffers(self) -> list[int]:
        """Each once, in the order of the step."""
        return list(dict.fromkeys(buffer for _, buffer in sorted(self.at)))


def variable_absences(
    step: RecordedOps, trace: StepTrace, graph: StepGraph, min_bytes: int
) -> list[Absence]:
    """The absences of variables across the step's end; makes one buffer of each variable's.

    Args:
        step: The step; its buffers are changed.
        trace: The recording that it was cut out of.
        graph: Its graph.
        min_bytes: Smaller variables stay.
    """
    absences = []
    for resource, variable in _variables(step, trace, graph).items():
        buffers = variable.buffers()
        if not variable.known or step.buffer_bytes[buffers].max() < min_bytes:
            continue
        users = _users(step, buffers, variable)
        if not users or not _always_run_together(graph, resource[0], variable.users):
            continue
        _become_one(step, buffers)

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
                break  # what is there now is not what left in the step before
            before = min(following.users)
            if before - max(part.users) > 1:
                absences.append(absence(part.users, before, following.direct, written=False))
        absences.append(absence(users, min(users), variable.users, variable.written))
    return absences


@dataclass
class _Part:
    """Uses of a variable without a gap between them.

    Attributes:
        users: Places of the ops that need the value.
        direct: Names of the nodes that have the variable itself among their inputs.
        writes: Whether they change the value.
    """

    users: set[int]
    direct: set[str]
    writes: bool


def _parts(step: RecordedOps, graph: StepGraph, direct: Iterable[str]) -> list[_Part]:
    """The uses in the order of the step; none where it is not known who reads what."""
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


def _variables(
    step: RecordedOps, trace: StepTrace, graph: StepGraph
) -> dict[tuple[str, int], _Variable]:
    """By the tensor that is the variable's handle."""
    variables: defaultdict[tuple[str, int], _Variable] = defaultdict(_Variable)
    columns = [trace.values[column].tolist() for column in ("op", "port", "buffer")]
    for op, port, buffer in zip(*columns, strict=True):
        place, held = step.place.get(op), step.buffer_place.get(buffer)
        node = None if place is None else graph.nodes.get(step.names[place])
        if place is None or held is None or node is None:
            continue
        variable = variables[graph.root(*node.inputs[port if port >= 0 else -1 - port])]
        variable.users.add(node.name)
        variable.known &= step.op_of_node.get(node.name) == place
        variable.written |= node.updates_variable
        seen_ns = step.start_ns[place] if port >= 0 else step.end_ns[place]
        variable.at.append((int(seen_ns), int(step.same[held])))
    return variables


def _users(step: RecordedOps, buffers: Sequence[int], variable: _Variable) -> list[int]:
    """Places of the ops that need the value on the device, by their starts."""
    users = {op for buffer in buffers for op in step.users[buffer]}
    users |= {step.op_of_node[name] for name in variable.users}
    return sorted(op for op in users if step.types[op] != _READ)


def _always_run_together(graph: StepGraph, handle: str, users: set[str]) -> bool:
    context = graph.nodes[handle].context
    return all(graph.nodes[name].context == context for name in users)


def _become_one(step: RecordedOps, buffers: Sequence[int]) -> None:
    first, *others = buffers
    free_ns = int(step.free_ns[first])
    for buffer in others:
        next_free_ns = int(step.free_ns[buffer])
        # What comes back of a value that had left, or is made when the old one is gone, is the one.
        if free_ns <= step.alloc_ns[buffer]:
            step.buffer_bytes[first] = max(step.buffer_bytes[[first, buffer]])
            step.buffer_bytes[buffer] = 0
        step.free_ns[buffer] = max(min(free_ns, next_free_ns), int(step.alloc_ns[buffer]))
        free_ns = next_free_ns
    step.alloc_ns[first], step.free_ns[first] = 0, OUTLIVES_STEP_NS
