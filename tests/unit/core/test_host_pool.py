"""Far memory on the host: blocks, arenas, limits."""

from __future__ import annotations

import random
import threading

import pytest

from tfswap._core import HostPool

MIB = 1 << 20


class Taken:
    """Record what the pool has allocated from the system, through its hooks."""

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self.times = 0
        self.refusal = ""

    def taken(self, begin: int, size: int) -> str:
        self.times += 1
        if not self.refusal:
            self.blocks[begin] = size
        return self.refusal

    def released(self, begin: int, size: int) -> None:
        assert self.blocks.pop(begin) == size

    @property
    def size(self) -> int:
        return sum(self.blocks.values())


def pool_of(arena_bytes: int = 0) -> tuple[HostPool, Taken]:
    taken = Taken()
    return HostPool(taken.taken, taken.released, arena_bytes), taken


def test_a_block_has_its_exact_size_and_is_kept() -> None:
    pool, taken = pool_of()
    block = pool.allocate(5 * MIB + 1)
    assert taken.size == 5 * MIB + 4096
    pool.free(block, 5 * MIB + 1)
    assert (pool.bytes_in_use, pool.bytes_cached) == (0, 5 * MIB + 4096)
    assert pool.allocate(5 * MIB + 1) == block
    assert taken.times == 1


def test_blocks_below_a_page_take_no_whole_page() -> None:
    pool, _ = pool_of(arena_bytes=MIB)
    sizes = [1000, 1024, 2100, 4096, 5000]
    blocks = [pool.allocate(size) for size in sizes]
    assert pool.bytes_in_use == 1024 + 1024 + 3072 + 4096 + 8192
    for block, size in zip(blocks, sizes, strict=True):
        pool.free(block, size)
    assert pool.allocate(900) == blocks[0]


def test_small_blocks_share_an_arena() -> None:
    pool, taken = pool_of(arena_bytes=64 * MIB)
    blocks = [pool.allocate(MIB) for _ in range(64)]
    assert len(set(blocks)) == 64 and taken.times == 1
    assert max(blocks) - min(blocks) == 63 * MIB
    large = pool.allocate(20 * MIB)  # more than a quarter of an arena
    assert taken.times == 2 and taken.size == 84 * MIB
    for block in blocks:
        pool.free(block, MIB)
    pool.trim()
    assert taken.size == 20 * MIB
    pool.free(large, 20 * MIB)
    pool.trim()
    assert not taken.blocks and pool.bytes_cached == 0


@pytest.mark.parametrize("arena_bytes", [0, 16 * MIB])
def test_blocks_freed_after_a_trim_are_not_kept(arena_bytes: int) -> None:
    pool, taken = pool_of(arena_bytes)
    block = pool.allocate(MIB)
    pool.trim()
    pool.free(block, MIB)
    assert not taken.blocks and pool.bytes_cached == 0
    pool.free(pool.allocate(MIB), MIB)
    assert pool.bytes_cached > 0


def test_an_arena_stays_while_a_block_of_it_is_used() -> None:
    pool, taken = pool_of(arena_bytes=16 * MIB)
    kept, other = pool.allocate(MIB), pool.allocate(2 * MIB)
    pool.free(other, 2 * MIB)
    pool.trim()
    assert taken.size == 16 * MIB
    assert pool.allocate(2 * MIB) == other
    pool.free(other, 2 * MIB)
    pool.trim()
    pool.free(kept, MIB)
    assert not taken.blocks


def test_the_limit_counts_allocated_arenas() -> None:
    pool, taken = pool_of(arena_bytes=16 * MIB)
    pool.set_limit(20 * MIB)
    small = pool.allocate(MIB)
    assert pool.allocate(5 * MIB) == 0  # 16 are allocated
    assert pool.allocate(4 * MIB) != 0
    pool.free(small, MIB)
    assert taken.size <= 20 * MIB


def test_near_the_limit_an_arena_is_only_as_large_as_necessary() -> None:
    pool, taken = pool_of(arena_bytes=16 * MIB)
    pool.set_limit(10 * MIB)
    blocks = [pool.allocate(MIB) for _ in range(10)]
    assert all(blocks) and pool.allocate(MIB) == 0
    assert taken.size == 10 * MIB


def test_memory_that_the_device_refuses_is_not_used() -> None:
    pool = HostPool(lambda begin, size: "no", lambda begin, size: None, 0)
    assert pool.allocate(MIB) == 0
    assert (pool.bytes_in_use, pool.bytes_cached) == (0, 0)


@pytest.mark.parametrize("arena_bytes", [0, 8 * MIB])
def test_random_use_never_overlaps_or_exceeds_the_limit(arena_bytes: int) -> None:
    dice = random.Random(arena_bytes)
    pool, taken = pool_of(arena_bytes)
    limit = 48 * MIB
    pool.set_limit(limit)
    held: dict[int, int] = {}
    for _ in range(3000):
        if held and dice.random() < 0.48:
            block = dice.choice(list(held))
            pool.free(block, held.pop(block))
        else:
            size = dice.choice([4096, 5000, 300_000, MIB, 3 * MIB, 7 * MIB])
            block = pool.allocate(size)
            if block:
                assert not any(a < block + size and block < a + b for a, b in held.items())
                assert any(a <= block and block + size <= a + b for a, b in taken.blocks.items())
                held[block] = size
        if dice.random() < 0.01:
            pool.trim()
        assert taken.size <= limit
        assert pool.bytes_in_use + pool.bytes_cached == taken.size
    for block, size in held.items():
        pool.free(block, size)
    pool.trim()
    assert not taken.blocks and pool.bytes_cached == 0


def test_prepared_memory_serves_later_allocations() -> None:
    pool, taken = pool_of(arena_bytes=16 * MIB)
    sizes = [MIB] * 20 + [5 * MIB] * 3 + [7 * MIB]
    pool.prepare(sizes)
    assert (pool.bytes_in_use, pool.bytes_cached) == (0, 2 * 16 * MIB + 22 * MIB)
    times = taken.times
    pool.prepare(sizes)
    blocks = [pool.allocate(size) for size in sizes]
    assert all(blocks) and taken.times == times
    for block, size in zip(blocks, sizes, strict=True):
        pool.free(block, size)


def test_as_much_is_prepared_as_the_limit_allows() -> None:
    pool, taken = pool_of()
    pool.set_limit(12 * MIB)
    pool.prepare([5 * MIB] * 3)
    assert taken.size == pool.bytes_cached == 10 * MIB


def test_other_threads_use_the_pool_while_it_takes_memory() -> None:
    freed = threading.Event()

    def take(begin: int, size: int) -> str:
        if size == 2 * MIB:
            assert freed.wait(10)
        return ""

    pool = HostPool(take, lambda begin, size: None, 0)
    block = pool.allocate(MIB)
    waits = threading.Thread(target=pool.allocate, args=(2 * MIB,))
    waits.start()
    pool.free(block, MIB)
    freed.set()
    waits.join()
    assert (pool.bytes_in_use, pool.bytes_cached) == (2 * MIB, MIB)


def test_a_refusal_of_the_device_is_the_reason_until_memory_is_taken_again() -> None:
    pool, taken = pool_of()
    taken.refusal = "pinning 1048576 bytes of host memory: out of memory (CUDA error 2)"
    assert pool.allocate(MIB) == 0
    assert taken.refusal in pool.why_full(MIB)
    assert "host_limit" not in pool.why_full(MIB)
    taken.refusal = ""
    pool.free(pool.allocate(MIB), MIB)
    pool.set_limit(2 * MIB)
    assert pool.allocate(3 * MIB) == 0
    assert "host_limit" in pool.why_full(3 * MIB)
