"""The floors of a recorded step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tfswap.step.list_elements import ListElement
from tfswap.step.op_floor import OpTimes, StepFloor, UsedBuffer, UsedVariable, step_floor
from tfswap.step.recorded_ops import RecordedOps
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence
from tfswap.step.variables import Variables


def recorded_floor(
    step: RecordedOps,
    variables: Variables,
    absences: Iterable[Absence],
    elements: Iterable[ListElement],
    min_bytes: int,
    early_ns: Mapping[int, int],
) -> StepFloor:
    """Return the floors of a recorded step.

    Args:
        step: The step, before buffers of variables are merged.
        variables: Its variables.
        absences: The absences of its other tensors.
        elements: The elements of its loops' lists.
        min_bytes: Smaller variables stay.
        early_ns: When absences end that end before the op that reads, by that op.
    """
    resident_bytes = step.resident_bytes
    leaves: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for absence in absences:
        gone_ns, start_ns = step.end_ns[absence.after_op], step.start_ns[absence.before_op]
        back_ns = min(start_ns, early_ns.get(absence.before_op, start_ns))
        if back_ns > gone_ns:
            leaves[absence.buffer].append((int(gone_ns), int(back_ns)))
    for element in elements:
        leaves[element.buffer] += element.gaps
    first_users = [min(users, default=-1) for users in step.users]
    makers = {buffer: op for (op, _), buffer in step.outputs.items() if op == first_users[buffer]}
    # The new value of a variable is the output of an op before it is assigned.
    assigned = {b: op for variable in variables.values() for b, op in variable.assigned.items()}
    values = set(step.restored)
    used = []
    for variable in variables.values():
        own = set(variable.buffers())
        values |= own - assigned.keys()
        users = {step.op_of_node[name] for name in variable.users if name in step.op_of_node}
        for buffer in own:
            assigner = assigned.get(buffer, -1)
            users |= {user for user in step.users[buffer] if user > assigner}
        size = int(step.buffer_bytes[list(own)].max())
        if size < min_bytes:
            resident_bytes += size
        else:
            used.append(UsedVariable(size, users))
    buffers = []
    for buffer, size in enumerate(step.buffer_bytes.tolist()):
        if not size or buffer in values or (buffer in step.temporary and not leaves[buffer]):
            continue
        users, alloc_ns = set(step.users[buffer]), int(step.alloc_ns[buffer])
        free_ns = int(step.free_ns[buffer])
        if not users and alloc_ns <= 0 and free_ns != OUTLIVES_STEP_NS:
            continue  # a variable's value that left before it was used, or the batch before
        if buffer in assigned:
            op = assigned[buffer]
            free_ns = int(step.end_ns[op])
            users = {user for user in users if user <= op} | {op}
            makers.setdefault(buffer, op)
        if buffer in step.reused:  # what the op reads and what it makes need one memory there
            users.discard(step.reused[buffer])
            alloc_ns = int(step.end_ns[step.reused[buffer]])
        buffers.append(
            UsedBuffer(
                size,
                users,
                makers.get(buffer, -1),
                alloc_ns,
                free_ns,
                leaves[buffer],
            )
        )
    times = OpTimes(step.names, step.types, step.start_ns, step.end_ns)
    return step_floor(times, buffers, used, step.temporary_bytes(), resident_bytes)
