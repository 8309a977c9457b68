"""Recordings of steps, for tests of what is made of them."""

from __future__ import annotations

import numpy as np

from tfswap.step.trace import ACCESS_DTYPE, BUFFER_DTYPE, OP_DTYPE, StepTrace

MIB = 1 << 20


class Recording:
    """Builds a StepTrace op by op; times in us."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ops: list[tuple] = []
        self.buffers: list[tuple] = []
        self.accesses: list[tuple] = []
        self.values: list[tuple] = []

    def name(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def op(self, name, start, end, wait=0, op_type="MatMul", frame=1, iteration=0) -> int:
        self.ops.append(
            (start * 1000, end * 1000, wait * 1000, 5, frame, iteration)
            + (self.name(name), self.name(op_type), -1, 0)
        )
        return len(self.ops) - 1

    def buffer(self, mib, alloc, free, op="any") -> int:
        scaled = [value if value < 0 else value * 1000 for value in (alloc, free)]
        self.buffers.append((mib * MIB, *scaled, self.name(op), 0))
        return len(self.buffers) - 1

    def access(self, op, port, buffer) -> None:
        self.accesses.append((op, port, buffer, 0))

    def value(self, op, port, buffer) -> None:
        self.values.append((op, port, buffer, 1))

    def trace(self) -> StepTrace:
        return StepTrace(
            0,
            10**9,
            100,
            np.array(self.ops, OP_DTYPE),
            np.array(self.buffers, BUFFER_DTYPE),
            np.array(self.accesses, ACCESS_DTYPE),
            tuple(self.names),
            np.array(self.values, ACCESS_DTYPE),
        )


# A variable that is read, used twice, and assigned.
VARIABLE_GRAPH = "\n".join(
    [
        "v\t_Arg\t0\tr\t0",
        "x\tMatMul\t0\tgpr\t1",
        "read\tReadVariableOp\t0\tro\t1\tv:0",
        "use\tMatMul\t0\tgpr\t1\tx:0\tread:0",
        "gradient\tMatMul\t0\tgpb\t1\tuse:0\tread:0",
        "new\tMul\t0\tprob\t1\tread:0\tgradient:0",
        "write\tAssignVariableOp\t0\troub\t\tv:0\tnew:0",
        "last\tMatMul\t0\tgpr\t1\tuse:0",
    ]
)


def variable_recording() -> Recording:
    r = Recording()
    r.op("x", 0, 10)
    read = r.op("read", 1, 2, op_type="ReadVariableOp")
    use = r.op("use", 30, 40)
    r.op("gradient", 50, 60)
    new = r.op("new", 60, 70, op_type="Mul")
    write = r.op("write", 70, 71, op_type="AssignVariableOp")
    r.op("last", 80, 100)
    old_value, new_value = r.buffer(4, -1, 71), r.buffer(4, 61, -1)
    r.access(read, -1, old_value)
    for op in (use, use + 1, new):
        r.access(op, 1 if op != new else 0, old_value)
    r.access(new, -1, new_value)
    r.access(write, 1, new_value)
    r.value(read, 0, old_value)
    r.value(read, -1, old_value)
    r.value(write, 0, old_value)
    r.value(write, -1, new_value)
    return r
