"""A simulated GPU whose queues run in any order, and the host that issues its commands."""

from __future__ import annotations

from collections.abc import Callable

from tfswap._core import Gpu, HazardTracker, Queue, Transfer

MIB = 1 << 20
HOST = 1 << 40  # host addresses begin there
OUT = (Queue.OUT, Queue.FILE_OUT)
MEMORIES = [HazardTracker.Memory.IN_ORDER, HazardTracker.Memory.STREAM_ORDERED]


class SimulatedGpu(Gpu):
    """A GPU on which a test decides which queue runs its next command.

    The memory holds one value for each block. A command that reads an unexpected value reveals a
    race that the tracker missed. An encoded block is stored in several host blocks, each with the
    value, and is decoded correctly if all of them hold the same value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[Queue, list[tuple]] = {
            q: [] for q in (Queue.COMPUTE, Queue.OUT, Queue.IN, Queue.FILE_OUT, Queue.FILE_IN)
        }
        self.ran = {queue: 0 for queue in self.queues}
        self.memory: dict[int, object] = {}
        self.happened: set[int] = set()
        self.recycled: set[int] = set()
        self.answers: list[bool] = []
        self._events = 0

    # Called by the tracker.
    def record(self, queue: Queue) -> int:
        self._events += 1
        self.queues[queue].append(("record", self._events))
        return self._events

    def wait(self, queue: Queue, event: int) -> None:
        assert event not in self.recycled, "a wait for a recycled event"
        self.queues[queue].append(("wait", event))

    def has_happened(self, event: int) -> bool:
        self.answers.append(event in self.happened)
        return self.answers[-1]

    def recycle(self, event: int) -> None:
        self.recycled.add(event)

    def move(self, queue: Queue, transfer: Transfer) -> bool:
        # A copy takes two commands, so that others may run between its first and its last byte.
        assert transfer.encoded or transfer.host_bytes == transfer.block_bytes
        part_bytes = MIB if transfer.encoded else transfer.host_bytes
        parts = range(transfer.host, transfer.host + transfer.host_bytes, part_bytes)
        if queue in OUT:
            for part in parts:
                self.queues[queue] += [("load", transfer.block, part), ("store", part)]
        else:
            self.queues[queue] += [("join", tuple(parts), transfer.block)]
            self.queues[queue] += [("store", transfer.block)]
        return True

    # Called by the tests.
    def compute(self, *command: object) -> None:
        self.queues[Queue.COMPUTE].append(command)

    def can_run(self, queue: Queue) -> bool:
        if self.ran[queue] == len(self.queues[queue]):
            return False
        kind, *rest = self.queues[queue][self.ran[queue]]
        return kind != "wait" or rest[0] in self.happened

    def run(self, queue: Queue) -> None:
        kind, *rest = self.queues[queue][self.ran[queue]]
        self.ran[queue] += 1
        if kind == "record":
            self.happened.add(rest[0])
        elif kind == "write":
            self.memory[rest[0]] = rest[1]
        elif kind == "read":
            assert self.memory.get(rest[0]) == rest[1], f"read {self.memory.get(rest[0])}: {rest}"
        elif kind == "load":
            source, to = rest
            self.memory[to] = ("half of", self.memory.get(source))
        elif kind == "join":
            parts, to = rest
            found = {self.memory.get(part) for part in parts}
            self.memory[to] = ("half of", found.pop() if len(found) == 1 else "a mixture")
        elif kind == "store":
            self.memory[rest[0]] = self.memory[rest[0]][1]  # type: ignore[index]

    def runnable(self) -> list[Queue]:
        return [queue for queue in self.queues if self.can_run(queue)]

    def finish(self, choose: Callable[[list[Queue]], Queue]) -> None:
        while queues := self.runnable():
            self.run(choose(queues))
        assert all(self.ran[q] == len(commands) for q, commands in self.queues.items()), (
            "a deadlock"
        )


class Host:
    """The host's part of a training, on few addresses, so that memory is reused often."""

    def __init__(self, memory: HazardTracker.Memory) -> None:
        self.gpu = SimulatedGpu()
        self.tracker = HazardTracker(self.gpu, memory)

    def make(self, block: int, value: object) -> None:
        """Run an op that writes a tensor to a newly allocated block."""
        self.tracker.op_begins()
        self.tracker.acquired(block, MIB)
        self.gpu.compute("write", block, value)

    def use(self, block: int, value: object) -> None:
        self.tracker.op_begins()
        self.tracker.before_use(block)
        self.gpu.compute("read", block, value)

    def change(self, block: int, before: object, after: object) -> None:
        """Run an op that reuses its input's memory for its output."""
        self.use(block, before)
        self.gpu.compute("write", block, after)

    def free(self, block: int) -> None:
        self.tracker.released(block, MIB)

    def leave(self, block: int, far: int) -> None:
        assert self.tracker.copy_out(HOST + far, block, MIB)

    def come_back(self, block: int, far: int) -> None:
        assert self.tracker.copy_in(block, HOST + far, MIB)

    def piece_leaves(self, whole: HazardTracker.Whole, block: int, far: int) -> None:
        assert self.tracker.piece_out(whole, HOST + far, block, MIB)

    def piece_comes_back(self, whole: HazardTracker.Whole, block: int, far: int) -> None:
        assert self.tracker.piece_in(whole, block, HOST + far, MIB)

    def encode(self, block: int, far: int, far_bytes: int) -> None:
        """Encode a block; in the worst case, the encoded data is larger than the block."""
        assert self.tracker.encode_out(HOST + far, far_bytes, block, MIB)

    def decode(self, block: int, far: int, far_bytes: int) -> None:
        assert self.tracker.decode_in(block, MIB, HOST + far, far_bytes)


A, B, C, F, G = 1 * MIB, 2 * MIB, 3 * MIB, 0, MIB
