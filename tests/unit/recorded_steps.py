"""Recorded steps and graphs for the tests of planned addresses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfswap.addresses.layout import Layout, plan_layout
from tfswap.plan.schema import FunctionPlan
from tfswap.plan.slots import Slot
from tfswap.step.graph import StepGraph
from tfswap.step.trace import ACCESS_DTYPE, BUFFER_DTYPE, OP_DTYPE, StepTrace

KIB = 1024
FINGERPRINT = "0123456789abcdef"


def recorded(
    *buffers: tuple[int | str, ...],
    runs: tuple[tuple[str, int, int], ...] = (),
    accesses: tuple[tuple[int, int, int], ...] = (),
) -> StepTrace:
    """Return a step of 100 ns.

    Args:
        buffers: (op, bytes, allocated, freed or -1), and the kind unless it is an output.
        runs: (op, start, end).
        accesses: (index of the run, port, index of the buffer).
    """
    names = tuple(dict.fromkeys(str(row[0]) for row in (*buffers, *runs)))
    ops = np.zeros(len(runs), OP_DTYPE)
    for row, (name, begin, end) in zip(ops, runs, strict=True):
        row["name"], row["start_ns"], row["end_ns"] = names.index(name), begin, end
    table = np.zeros(len(buffers), BUFFER_DTYPE)
    for row, (name, size, begin, end, *kind) in zip(table, buffers, strict=True):
        row["name"], row["bytes"], row["kind"] = (names.index(str(name)), size, *(kind or [0]))
        row["alloc_ns"], row["free_ns"] = begin, end
    touched = np.zeros(len(accesses), ACCESS_DTYPE)
    for row, (run, port, buffer) in zip(touched, accesses, strict=True):
        row["op"], row["port"], row["buffer"] = run, port, buffer
    return StepTrace(0, 100, 0, ops, table, touched, names)


class Ran(NamedTuple):
    """An op that ran once.

    Args:
        op, start, end: The op's name, start and end.
        reads: The ops whose outputs it reads, in the order of its inputs.
        makes: Bytes of its output, 0 for none.
        into: The op whose output's memory it reuses for its output.
        allocates: When it allocates, if not at its start.
    """

    op: str
    start: int
    end: int
    reads: tuple[str, ...] = ()
    makes: int = 0
    into: str | None = None
    allocates: int | None = None


def step(*ran: Ran) -> StepTrace:
    """Return the recording of these ops; memory is freed when the last op that uses it ends."""
    holder: dict[str, int] = {}  # of an op's output
    buffers: list[tuple[str, int, int, int]] = []
    accesses = []
    for run, op in enumerate(ran):
        used = [holder[name] for name in op.reads]
        accesses += [(run, port, buffer) for port, buffer in enumerate(used)]
        if op.into is not None:
            holder[op.op] = holder[op.into]
        elif op.makes:
            holder[op.op] = len(buffers)
            begin = op.start if op.allocates is None else op.allocates
            buffers.append((op.op, op.makes, begin, op.end))
        if op.op in holder:
            accesses.append((run, -1, holder[op.op]))
            used.append(holder[op.op])
        for buffer in used:
            name, size, begin, end = buffers[buffer]
            buffers[buffer] = (name, size, begin, max(end, op.end))
    return recorded(
        *buffers, runs=tuple((op.op, op.start, op.end) for op in ran), accesses=tuple(accesses)
    )


def graph(*lines: str) -> StepGraph:
    """Parse a graph from its description, with spaces for tabs and "-" for no flags."""
    return StepGraph.parse("\n".join(line.replace(" ", "\t") for line in lines))


LETTERS = graph(*(f"{name} Sum 0 o 1" for name in "abcde"))
A_R = ("a Sum 0 o 1", "r Sum 0 o 1 a:0")


def laid_out(trace: StepTrace, of: StepGraph, function: FunctionPlan | None = None) -> Layout:
    return plan_layout([trace], of, function or FunctionPlan(FINGERPRINT), seconds=0.1)


def slots_of(layout: Layout) -> dict[str, Slot]:
    return {slot.op: slot for slot in layout.slots}


def overlap(a: Slot, b: Slot) -> bool:
    return (
        a.offset_bytes < b.offset_bytes + b.size_bytes
        and b.offset_bytes < a.offset_bytes + a.size_bytes
    )
