"""Copies beside compute: who waits for whom, over a card whose commands run in every order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfswap._core import Card, HazardTracker, Queue, Transfer

MIB = 1 << 20
HOST = 1 << 40  # host addresses begin there
OUT = (Queue.OUT, Queue.FILE_OUT)
MEMORIES = [HazardTracker.Memory.IN_ORDER, HazardTracker.Memory.STREAM_ORDERED]


class ModelCard(Card):
    """A card that runs a queue's next command when it is told to.

    Memory is a value per first address of a block; a command that reads another value than it
    expects is a race that the tracker has let through. What is encoded lies in host memory in as
    many parts as that has blocks, each with the value, and comes back if all of them agree.
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

    # What the tracker calls.
    def record(self, queue: Queue) -> int:
        self._events += 1
        self.queues[queue].append(("record", self._events))
        return self._events

    def wait(self, queue: Queue, event: int) -> None:
        assert event not in self.recycled, "a wait for an event that was given back"
        self.queues[queue].append(("wait", event))

    def has_happened(self, event: int) -> bool:
        self.answers.append(event in self.happened)
        return self.answers[-1]

    def recycle(self, event: int) -> None:
        self.recycled.add(event)

    def move(self, queue: Queue, transfer: Transfer) -> bool:
        # It takes its time: others may run between its first and its last byte.
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

    # What the tests call.
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
    """What a training does on the host, on few addresses, so that everything is used again."""

    def __init__(self, memory: HazardTracker.Memory) -> None:
        self.card = ModelCard()
        self.tracker = HazardTracker(self.card, memory)

    def make(self, block: int, value: object) -> None:
        """An op makes a tensor in a block that it has been given."""
        self.tracker.op_begins()
        self.tracker.acquired(block, MIB)
        self.card.compute("write", block, value)

    def use(self, block: int, value: object) -> None:
        self.tracker.op_begins()
        self.tracker.before_use(block)
        self.card.compute("read", block, value)

    def change(self, block: int, before: object, after: object) -> None:
        """An op that takes its input's memory for its output."""
        self.use(block, before)
        self.card.compute("write", block, after)

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
        """At its worst, what is encoded is longer than the block."""
        assert self.tracker.encode_out(HOST + far, far_bytes, block, MIB)

    def decode(self, block: int, far: int, far_bytes: int) -> None:
        assert self.tracker.decode_in(block, MIB, HOST + far, far_bytes)


A, B, C, F, G = 1 * MIB, 2 * MIB, 3 * MIB, 0, MIB


def swap_and_reuse(host: Host) -> Iterator[None]:
    """A tensor leaves, its block is another's at once, and it comes back to the same place."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.make(A, "y")
    yield host.use(A, "y")
    yield host.free(A)
    yield host.come_back(A, F)
    yield host.use(A, "x")


def host_memory_is_reused(host: Host) -> Iterator[None]:
    """A second tensor leaves to where the first one is still being read from."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(B, F)
    yield host.make(A, "y")
    yield host.leave(A, F)
    yield host.use(B, "x")
    yield host.use(A, "y")


def nobody_reads_it(host: Host) -> Iterator[None]:
    """What came back is dropped unread, and its block is compute's."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(A, F)
    yield host.free(A)
    yield host.make(A, "y")
    yield host.use(A, "y")


def out_again_unread(host: Host) -> Iterator[None]:
    """What came back leaves again before anybody has read it."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(A, F)
    yield host.leave(A, G)
    yield host.free(A)
    yield host.come_back(B, G)
    yield host.use(B, "x")


def changed_in_place(host: Host) -> Iterator[None]:
    """An op writes to what came back; what leaves then is the new value."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(A, F)
    yield host.change(A, "x", "z")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(A, F)
    yield host.use(A, "z")


def a_value_across_steps(host: Host) -> Iterator[None]:
    """A variable leaves when it was changed; the op that needs it gets it memory of compute's."""
    yield host.make(A, "x")
    yield host.change(A, "x", "z")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.make(A, "y")
    yield host.free(A)
    host.tracker.acquired(A, MIB)
    yield host.come_back(A, F)
    yield host.use(A, "z")


def an_unchanged_value(host: Host) -> Iterator[None]:
    """It leaves without a copy, before anybody has read it, and comes back to be changed."""
    host.card.memory[HOST + F] = "x"
    yield host.come_back(A, F)
    yield host.free(A)
    host.tracker.acquired(A, MIB)
    yield host.come_back(A, F)
    yield host.change(A, "x", "z")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(B, F)
    yield host.use(B, "z")


def encoded_and_reused(host: Host) -> Iterator[None]:
    """As `swap_and_reuse`, encoded."""
    yield host.make(A, "x")
    yield host.encode(A, F, 2 * MIB)
    yield host.free(A)
    yield host.make(A, "y")
    yield host.use(A, "y")
    yield host.free(A)
    yield host.decode(A, F, 2 * MIB)
    yield host.use(A, "x")


def the_end_of_a_far_block_is_reused(host: Host) -> Iterator[None]:
    """A copy goes to where the second half of an encoded block is still being read, and back."""
    yield host.make(A, "x")
    yield host.encode(A, F, 2 * MIB)
    yield host.free(A)
    yield host.decode(B, F, 2 * MIB)
    yield host.make(A, "y")
    yield host.leave(A, G)
    yield host.free(A)
    yield host.encode(B, F, 2 * MIB)
    yield host.free(B)
    yield host.decode(A, F, 2 * MIB)
    yield host.use(A, "x")


def encoded_over_what_is_read(host: Host) -> Iterator[None]:
    """The end of the far block is where a tensor is still coming back from."""
    yield host.make(A, "x")
    yield host.leave(A, G)
    yield host.free(A)
    yield host.come_back(B, G)
    yield host.make(A, "y")
    yield host.encode(A, F, 2 * MIB)
    yield host.use(B, "x")
    yield host.use(A, "y")


def piece_by_piece(host: Host) -> Iterator[None]:
    """A tensor of two pieces leaves while compute goes on, and comes back to where it was."""
    host.tracker.acquired(A, 2 * MIB)
    host.card.compute("write", A, "x0")
    yield host.card.compute("write", B, "x1")
    whole = host.tracker.begin_out(A)
    yield host.make(C, "y")
    yield host.piece_leaves(whole, A, F)
    yield host.piece_leaves(whole, B, G)
    host.tracker.released(A, 2 * MIB)
    yield host.make(B, "z")
    yield host.use(B, "z")
    yield host.free(B)
    whole = host.tracker.begin_in(A)
    yield host.piece_comes_back(whole, A, F)
    yield host.piece_comes_back(whole, B, G)
    yield host.use(A, "x0")
    yield host.card.compute("read", B, "x1")


def came_back_and_leaves_by_pieces(host: Host) -> Iterator[None]:
    """What a copy brought back leaves for the file while its first reader has yet to read it."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(A, F)
    whole = host.tracker.begin_out(A)
    yield host.use(A, "x")
    yield host.piece_leaves(whole, A, G)
    yield host.free(A)
    yield host.make(A, "y")
    yield host.use(A, "y")
    host.card.compute("read", HOST + G, "x")


def came_back_by_pieces_and_leaves(host: Host) -> Iterator[None]:
    """What came back from the file leaves again, by a copy, before anybody has read it."""
    host.card.memory[HOST + G] = "x"
    yield host.piece_comes_back(host.tracker.begin_in(B), B, G)
    yield host.leave(B, F)
    yield host.free(B)
    yield host.make(B, "y")
    yield host.come_back(C, F)
    yield host.use(C, "x")
    yield host.use(B, "y")


LARGE, SECTION, L, M = 32 * MIB, 16 * MIB, 64 * MIB, 128 * MIB


def make_large(host: Host, block: int, value: str) -> None:
    host.tracker.op_begins()
    host.tracker.acquired(block, LARGE)
    for section in range(2):
        host.card.compute("write", block + section * SECTION, f"{value}{section}")


def use_large(host: Host, block: int, value: str) -> None:
    host.tracker.op_begins()
    host.tracker.before_use(block)
    for section in range(2):
        host.card.compute("read", block + section * SECTION, f"{value}{section}")


def exchange_large(host: Host) -> Iterator[None]:
    """One comes in, section by section, to where another one leaves from, and that comes back."""
    for section in range(2):
        host.card.memory[HOST + M + section * SECTION] = f"y{section}"
    yield make_large(host, L, "x")
    assert host.tracker.copy_out(HOST + L, L, LARGE)
    yield host.tracker.released(L, LARGE)
    assert host.tracker.copy_in(L, HOST + M, LARGE)
    yield use_large(host, L, "y")
    yield host.tracker.released(L, LARGE)
    assert host.tracker.copy_in(L, HOST + L, LARGE)
    yield use_large(host, L, "x")


def test_a_section_comes_in_as_soon_as_one_has_left() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    steps = exchange_large(host)
    for _ in range(3):
        next(steps)
    card = host.card
    while card.can_run(Queue.COMPUTE):
        card.run(Queue.COMPUTE)
    while card.memory.get(HOST + L) != "x0":
        card.run(Queue.OUT)
    card.run(Queue.OUT)
    while card.can_run(Queue.IN):
        card.run(Queue.IN)
    assert card.memory[L] == "y0" and card.memory[L + SECTION] == "x1"
    assert HOST + L + SECTION not in card.memory


PROGRAMS = [
    exchange_large,
    piece_by_piece,
    came_back_and_leaves_by_pieces,
    came_back_by_pieces_and_leaves,
    encoded_over_what_is_read,
    encoded_and_reused,
    the_end_of_a_far_block_is_reused,
    swap_and_reuse,
    host_memory_is_reused,
    nobody_reads_it,
    out_again_unread,
    changed_in_place,
    a_value_across_steps,
    an_unchanged_value,
]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_interleaving_reads_the_right_values(program, memory) -> None:
    """Depth first over who moves next: the host, or one of the card's queues."""
    seen: set[object] = set()
    finished = 0
    todo: list[tuple[object, ...]] = [()]
    while todo:
        moves = todo.pop()
        host = Host(memory)
        steps = program(host)
        done = False
        for move in moves:
            if move == "host":
                done = next(steps, "end") == "end"
            else:
                host.card.run(move)
        card = host.card
        state = (
            len([m for m in moves if m == "host"]),
            tuple(card.ran.values()),
            tuple(card.answers),
            tuple(sorted((k, repr(v)) for k, v in card.memory.items())),
        )
        if state in seen:
            continue
        seen.add(state)
        ways = card.runnable()
        if done and not ways:
            assert all(card.ran[q] == len(c) for q, c in card.queues.items()), "a deadlock"
            finished += 1
        todo += [(*moves, queue) for queue in ways]
        if not done:
            todo.append((*moves, "host"))
    assert finished > 0


@dataclass
class Tensor:
    value: object
    block: int | None = None  # where it is on the device
    far: int | None = None  # where its copy is on the host
    encoded: bool = False
    parts: list[int] = field(default_factory=list)


@pytest.mark.parametrize("memory", MEMORIES)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_random_trainings_read_the_right_values(memory, seed: int) -> None:
    """Any tensors, any addresses, a card that runs ahead or falls behind as it likes."""
    chance = random.Random(seed)
    host = Host(memory)
    free_blocks = [i * MIB for i in range(1, 5)]
    free_far = [i * 2 * MIB for i in range(3)]
    tensors: list[Tensor] = []
    speed = chance.choice([0, 1, 3, 8])
    for number in range(chance.randint(10, 60)):
        for _ in range(chance.randint(0, speed)):
            if queues := host.card.runnable():
                host.card.run(chance.choice(queues))
        here = [t for t in tensors if t.block is not None]
        away = [t for t in tensors if t.block is None]
        kind = chance.choice(["make", "use", "change", "free", "leave", "return", "return", "use"])
        if kind == "make" and free_blocks:
            block = free_blocks.pop(chance.randrange(len(free_blocks)))
            host.make(block, number)
            tensors.append(Tensor(number, block))
        elif kind == "use" and here:
            tensor = chance.choice(here)
            host.use(tensor.block, tensor.value)
        elif kind == "change" and (fresh := [t for t in here if t.far is None]):
            tensor = chance.choice(fresh)
            host.change(tensor.block, tensor.value, number)
            tensor.value = number
        elif kind == "free" and here:
            tensor = chance.choice(here)
            tensors.remove(tensor)
            host.free(tensor.block)
            free_blocks.append(tensor.block)
            if tensor.far is not None:
                free_far.append(tensor.far)
        elif kind == "leave" and here and (free_far or any(t.far is not None for t in here)):
            tensor = chance.choice(here)
            if tensor.far is None and free_far:
                tensor.far = free_far.pop(chance.randrange(len(free_far)))
                tensor.encoded = chance.random() < 0.5
                if tensor.encoded:
                    host.encode(tensor.block, tensor.far, 2 * MIB)
                else:
                    host.leave(tensor.block, tensor.far)
            if tensor.far is not None:
                host.free(tensor.block)
                free_blocks.append(tensor.block)
                tensor.block = None
        elif kind == "return" and away and free_blocks:
            tensor = chance.choice(away)
            tensor.block = free_blocks.pop(chance.randrange(len(free_blocks)))
            if tensor.encoded:
                host.decode(tensor.block, tensor.far, 2 * MIB)
            else:
                host.come_back(tensor.block, tensor.far)
            if chance.random() < 0.6:  # nobody will ask for it again
                free_far.append(tensor.far)
                tensor.far = None
    host.card.finish(chance.choice)


def computed_before_end(card: ModelCard, awaited: Queue, other: Queue) -> int:
    """How much compute has to run before all of a queue has, if it runs only where it must."""
    computed = 0
    while card.ran[awaited] < len(card.queues[awaited]):
        queue = next(q for q in (awaited, other, Queue.COMPUTE) if card.can_run(q))
        computed += queue == Queue.COMPUTE
        card.run(queue)
    return computed


def test_a_copy_in_waits_for_the_last_user_of_its_addresses_only() -> None:
    """The host is far ahead: a prefetch must not wait for all that was enqueued."""
    host = Host(HazardTracker.Memory.IN_ORDER)
    host.make(A, "x")
    host.leave(A, F)
    host.free(A)
    host.make(B, "y")
    host.free(B)
    host.make(3 * MIB, "z")  # from here on, nothing that B depends on
    for _ in range(50):
        host.use(3 * MIB, "z")
    host.come_back(B, F)
    card = host.card
    assert computed_before_end(card, Queue.IN, Queue.OUT) < 10  # of more than 50
    assert card.memory[B] == "x"


def test_pieces_wait_for_what_compute_had_been_given_when_they_began() -> None:
    """The disk takes its time, and the host is far ahead when the second piece is copied."""
    host = Host(HazardTracker.Memory.STREAM_ORDERED)
    host.make(A, "x")
    out = host.tracker.begin_out(A)
    back = host.tracker.begin_in(C)
    host.make(B, "y")
    for number in range(50):
        host.use(B, "y")
        if number == 40:
            host.leave(B, F)  # which waits for all of it
    host.piece_leaves(out, A, G)
    host.piece_comes_back(back, C, G)
    card = host.card
    assert computed_before_end(card, Queue.FILE_IN, Queue.FILE_OUT) < 10  # of more than 50
    assert card.memory[C] == "x"


@pytest.mark.parametrize("memory", MEMORIES)
def test_pieces_come_back_to_memory_that_is_there(memory) -> None:
    """What comes and goes with compute's queue is not there before compute has got so far."""
    host = Host(memory)
    host.make(A, "x")
    host.leave(A, G)
    host.card.finish(lambda queues: queues[0])
    host.make(C, "z")
    host.card.memory[HOST + F] = "y"
    host.piece_comes_back(host.tracker.begin_in(B), B, F)
    while host.card.can_run(Queue.FILE_IN):
        host.card.run(Queue.FILE_IN)
    assert (B in host.card.memory) == (memory == HazardTracker.Memory.IN_ORDER)
    host.card.finish(lambda queues: queues[-1])
    assert host.card.memory[B] == "y"


def test_compute_waits_for_the_last_piece() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    card = host.card
    card.memory |= {HOST + F: "x0", HOST + G: "x1"}
    whole = host.tracker.begin_in(A)
    host.piece_comes_back(whole, A, F)
    host.piece_comes_back(whole, B, G)
    host.use(A, "x0")
    card.compute("read", B, "x1")
    card.finish(lambda queues: queues[0])  # compute as early as it can


def test_nothing_is_tracked_before_the_first_copy() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    for _ in range(3):
        host.make(A, "x")
        host.use(A, "x")
        host.free(A)
    assert not host.tracker.active
    assert host.tracker.remembered == 0
    assert all(kind in ("write", "read") for kind, *_ in host.card.queues[Queue.COMPUTE])


def test_what_was_freed_before_the_first_copy_is_waited_for() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    host.make(B, "old")
    host.use(B, "old")
    host.free(B)
    card = host.card
    card.memory[HOST + F] = "x"
    host.come_back(B, F)
    while card.can_run(Queue.IN):  # as early as it can
        card.run(Queue.IN)
    assert B not in card.memory
    card.finish(lambda queues: queues[-1])
    assert card.memory[B] == "x"


def test_many_frees_are_forgotten_in_bulk_and_still_waited_for() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    host.make(A, "x")
    host.leave(A, F)
    blocks = [(10 + i) * MIB for i in range(20_000)]
    for block in blocks:
        host.make(block, "y")
        host.free(block)
    assert host.tracker.remembered < 10_000
    host.come_back(blocks[0], F)
    host.use(blocks[0], "x")
    host.card.finish(lambda queues: queues[-1])
    assert host.card.memory[blocks[0]] == "x"


def test_few_waits_where_one_implies_the_others() -> None:
    """Compute that waits for the last of ten copies need not wait for the nine before."""
    host = Host(HazardTracker.Memory.IN_ORDER)
    blocks = [(1 + i) * MIB for i in range(10)]
    for i, block in enumerate(blocks):
        host.make(block, i)
        host.leave(block, i * MIB)
        host.free(block)
    before = host.tracker.waits[0][1]
    for block in reversed(blocks):
        host.make(block, "new")
    assert host.tracker.waits[0][1] - before == 1
    host.card.finish(lambda queues: queues[0])


def test_host_memory_is_idle_when_its_copies_have_ended() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    host.make(A, "x")
    assert host.tracker.is_idle(HOST, MIB)
    host.leave(A, F)
    assert not host.tracker.is_idle(HOST, MIB)
    assert host.tracker.is_idle(HOST + MIB, MIB)
    host.card.finish(lambda queues: queues[0])
    assert host.tracker.is_idle(HOST, MIB)
    host.encode(A, F, 2 * MIB)
    assert not host.tracker.is_idle(HOST + MIB, MIB)
    host.card.finish(lambda queues: queues[0])
    assert host.tracker.is_idle(HOST + MIB, MIB)
    host.decode(B, F, 2 * MIB)
    assert not host.tracker.is_idle(HOST + MIB, MIB)
    host.card.finish(lambda queues: queues[0])
    host.piece_leaves(host.tracker.begin_out(B), B, G)
    assert not host.tracker.is_idle(HOST + G, MIB)
    host.card.finish(lambda queues: queues[0])
    assert host.tracker.is_idle(HOST + G, MIB)
    host.piece_comes_back(host.tracker.begin_in(A), A, G)
    assert not host.tracker.is_idle(HOST + G, MIB)
    host.card.finish(lambda queues: queues[0])
    assert host.tracker.is_idle(HOST + G, MIB)


def test_a_refused_copy_is_told() -> None:
    class Refusing(ModelCard):
        def move(self, queue: Queue, transfer: Transfer) -> bool:
            return False

    tracker = HazardTracker(Refusing(), HazardTracker.Memory.IN_ORDER)
    assert not tracker.copy_out(HOST, A, MIB)
    assert not tracker.copy_in(A, HOST, MIB)
    assert not tracker.encode_out(HOST, 2 * MIB, A, MIB)
    assert not tracker.decode_in(A, MIB, HOST, 2 * MIB)
