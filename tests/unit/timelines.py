"""Timelines for tests: random ones, and a synthetic training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from tfswap.planning.simulator import Swap
from tfswap.step.timeline import OUTLIVES_STEP_NS, Absence, Timeline

MIB = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class FakeMachine:
    """A link with round numbers: 1 byte/ns each way, no latency."""

    out_bytes_per_s: float = 1e9
    in_bytes_per_s: float = 1e9
    out_latency_ns: int = 0
    in_latency_ns: int = 0
    capacity_bytes: int = 1 << 62
    in_sections: bool = False


INSTANT = FakeMachine(float("inf"), float("inf"))
# The link of the machine that recorded SINGA's traces (AutoSwap's measurement).
RECORDED_LINK = FakeMachine(1e9 / 0.0756, 1e9 / 0.0823, 47_200, 9_700)


def make_timeline(
    ops: list[tuple[int, int]],
    buffers: list[tuple[int, int, int]],
    absences: tuple[Absence, ...] = (),
    resident_bytes: int = 0,
    **changes: Any,
) -> Timeline:
    """Return a timeline from (start, end) of ops and (bytes, alloc, free) of buffers."""
    n = len(ops)
    fields: dict[str, Any] = {
        "op_names": tuple(f"op{i}" for i in range(n)),
        "op_start_ns": np.array([start for start, _ in ops], dtype=np.int64),
        "op_end_ns": np.array([end for _, end in ops], dtype=np.int64),
        "op_gateable": np.ones(n, dtype=np.bool_),
        "op_context": np.zeros(n, dtype=np.int32),
        "resident_bytes": resident_bytes,
        "buffer_bytes": np.array([b[0] for b in buffers], dtype=np.int64),
        "buffer_alloc_ns": np.array([b[1] for b in buffers], dtype=np.int64),
        "buffer_free_ns": np.array([b[2] for b in buffers], dtype=np.int64),
        "absences": absences,
        "step_ns": max((end for _, end in ops), default=0),
    }
    return Timeline(**(fields | changes))


def assert_same(one: Timeline, other: Timeline) -> None:
    """Check that all fields of two timelines are equal."""
    for field in fields(Timeline):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name


@st.composite
def timelines(draw: Callable[[st.SearchStrategy[T]], T], max_ops: int = 14) -> Timeline:
    """Draw small steps with overlapping ops, empty ops, contexts and shared far copies."""
    n = draw(st.integers(2, max_ops))
    starts = np.cumsum(draw(st.lists(st.integers(0, 6), min_size=n, max_size=n)))
    lengths = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    ops = [(int(s), int(s) + length) for s, length in zip(starts, lengths, strict=True)]
    step_ns = max(end for _, end in ops) + draw(st.integers(0, 3))

    buffers: list[tuple[int, int, int]] = []
    absences: list[Absence] = []
    for buffer in range(draw(st.integers(0, 6))):
        size = draw(st.integers(1, 20))
        stays = draw(st.booleans())
        alloc = 0 if stays else draw(st.integers(0, step_ns))
        outlives = stays or draw(st.booleans())
        free = OUTLIVES_STEP_NS if outlives else draw(st.integers(alloc, step_ns + 2))
        buffers.append((size, alloc, free))
        found = draw(_absences_of(ops, buffer, alloc, free))
        if stays:
            found += draw(_crossing(ops, buffer, found))
        absences += found
    return make_timeline(
        ops,
        buffers,
        tuple(absences),
        resident_bytes=draw(st.integers(0, 10)),
        op_gateable=np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        op_context=np.array(
            draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=n, max_size=n)), dtype=np.int32
        ),
        step_ns=step_ns,
    )


@st.composite
def _absences_of(
    draw: Callable[[st.SearchStrategy[T]], T],
    ops: list[tuple[int, int]],
    buffer: int,
    alloc: int,
    free: int,
) -> list[Absence]:
    found: list[Absence] = []
    first, first_end, tensor, producer = 0, 0, 0, -2
    for _ in range(draw(st.integers(0, 3))):
        gaps = [
            (after, before)
            for after in range(first, len(ops))
            for before in range(after + 1, len(ops))
            if alloc < ops[after][1] <= ops[before][0] < free and ops[after][1] >= first_end
        ]
        if not gaps:
            break
        after, before = draw(st.sampled_from(gaps))
        if producer == -2 or draw(st.booleans()):
            tensor += 1
            makers = [op for op in range(after + 1) if ops[op][1] <= ops[after][1]]
            producer = draw(st.sampled_from([-1, *makers]))
        found.append(
            Absence(buffer, f"b{buffer}:{tensor}", producer, after, before, (), draw(_contexts))
        )
        first, first_end = before, ops[before][1]
    return found


@st.composite
def _crossing(
    draw: Callable[[st.SearchStrategy[T]], T],
    ops: list[tuple[int, int]],
    buffer: int,
    earlier: list[Absence],
) -> list[Absence]:
    """Draw an absence into the next step, after all others of the buffer."""
    last = earlier[-1].before_op if earlier else 0
    afters = [op for op in range(last, len(ops)) if ops[op][1] >= ops[last][1]]
    after = draw(st.sampled_from(afters))
    first = earlier[0].after_op if earlier else after
    before = draw(st.integers(0, first))
    if not (after >= before and (after > before or ops[after][1] >= ops[before][0])):
        return []
    if ops[after][1] <= ops[before][0] and after < before:
        return []
    makers = [op for op in range(after + 1) if ops[op][1] <= ops[after][1]]
    same = [a for a in earlier if a.producer_op < 0 and a.tensor == earlier[-1].tensor]
    if same and draw(st.booleans()):
        return [
            Absence(buffer, same[-1].tensor, draw(st.sampled_from([-1, *makers])), after, before)
        ]
    return [Absence(buffer, f"b{buffer}:next", draw(st.sampled_from([-1, *makers])), after, before)]


_contexts = st.sampled_from([0, 0, 0, 1])


@st.composite
def crowded_timelines(draw: Callable[[st.SearchStrategy[T]], T]) -> Timeline:
    """Draw steps that gain from swapping: many buffers, each used by a few distant ops."""
    n = draw(st.integers(6, 24))
    lengths = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    # A negative pause makes the next op start while this one is running.
    pauses = draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n))
    ops: list[tuple[int, int]] = []
    start = 0
    for length, pause in zip(lengths, pauses, strict=True):
        ops.append((start, start + length))
        start += max(length + pause, 0)
    step_ns = max(end for _, end in ops) + 3

    buffers: list[tuple[int, int, int]] = []
    absences: list[Absence] = []
    for buffer in range(draw(st.integers(2, 10))):
        uses = sorted(draw(st.sets(st.integers(0, n - 1), min_size=2, max_size=4)))
        changes = draw(st.booleans())
        ends = [ops[op][1] for op in uses]
        alloc = ops[uses[0]][0]
        free = max(*ends, alloc + 1) + draw(st.integers(0, 2))
        buffers.append((draw(st.integers(1, 20)), alloc, free))
        maker, busiest = uses[0], uses[0]
        for use, following in zip(uses, uses[1:], strict=False):
            busiest = max(busiest, use, key=lambda op: (ops[op][1], op))
            if not alloc < ops[busiest][1] <= ops[following][0] < free or busiest >= following:
                continue
            if changes and busiest == use:
                maker = use
            name = f"b{buffer}@{maker}:0"
            absences.append(Absence(buffer, name, maker, busiest, following, (), 0))
    return make_timeline(
        ops,
        buffers,
        tuple(absences),
        resident_bytes=draw(st.integers(0, 10)),
        op_gateable=np.array(
            draw(st.lists(st.sampled_from([True] * 4 + [False]), min_size=n, max_size=n))
        ),
        step_ns=step_ns,
    )


@st.composite
def swaps_for(
    draw: Callable[[st.SearchStrategy[T]], T], timeline: Timeline, tiers: int = 0
) -> list[Swap]:
    """Draw any swaps that the simulator accepts, in any order."""
    starts, ends = timeline.core.op_positions()
    swaps = []
    for index, absence in enumerate(timeline.absences):
        if not draw(st.booleans()):
            continue
        ready = -1 if absence.producer_op < 0 else int(ends[absence.producer_op])
        gates = [-1, *np.flatnonzero(starts > ready).tolist()]
        triggers = [-1, *range(len(timeline.op_names))]
        gate, trigger = draw(st.sampled_from(gates)), draw(st.sampled_from(triggers))
        swap = Swap(index, gate, trigger)
        if tiers and draw(st.booleans()):
            swap = replace(
                swap,
                tier=draw(st.integers(0, tiers - 1)),
                sections=draw(st.integers(1, 3)),
                far_bytes=draw(st.integers(-1, 12)),
                encode_ns=draw(st.integers(0, 5)),
                decode_ns=draw(st.integers(0, 5)),
            )
        swaps.append(swap)
    return draw(st.permutations(swaps))


@st.composite
def order_for(
    draw: Callable[[st.SearchStrategy[T]], T], timeline: Timeline
) -> list[tuple[int, int]]:
    """Draw order edges that point forwards."""
    starts, _ = timeline.core.op_positions()
    by_start = np.argsort(starts).tolist()
    edges = []
    for _ in range(draw(st.integers(0, 2))):
        first = draw(st.integers(0, len(by_start) - 2))
        second = draw(st.integers(first + 1, len(by_start) - 1))
        edges.append((by_start[first], by_start[second]))
    return edges


machines = st.builds(
    FakeMachine,
    st.sampled_from([float("inf"), 4e9, 1e9, 0.3e9]),
    st.sampled_from([float("inf"), 4e9, 1e9, 0.3e9]),
    st.integers(0, 3),
    st.integers(0, 3),
)


class StepWriter:
    """Records ops one after another, and derives the lifetimes and absences of their buffers."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.ops: list[tuple[int, int]] = []
        self.names: list[str] = []
        self.bytes: list[int] = []
        self.uses: list[list[int]] = []

    def buffer(self, size: int) -> int:
        """Add a buffer, which the first op that uses it allocates."""
        self.bytes.append(size)
        self.uses.append([])
        return len(self.bytes) - 1

    def op(self, name: str, duration_ns: int, *buffers: int) -> None:
        """Add the next op, with the buffers that it uses."""
        for buffer in buffers:
            self.uses[buffer].append(len(self.ops))
        self.ops.append((self.now_ns, self.now_ns + duration_ns))
        self.names.append(name)
        self.now_ns += duration_ns + 200

    def timeline(self, resident_bytes: int, min_absence_bytes: int = MIB) -> Timeline:
        buffers = []
        absences = []
        for buffer, uses in enumerate(self.uses):
            first, last = self.ops[uses[0]], self.ops[uses[-1]]
            buffers.append((self.bytes[buffer], first[0] + 1, last[1] + 50))
            if self.bytes[buffer] < min_absence_bytes:
                continue
            for after, before in zip(uses, uses[1:], strict=False):
                if before > after + 1:
                    readers = tuple(self.names[use] for use in uses if use >= before)
                    absences.append(
                        Absence(buffer, f"b{buffer}:0", uses[0], after, before, readers)
                    )
        return make_timeline(
            self.ops,
            buffers,
            tuple(absences),
            resident_bytes,
            op_names=tuple(self.names),
            op_types=tuple(
                "Conv2DBackpropFilter" if name.endswith("filter_grad") else "Op"
                for name in self.names
            ),
            step_ns=self.now_ns,
        )


def training_step(
    blocks: int = 16, layers: int = 3, ops_per_layer: int = 6, seed: int = 0
) -> Timeline:
    """Return a step like that of a residual convolutional network.

    The normalisation of each layer reads the layer's activation several times, and the backward
    part reads it twice again. Activations shrink with depth.
    """
    rng = np.random.default_rng(seed)
    step = StepWriter()
    saved: list[tuple[str, int, int, int, int]] = []
    block_input = step.buffer(24 * MIB)
    step.op("input", 1_000_000, block_input)
    for block in range(blocks):
        size = int((24 >> min(block * 4 // blocks, 3)) * MIB)
        inside = block_input
        for layer in range(layers):
            name = f"block{block}/layer{layer}"
            work = int(rng.integers(8, 20)) * 1_000_000
            conv, normal = step.buffer(size), step.buffer(size)
            workspace = step.buffer(int(rng.integers(1, 8)) * MIB)
            step.op(f"{name}/conv", work, inside, conv, workspace)
            for i in range(ops_per_layer // 2):
                small = step.buffer(4096)
                step.op(f"{name}/moments{i}", 60_000, conv, small)
            for i in range(ops_per_layer - ops_per_layer // 2):
                last = (normal,) if i else ()
                step.op(f"{name}/normal{i}", 300_000, conv, *last)
            step.op(f"{name}/relu", 400_000, normal)
            saved.append((name, inside, conv, normal, work))
            inside = normal
        total = step.buffer(size)
        step.op(f"block{block}/add", 500_000, block_input, inside, total)
        block_input = total
    gradient = step.buffer(step.bytes[block_input])
    step.op("loss", 200_000, block_input, gradient)
    for name, inside, conv, normal, work in reversed(saved):
        size = step.bytes[normal]
        through, to_conv = step.buffer(size), step.buffer(size)
        step.op(f"{name}/relu_grad", 400_000, gradient, normal, through)
        for i in range(ops_per_layer):
            step.op(f"{name}/normal_grad{i}", 250_000, conv, through, to_conv)
        filter_grad = step.buffer(MIB // 2)
        gradient = step.buffer(step.bytes[inside])
        step.op(f"{name}/filter_grad", work, inside, to_conv, filter_grad)
        step.op(f"{name}/input_grad", work, to_conv, gradient)
        step.op(f"{name}/update", 50_000, filter_grad)
    return step.timeline(resident_bytes=186 * MIB)
