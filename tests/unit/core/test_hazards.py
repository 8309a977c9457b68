"""Copies and compute on a simulated GPU that runs commands in every possible order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_gpu import HOST, MEMORIES, MIB, A, B, C, F, G, Host

from tfswap._core import HazardTracker, Queue


def swap_and_reuse(host: Host) -> Iterator[None]:
    """Swap a tensor out, let another one use its block at once, and swap it in again there."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.make(A, "y")
    yield host.use(A, "y")
    yield host.free(A)
    yield host.come_back(A, F)
    yield host.use(A, "x")


def host_memory_is_reused(host: Host) -> Iterator[None]:
    """Swap out a second tensor to host memory from which the first one is still being read."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(B, F)
    yield host.make(A, "y")
    yield host.leave(A, F)
    yield host.use(B, "x")
    yield host.use(A, "y")


def swapped_in_and_freed_unread(host: Host) -> Iterator[None]:
    """Free a swapped-in tensor that no op has read; compute uses its block."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(A, F)
    yield host.free(A)
    yield host.make(A, "y")
    yield host.use(A, "y")


def swapped_out_again_unread(host: Host) -> Iterator[None]:
    """Swap out a swapped-in tensor before any op has read it."""
    yield host.make(A, "x")
    yield host.leave(A, F)
    yield host.free(A)
    yield host.come_back(A, F)
    yield host.leave(A, G)
    yield host.free(A)
    yield host.come_back(B, G)
    yield host.use(B, "x")


def changed_in_place(host: Host) -> Iterator[None]:
    """Write to a swapped-in tensor in place, then swap out the new value."""
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
    """Swap out a changed variable; the op that needs it allocates its memory."""
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
    """Drop an unchanged variable unread, without a copy; swap it in, and change it."""
    host.gpu.memory[HOST + F] = "x"
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
    """Do the same as `swap_and_reuse`, encoded."""
    yield host.make(A, "x")
    yield host.encode(A, F, 2 * MIB)
    yield host.free(A)
    yield host.make(A, "y")
    yield host.use(A, "y")
    yield host.free(A)
    yield host.decode(A, F, 2 * MIB)
    yield host.use(A, "x")


def the_end_of_a_far_block_is_reused(host: Host) -> Iterator[None]:
    """Copy to the unused second half of an encoded block that is still being read, and back."""
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
    """Copy to the end of a far block from which a tensor is still being read."""
    yield host.make(A, "x")
    yield host.leave(A, G)
    yield host.free(A)
    yield host.come_back(B, G)
    yield host.make(A, "y")
    yield host.encode(A, F, 2 * MIB)
    yield host.use(B, "x")
    yield host.use(A, "y")


def piece_by_piece(host: Host) -> Iterator[None]:
    """Swap a tensor of two pieces out, while compute runs, and in again."""
    host.tracker.acquired(A, 2 * MIB)
    host.gpu.compute("write", A, "x0")
    yield host.gpu.compute("write", B, "x1")
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
    yield host.gpu.compute("read", B, "x1")


def came_back_and_leaves_by_pieces(host: Host) -> Iterator[None]:
    """Swap in by a copy, then out to the file before the first reader has read the tensor."""
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
    host.gpu.compute("read", HOST + G, "x")


def came_back_by_pieces_and_leaves(host: Host) -> Iterator[None]:
    """Swap in from the file, then out by a copy before any op has read the tensor."""
    host.gpu.memory[HOST + G] = "x"
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
        host.gpu.compute("write", block + section * SECTION, f"{value}{section}")


def use_large(host: Host, block: int, value: str) -> None:
    host.tracker.op_begins()
    host.tracker.before_use(block)
    for section in range(2):
        host.gpu.compute("read", block + section * SECTION, f"{value}{section}")


def exchange_large(host: Host) -> Iterator[None]:
    """Swap a tensor in, section by section, to where another one leaves; swap that in, too."""
    for section in range(2):
        host.gpu.memory[HOST + M + section * SECTION] = f"y{section}"
    yield make_large(host, L, "x")
    assert host.tracker.copy_out(HOST + L, L, LARGE)
    yield host.tracker.released(L, LARGE)
    assert host.tracker.copy_in(L, HOST + M, LARGE)
    yield use_large(host, L, "y")
    yield host.tracker.released(L, LARGE)
    assert host.tracker.copy_in(L, HOST + L, LARGE)
    yield use_large(host, L, "x")


def test_a_section_is_swapped_in_as_soon_as_one_has_left() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    steps = exchange_large(host)
    for _ in range(3):
        next(steps)
    gpu = host.gpu
    while gpu.can_run(Queue.COMPUTE):
        gpu.run(Queue.COMPUTE)
    while gpu.memory.get(HOST + L) != "x0":
        gpu.run(Queue.OUT)
    gpu.run(Queue.OUT)
    while gpu.can_run(Queue.IN):
        gpu.run(Queue.IN)
    assert gpu.memory[L] == "y0" and gpu.memory[L + SECTION] == "x1"
    assert HOST + L + SECTION not in gpu.memory


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
    swapped_in_and_freed_unread,
    swapped_out_again_unread,
    changed_in_place,
    a_value_across_steps,
    an_unchanged_value,
]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_interleaving_reads_the_right_values(program, memory) -> None:
    """Explore depth first who moves next: the host, or one of the GPU's queues."""
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
                host.gpu.run(move)
        gpu = host.gpu
        state = (
            len([m for m in moves if m == "host"]),
            tuple(gpu.ran.values()),
            tuple(gpu.answers),
            tuple(sorted((k, repr(v)) for k, v in gpu.memory.items())),
        )
        if state in seen:
            continue
        seen.add(state)
        ways = gpu.runnable()
        if done and not ways:
            assert all(gpu.ran[q] == len(c) for q, c in gpu.queues.items()), "a deadlock"
            finished += 1
        todo += [(*moves, queue) for queue in ways]
        if not done:
            todo.append((*moves, "host"))
    assert finished > 0


@dataclass
class Tensor:
    value: object
    block: int | None = None  # its place on the device
    far: int | None = None  # its copy's place on the host
    encoded: bool = False
    parts: list[int] = field(default_factory=list)


@pytest.mark.parametrize("memory", MEMORIES)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_random_trainings_read_the_right_values(memory, seed: int) -> None:
    """Use random tensors and addresses, and a GPU of any speed."""
    chance = random.Random(seed)
    host = Host(memory)
    free_blocks = [i * MIB for i in range(1, 5)]
    free_far = [i * 2 * MIB for i in range(3)]
    tensors: list[Tensor] = []
    speed = chance.choice([0, 1, 3, 8])
    for number in range(chance.randint(10, 60)):
        for _ in range(chance.randint(0, speed)):
            if queues := host.gpu.runnable():
                host.gpu.run(chance.choice(queues))
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
            if chance.random() < 0.6:  # the far copy is not needed again
                free_far.append(tensor.far)
                tensor.far = None
    host.gpu.finish(chance.choice)
