"""One suite for every chain of allocators: the guarantees that each chain must keep."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import permutations

import pytest
from chains import BUDGET, GRAPH, MIB, OP, fill, holds, slots

from tests.support.allocators import Chain
from tfswap.ops import library

ADAPTORS = ("statistics", "recording", "slab", "budget")
CHAINS = [
    " ".join((*order, "system"))
    for count in range(len(ADAPTORS) + 1)
    for order in permutations(ADAPTORS, count)
] + ["bfc", "statistics recording slab bfc", "statistics workspace slab budget system"]


@pytest.fixture(autouse=True)
def clean_device() -> None:
    """Do nothing: these tests leave TensorFlow's own device alone."""


def shown(names: str) -> str:
    return names.replace(" ", ">")


def has_a_limit(names: str) -> bool:
    """Return whether a budget limits the chain; it also limits a slab above or below it."""
    return "budget" in names or names == "bfc"


@pytest.fixture(params=CHAINS, ids=shown)
def chain(request: pytest.FixtureRequest) -> Iterator[Chain]:
    library.load()
    with Chain(request.param, BUDGET) as made:
        # Three slots of an op: the first two apart, the third overlaps both.
        made.install(GRAPH, slots((OP, 0, 0), (OP, 1, MIB), (OP, 2, MIB // 2)))
        yield made
        stats = made.stats()
        assert stats["bytes_in_use"] in (0, stats.get("slab_bytes", 0))


@pytest.mark.parametrize("alignment", [64, 128, 1024, 4096])
def test_blocks_are_aligned_and_disjoint(chain: Chain, alignment: int) -> None:
    sizes = [1, 63, 64, 4095, 4096, 65_537, 3 * MIB]
    if "bfc" in chain.names:
        alignment = min(alignment, 64)  # behind a header, only BFC's own 256 is kept
    blocks = [(chain.allocate(size, alignment), size, i + 1) for i, size in enumerate(sizes)]
    for address, size, value in blocks:
        assert address and address % alignment == 0
        fill(address, size, value)
    for address, size, value in blocks:
        assert holds(address, size, value)
        assert chain.requested(address) == size
    for address, _, _ in reversed(blocks):
        chain.free(address)


def test_an_allocation_of_no_bytes_is_a_block_or_null(chain: Chain) -> None:
    address = chain.allocate(0)
    if address:
        chain.free(address)
    chain.free(0)


def test_planned_blocks_never_share_an_address(chain: Chain) -> None:
    blocks = [chain.allocate(MIB, op=(GRAPH, OP, i % 3)) for i in range(9)]
    assert all(blocks)
    for i, address in enumerate(blocks):
        fill(address, MIB, i + 1)
    for i, address in enumerate(blocks):
        assert holds(address, MIB, i + 1)
        chain.free(address)


@pytest.mark.parametrize("chain", [*filter(has_a_limit, CHAINS)], ids=shown, indirect=True)
def test_a_refused_allocation_costs_nothing(chain: Chain) -> None:
    before = chain.stats()["bytes_in_use"]
    assert chain.allocate(BUDGET * 2, retry=False) == 0
    assert chain.stats()["bytes_in_use"] == before
    held = chain.allocate(BUDGET // 2)
    assert held
    assert chain.allocate(BUDGET // 4 * 3, retry=False) == 0
    chain.free(held)
    again = chain.allocate(BUDGET // 4 * 3, retry=False)
    assert again
    chain.free(again)


def test_freed_in_any_order_by_any_thread(chain: Chain) -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        held: list[tuple[int, int, int]] = []
        for round_ in range(300):
            if len(held) > 6 or (held and dice.random() < 0.5):
                address, size, value = held.pop(dice.randrange(len(held)))
                if not holds(address, min(size, 512), value):
                    failures.append(f"{size} bytes at {address:x} were written to")
                chain.free(address)
                continue
            op = (GRAPH, OP, dice.randrange(4)) if dice.random() < 0.6 else None
            size = MIB if op else dice.choice((8, 5000, 100_000, MIB))
            address = chain.allocate(size, op=op)
            if not address:
                failures.append(f"{size} bytes were refused")
                break
            value = (seed * 31 + round_) % 255
            fill(address, min(size, 512), value)
            held.append((address, size, value))
        for address, _, _ in held:
            chain.free(address)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("chain", [CHAINS[-1]], ids=shown, indirect=True)
def test_workspaces_have_a_limit_of_their_own(chain: Chain) -> None:
    chain.set_workspace_limit(4 * MIB)
    assert chain.allocate(5 * MIB, retry=False) == 0
    for address in (chain.allocate(4 * MIB, retry=False), chain.allocate(5 * MIB)):
        assert address
        chain.free(address)
    chain.set_workspace_limit(0)
    assert chain.allocate(8, retry=False) == 0
    chain.set_workspace_limit(None)
    workspace = chain.allocate(5 * MIB, retry=False)
    assert workspace
    chain.free(workspace)


@pytest.mark.parametrize("chain", [c for c in CHAINS if "budget" in c], ids=shown, indirect=True)
def test_the_limit_may_grow_and_shrink(chain: Chain) -> None:
    held = chain.allocate(40 * MIB)
    chain.set_budget(20 * MIB)
    assert chain.allocate(30 * MIB, retry=False) == 0
    chain.free(held)
    assert chain.allocate(30 * MIB, retry=False) == 0
    chain.set_budget(100 * MIB)
    held = chain.allocate(90 * MIB, retry=False)
    assert held
    chain.free(held)


def test_statistics_count_requested_bytes() -> None:
    with Chain("statistics recording slab budget system", BUDGET) as chain:
        blocks = [chain.allocate(size) for size in (100, 5000, MIB)]
        stats = chain.stats()
        assert stats["allocations"] == 3
        assert stats["bytes_in_use"] == stats["peak_bytes"] == 5100 + MIB
        for block in blocks:
            chain.free(block)
        stats = chain.stats()
        assert stats["bytes_in_use"] == 0 and stats["peak_bytes"] == 5100 + MIB
