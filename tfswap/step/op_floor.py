"""StepFloor: the memory that the largest op of a step needs at once.

No swaps on demand lower it: while an op runs, what it uses is on the device, and so is what cannot
leave then::

    load
     ^        ______
     |    ___|      |___            without swaps
     |   |          |   |_____
     |...|...####...|.........|...  the floor: what C uses (#), its weights, inputs, outputs and
     |   |   ####   |         |     temporary memory, and what cannot leave while C runs
     +---A---B-C-D--E---F-----G--> t

Ops count one by one, also where a recording has several at the same time: an op that finds no
memory waits until others have ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tfswap.io.amounts import readable_bytes
from tfswap.step.timeline import MAX_BYTES, OUTLIVES_STEP_NS

_MIB = 1 << 20
_MAX_OP_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class OpFloor:
    """What the largest op of a step needs on the device at once. Each buffer counts once.

    Attributes:
        op: Name of the op.
        op_type: Its type.
        weight_bytes: Values of the variables that it uses: weights, optimizer state.
        input_bytes: Other tensors that it reads, those that it overwrites included.
        output_bytes: Further memory for its outputs.
        temporary_bytes: Memory that it frees when it ends.
        staying_bytes: What cannot leave the device while it runs.

    Raises:
        ValueError: A field is invalid.
    """

    op: str
    op_type: str
    weight_bytes: int
    input_bytes: int
    output_bytes: int
    temporary_bytes: int
    staying_bytes: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("op", "op_type"):
                valid = isinstance(value, str) and len(value) <= _MAX_OP_CHARACTERS
            else:
                valid = type(value) is int and 0 <= value <= MAX_BYTES
            if not valid:
                raise ValueError(f"a floor has {field.name}={str(value)[:100]}")

    @property
    def bytes(self) -> int:
        """The floor."""
        return sum(size for _, size in self.own) + self.staying_bytes

    @property
    def own(self) -> tuple[tuple[str, int], ...]:
        """The kinds of memory that the op itself uses, with their bytes."""
        return (
            ("weights", self.weight_bytes),
            ("inputs", self.input_bytes),
            ("outputs", self.output_bytes),
            ("temporary memory", self.temporary_bytes),
        )

    @property
    def least(self) -> str:
        """The floor as text, rounded up."""
        return f"{-(-10 * self.bytes // _MIB) / 10:.1f} MiB"

    def __str__(self) -> str:
        """Return the op and the bytes, for messages."""
        own = [f"{readable_bytes(size)} of {kind}" for kind, size in self.own if size]
        last = f"{readable_bytes(self.staying_bytes)} cannot leave meanwhile"
        return f"op {self.op!r} ({self.op_type}) needs {', '.join(own) or 'nothing'}; {last}"


@dataclass(frozen=True)
class StepFloor:
    """The floors of a step.

    Attributes:
        staying: All values of variables stay on the device.
        streamed: Values of variables leave where no op uses them.
    """

    staying: OpFloor
    streamed: OpFloor

    @property
    def modes(self) -> tuple[tuple[str, OpFloor], ...]:
        """Both, each with what it says about weights."""
        return (("staying", self.staying), ("streamed", self.streamed))


@dataclass(frozen=True)
class UsedBuffer:
    """A buffer that is not a variable's value.

    Attributes:
        bytes: Its size.
        users: Indices of the ops that use it.
        maker: Index of the op that allocates it; -1: none in the step, or unknown.
        alloc_ns: When it is allocated; at most 0: before the step.
        free_ns: When it is freed; ``OUTLIVES_STEP_NS``: after the step.
        leaves: From when to when it can be absent.
    """

    bytes: int
    users: Collection[int]
    maker: int
    alloc_ns: int
    free_ns: int
    leaves: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class UsedVariable:
    """A variable.

    Attributes:
        bytes: Size of its value.
        users: Indices of the ops that need its value.
    """

    bytes: int
    users: Collection[int]


@dataclass(frozen=True, eq=False)
class OpTimes:
    """The ops of a step, sorted by start.

    Attributes:
        names: Their names.
        types: Their types.
        start_ns, end_ns: When they run.
    """

    names: Sequence[str]
    types: Sequence[str]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]


def step_floor(
    ops: OpTimes,
    buffers: Iterable[UsedBuffer],
    variables: Iterable[UsedVariable],
    temporary_bytes: Mapping[int, int],
    resident_bytes: int,
) -> StepFloor:
    """Return the floors of a step.

    Args:
        ops: The ops; at least one.
        buffers: All buffers but those of variables and temporary ones.
        variables: The variables whose values can leave.
        temporary_bytes: Temporary memory, by index of the op.
        resident_bytes: Bytes outside of these that stay through the whole step.
    """
    weights, inputs, outputs, temporary, staying = np.zeros((5, len(ops.names)), dtype=np.int64)
    variables_bytes = 0
    for variable in variables:
        variables_bytes += variable.bytes
        weights[list(variable.users)] += variable.bytes
    for op, size in temporary_bytes.items():
        temporary[op] = size
    for buffer in buffers:
        users = sorted(set(buffer.users))
        for op in users:
            (outputs if op == buffer.maker else inputs)[op] += buffer.bytes
        for begin_ns, end_ns in _stays(buffer, users, ops):
            first = int(np.searchsorted(ops.start_ns, begin_ns))
            end = int(np.searchsorted(ops.start_ns, end_ns, side="right"))
            within = ops.end_ns[first:end] <= end_ns
            inside = users[bisect_left(users, first) : bisect_left(users, end)]
            within[[op - first for op in inside]] = False
            staying[first:end] += within * buffer.bytes
    staying += resident_bytes

    def largest(staying: NDArray[np.int64]) -> OpFloor:
        op = int((weights + inputs + outputs + temporary + staying).argmax())
        each = (weights, inputs, outputs, temporary, staying)
        return OpFloor(ops.names[op], ops.types[op], *(int(part[op]) for part in each))

    return StepFloor(largest(staying + variables_bytes - weights), largest(staying))


def _stays(buffer: UsedBuffer, users: list[int], ops: OpTimes) -> Iterator[tuple[int, int]]:
    """Yield from when to when a buffer is on the device although no op uses it.

    Args:
        buffer: The buffer.
        users: Its users, sorted.
        ops: All ops.
    """
    since_ns = -OUTLIVES_STEP_NS if buffer.alloc_ns <= 0 else buffer.alloc_ns
    if users and users[0] == buffer.maker:
        since_ns = int(ops.end_ns[users[0]])
        users = users[1:]
    leaves = sorted(buffer.leaves, reverse=True)
    for until_ns, busy_until_ns in [
        *((int(ops.start_ns[op]), int(ops.end_ns[op])) for op in users),
        (buffer.free_ns, buffer.free_ns),
    ]:
        while leaves and leaves[-1][0] < until_ns:
            gone_ns, back_ns = leaves.pop()
            if since_ns < gone_ns:
                yield since_ns, gone_ns
            since_ns = max(since_ns, back_ns)
        if since_ns < until_ns:
            yield since_ns, until_ns
        since_ns = max(since_ns, busy_until_ns)
