"""RecordedStep: the allocations of a graph's ops in one step, and their users, for layouts."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from tfswap.addresses.order import StepOrder
from tfswap.addresses.packing import Buffers
from tfswap.plan.node_names import SWAP_IN_PREFIX
from tfswap.plan.slots import GRANULE_BYTES, Key
from tfswap.step.graph import StepGraph
from tfswap.step.trace import StepTrace

_NO_RUNS = np.empty(0, dtype=np.int64)


@dataclass(eq=False)
class Lived:
    """One allocation in a recorded step.

    Attributes:
        key: Identifies the allocation across steps.
        bytes: The requested size.
        begin_ns: The time from which its addresses must be free.
        end_ns: When it was freed.
        gate: The op that can be ordered after the previous users of the addresses; None: no op.
        users: The ops that read or wrote it.
    """

    key: Key
    bytes: int
    begin_ns: int
    end_ns: int
    gate: str | None
    users: set[str] = field(default_factory=set)


class RecordedStep:
    """The ops and allocations of a graph in one recorded step.

    Attributes:
        start_ns: Start times of the ops that ran once; for swap-ins, the time of the allocation.
        lived: Allocations that were freed within the step.
        lasting: Sizes of the other allocations, by key.
        lazy_bytes: Bytes of on-demand swap-ins.
        duration_ns: Duration of the step.
    """

    def __init__(self, trace: StepTrace, graph: StepGraph, order: StepOrder) -> None:
        self._trace = trace
        self.duration_ns = trace.end_ns - trace.start_ns
        self._graph = graph
        self._order = order
        self.start_ns: dict[str, int] = {}
        self._end_ns: dict[str, int] = {}
        self.lived: list[Lived] = []
        self.lasting: dict[Key, int] = {}
        self._by_buffer: dict[int, Lived] = {}
        self._read_ops()
        self._read_buffers()

    def _read_ops(self) -> None:
        ops, names = self._trace.ops, self._trace.names
        counts = Counter(ops["name"].tolist())
        op_names = [names[name] for name in ops["name"].tolist()]
        for op, name in enumerate(ops["name"].tolist()):
            if counts[name] == 1 and ops["end_ns"][op] >= 0:
                self.start_ns[names[name]] = int(ops["start_ns"][op])
                self._end_ns[names[name]] = int(ops["end_ns"][op])
        self._runs = {
            names[name]: np.sort(ops["start_ns"][ops["name"] == name])
            for name, count in counts.items()
            if count > 1
        }
        self._users: dict[int, set[str]] = defaultdict(set)
        self._readers: dict[int, list[str]] = defaultdict(list)
        self._writes: dict[str, set[int]] = defaultdict(set)
        self._read_twice: set[tuple[str, int]] = set()
        accesses = [self._trace.accesses[column].tolist() for column in ("op", "port", "buffer")]
        for op, port, buffer in zip(*accesses, strict=True):
            name = op_names[op]
            self._users[buffer].add(name)
            if port < 0:
                self._writes[name].add(buffer)
            elif name not in self._readers[buffer]:
                self._readers[buffer].append(name)
            else:
                self._read_twice.add((name, buffer))

    def _read_buffers(self) -> None:
        trace = self._trace
        columns = [trace.buffers[name] for name in ("name", "kind", "bytes", "alloc_ns", "free_ns")]
        made: Counter[tuple[str, int, int]] = Counter()
        lived: dict[Key, Lived] = {}
        for buffer in np.argsort(trace.buffers["alloc_ns"], kind="stable").tolist():
            name_index, kind, size, alloc_ns, free_ns = (int(column[buffer]) for column in columns)
            name = trace.names[name_index]
            if alloc_ns < 0 or not (name in self._graph.nodes or name.startswith(SWAP_IN_PREFIX)):
                continue
            run = int(np.searchsorted(self._runs.get(name, _NO_RUNS), alloc_ns, side="right"))
            key = Key(name, kind, made[name, kind, run])
            made[name, kind, run] += 1
            if free_ns < 0:
                self.lasting[key] = size
                continue
            new = self._life(key, size, alloc_ns, free_ns, buffer)
            known = lived.setdefault(key, new)
            self._by_buffer[buffer] = known
            if known is not new:  # repeated in a loop: the lifetime spans all runs
                known.end_ns = max(known.end_ns, new.end_ns)
                known.gate, known.users = None, set()
        self.lived = list(lived.values())
        self.lazy_bytes = sum(
            known.bytes for known in self.lived if self._order.is_lazy_swap_in(known.key.op)
        )

    def _life(self, key: Key, size: int, alloc_ns: int, free_ns: int, buffer: int) -> Lived:
        gate = self._order.last_gate(key.op, self.start_ns) if key.op in self.start_ns else None
        if gate == key.op and self._order.is_swap_in(gate):
            begin_ns = self.start_ns[gate] = alloc_ns
        else:
            begin_ns = alloc_ns if gate is None else min(self.start_ns[gate], alloc_ns)
        users = self._users[buffer] | {key.op}
        return Lived(key, size, begin_ns, max(free_ns, begin_ns + 1), gate, users)

    def buffers_to_pack(self) -> Buffers:
        """Return the allocations in `lived`, with sizes in granules."""
        sizes = np.array([lived.bytes for lived in self.lived], dtype=np.int64)
        return Buffers(
            size=-(-sizes // GRANULE_BYTES),
            lower=np.array([lived.begin_ns for lived in self.lived], dtype=np.int64),
            upper=np.array([lived.end_ns for lived in self.lived], dtype=np.int64),
        )

    def load_beside(self) -> int:
        """Return the peak load, in bytes, of all buffers that are not in `lived`."""
        buffers = self._trace.buffers
        of_step = {id(lived) for lived in self.lived}
        beside = np.array(
            [id(self._by_buffer.get(b)) not in of_step for b in range(len(buffers))], dtype=bool
        )
        size, free_ns = buffers["bytes"][beside], buffers["free_ns"][beside]
        events = np.concatenate([buffers["alloc_ns"][beside], free_ns[free_ns >= 0]])
        changes = np.concatenate([size, -size[free_ns >= 0]])
        load = np.cumsum(changes[np.argsort(events, kind="stable")])
        return int(self._trace.resident_bytes + max(load, default=0))

    def can_be_waited_for(self, lived: Lived) -> bool:
        """Return whether ordering after its op suffices to wait for its addresses."""
        op = lived.key.op
        return lived.gate is not None and op in self.start_ns and self._order.may_come_first(op)

    def settle_in_place(self) -> defaultdict[str, set[str]]:
        """Decide which ops reuse an input's memory, and return the order that this requires.

        TensorFlow lets the last reader of a buffer write in place if no other reader still runs.
        The reader that did so in this step is ordered after the others; a reader that did not is
        ordered before one of them. Where this is impossible because the last two readers ran
        concurrently, the last one is made to reuse the memory if its op type does so elsewhere;
        otherwise the layout allows for both cases.

        Returns:
            By op, the ops that it must wait for.
        """
        waits: defaultdict[str, set[str]] = defaultdict(set)
        by_start = sorted(self.start_ns, key=self.start_ns.__getitem__)
        self._place = {name: place for place, name in enumerate(by_start)}
        self._types_in_place = {
            self._order.op_type(reader)
            for buffer, readers in self._readers.items()
            for reader in readers
            if buffer in self._writes[reader] and not self._order.is_alias(reader)
        }
        # Latest buffers first: an op that reuses memory may have its output reused in turn.
        latest = sorted(self._readers.items(), key=lambda item: -self._made_ns(item[0]))
        for buffer, readers in latest:
            mine = [reader for reader in readers if reader in self.start_ns]
            for reader in mine:
                others = self._users[buffer] - {reader}
                if buffer in self._writes[reader]:
                    if not self._order.is_alias(reader):
                        waits[reader] |= {o for o in others if self._started_before(o, reader)}
                elif (reader, buffer) in self._read_twice:
                    pass  # it holds two references to the buffer, so it cannot write in place
                elif self._order.may_write_in_place(reader):
                    self._settle(buffer, reader, [r for r in mine if r != reader], waits)
        return waits

    def _made_ns(self, buffer: int) -> int:
        return int(self._trace.buffers["alloc_ns"][buffer])

    def _started_before(self, op: str, other: str) -> bool:
        return op in self._place and self._place[op] < self._place[other]

    def _ended_before(self, op: str, other: str) -> bool:
        return op in self._end_ns and self._end_ns[op] <= self.start_ns[other]

    def _settle(
        self, buffer: int, reader: str, others: list[str], waits: defaultdict[str, set[str]]
    ) -> None:
        """Ensure that a reader, which did not reuse a buffer's memory, never does, or always."""
        size = self._trace.buffers["bytes"][buffer]
        made = [b for b in self._writes[reader] if self._trace.buffers["bytes"][b] == size]
        if not made or all(self._ended_before(other, reader) for other in others):
            return
        later = [
            o for o in others if not self._started_before(o, reader) and self._order.may_wait(o)
        ]
        if later:
            waits[max(later, key=self._place.__getitem__)].add(reader)
            return
        taken = self._by_buffer.get(buffer)
        for result in [self._by_buffer[b] for b in made if b in self._by_buffer]:
            if taken is None:
                continue
            taken.end_ns = max(taken.end_ns, result.end_ns)
            taken.users |= result.users
            own = result.key.op == reader  # otherwise it reused another input
            if own and self._reuses_input(reader):
                waits[reader] |= {o for o in others if self._started_before(o, reader)}
                self.lived = [lived for lived in self.lived if lived is not result]

    def _reuses_input(self, reader: str) -> bool:
        op_type = self._order.op_type(reader)
        return op_type in self._types_in_place and self._order.may_wait(reader)
