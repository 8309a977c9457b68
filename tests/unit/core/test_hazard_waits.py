"""Dependencies between copies and compute: necessary waits and unnecessary ones."""

from __future__ import annotations

import pytest
from simulated_gpu import HOST, MEMORIES, MIB, A, B, C, F, G, Host, SimulatedGpu

from tfswap._core import HazardTracker, Queue, Transfer


def computed_before_end(gpu: SimulatedGpu, awaited: Queue, other: Queue) -> int:
    """Return how much compute must run before a queue can finish."""
    computed = 0
    while gpu.ran[awaited] < len(gpu.queues[awaited]):
        queue = next(q for q in (awaited, other, Queue.COMPUTE) if gpu.can_run(q))
        computed += queue == Queue.COMPUTE
        gpu.run(queue)
    return computed


def test_a_copy_in_waits_only_for_the_last_user_of_its_addresses() -> None:
    """The host is far ahead: a prefetch must not wait for all that was enqueued."""
    host = Host(HazardTracker.Memory.IN_ORDER)
    host.make(A, "x")
    host.leave(A, F)
    host.free(A)
    host.make(B, "y")
    host.free(B)
    host.make(3 * MIB, "z")  # B depends on nothing from here on
    for _ in range(50):
        host.use(3 * MIB, "z")
    host.come_back(B, F)
    gpu = host.gpu
    assert computed_before_end(gpu, Queue.IN, Queue.OUT) < 10  # of more than 50
    assert gpu.memory[B] == "x"


def test_pieces_wait_only_for_compute_enqueued_before_they_began() -> None:
    """The disk is slow, and the host is far ahead when the second piece is copied."""
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
    gpu = host.gpu
    assert computed_before_end(gpu, Queue.FILE_IN, Queue.FILE_OUT) < 10  # of more than 50
    assert gpu.memory[C] == "x"


@pytest.mark.parametrize("memory", MEMORIES)
def test_pieces_return_only_to_allocated_memory(memory) -> None:
    """Stream-ordered memory does not exist before compute has reached its allocation."""
    host = Host(memory)
    host.make(A, "x")
    host.leave(A, G)
    host.gpu.finish(lambda queues: queues[0])
    host.make(C, "z")
    host.gpu.memory[HOST + F] = "y"
    host.piece_comes_back(host.tracker.begin_in(B), B, F)
    while host.gpu.can_run(Queue.FILE_IN):
        host.gpu.run(Queue.FILE_IN)
    assert (B in host.gpu.memory) == (memory == HazardTracker.Memory.IN_ORDER)
    host.gpu.finish(lambda queues: queues[-1])
    assert host.gpu.memory[B] == "y"


def test_compute_waits_for_the_last_piece() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    gpu = host.gpu
    gpu.memory |= {HOST + F: "x0", HOST + G: "x1"}
    whole = host.tracker.begin_in(A)
    host.piece_comes_back(whole, A, F)
    host.piece_comes_back(whole, B, G)
    host.use(A, "x0")
    gpu.compute("read", B, "x1")
    gpu.finish(lambda queues: queues[0])  # compute as early as possible


def test_nothing_is_tracked_before_the_first_copy() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    for _ in range(3):
        host.make(A, "x")
        host.use(A, "x")
        host.free(A)
    assert not host.tracker.active
    assert host.tracker.remembered == 0
    assert all(kind in ("write", "read") for kind, *_ in host.gpu.queues[Queue.COMPUTE])


def test_memory_freed_before_the_first_copy_is_waited_for() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    host.make(B, "old")
    host.use(B, "old")
    host.free(B)
    gpu = host.gpu
    gpu.memory[HOST + F] = "x"
    host.come_back(B, F)
    while gpu.can_run(Queue.IN):  # as early as possible
        gpu.run(Queue.IN)
    assert B not in gpu.memory
    gpu.finish(lambda queues: queues[-1])
    assert gpu.memory[B] == "x"


def test_many_frees_are_merged_and_still_waited_for() -> None:
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
    host.gpu.finish(lambda queues: queues[-1])
    assert host.gpu.memory[blocks[0]] == "x"


def test_implied_waits_are_omitted() -> None:
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
    host.gpu.finish(lambda queues: queues[0])


def test_host_memory_is_idle_when_its_copies_have_ended() -> None:
    host = Host(HazardTracker.Memory.IN_ORDER)
    host.make(A, "x")
    assert host.tracker.is_idle(HOST, MIB)
    host.leave(A, F)
    assert not host.tracker.is_idle(HOST, MIB)
    assert host.tracker.is_idle(HOST + MIB, MIB)
    host.gpu.finish(lambda queues: queues[0])
    assert host.tracker.is_idle(HOST, MIB)
    host.encode(A, F, 2 * MIB)
    assert not host.tracker.is_idle(HOST + MIB, MIB)
    host.gpu.finish(lambda queues: queues[0])
    assert host.tracker.is_idle(HOST + MIB, MIB)
    host.decode(B, F, 2 * MIB)
    assert not host.tracker.is_idle(HOST + MIB, MIB)
    host.gpu.finish(lambda queues: queues[0])
    host.piece_leaves(host.tracker.begin_out(B), B, G)
    assert not host.tracker.is_idle(HOST + G, MIB)
    host.gpu.finish(lambda queues: queues[0])
    assert host.tracker.is_idle(HOST + G, MIB)
    host.piece_comes_back(host.tracker.begin_in(A), A, G)
    assert not host.tracker.is_idle(HOST + G, MIB)
    host.gpu.finish(lambda queues: queues[0])
    assert host.tracker.is_idle(HOST + G, MIB)


def test_a_refused_copy_is_reported() -> None:
    class Refusing(SimulatedGpu):
        def move(self, queue: Queue, transfer: Transfer) -> bool:
            return False

    tracker = HazardTracker(Refusing(), HazardTracker.Memory.IN_ORDER)
    assert not tracker.copy_out(HOST, A, MIB)
    assert not tracker.copy_in(A, HOST, MIB)
    assert not tracker.encode_out(HOST, 2 * MIB, A, MIB)
    assert not tracker.decode_in(A, MIB, HOST, 2 * MIB)
