"""One suite for every chain of allocators: the guarantees that each chain must keep."""

from __future__ import annotations

import ctypes
import json
import random
import threading
import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from tests.support.allocators import Chain
from tfswap.ops import library

MIB = 1 << 20
ADAPTORS = ("statistics", "recording", "slab", "budget")
CHAINS = [
    " ".join((*order, "system"))
    for count in range(len(ADAPTORS) + 1)
    for order in permutations(ADAPTORS, count)
] + ["bfc", "statistics recording slab bfc", "statistics workspace slab budget system"]
BUDGET = 64 * MIB
GRAPH, OP = "graph", "op"


def slots(*places: tuple[str, int, int] | tuple[str, int, int, int]) -> str:
    """Return a layout of outputs: op, ordinal, offset, and bytes (1 MiB)."""
    return "\n".join(
        f"{place[0]}\t0\t{place[1]}\t{place[2]}\t{place[3] if len(place) > 3 else MIB}"
        for place in places
    )


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


def fill(address: int, size: int, value: int) -> None:
    ctypes.memset(address, value, size)


def holds(address: int, size: int, value: int) -> bool:
    return ctypes.string_at(address, size) == bytes([value]) * size


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


def slab_chain(names: str = "slab budget system", budget: int = BUDGET) -> Chain:
    chain = Chain(names, budget)
    chain.install(GRAPH, slots((OP, 0, 0), (OP, 1, MIB // 2), ("other", 0, 0, 8192)))
    return chain


def test_a_slot_is_served_at_the_same_address_every_time() -> None:
    with slab_chain() as chain:
        first = chain.allocate(MIB, op=(GRAPH, OP, 0))
        chain.free(first)
        assert chain.allocate(MIB, op=(GRAPH, OP, 0)) == first
        # Another slot overlaps half of it.
        other = chain.allocate(MIB, op=(GRAPH, OP, 1))
        assert not first - MIB < other < first + MIB
        chain.free(first)
        chain.free(other)
        assert chain.allocate(MIB, op=(GRAPH, OP, 1)) == first + MIB // 2
        chain.free(first + MIB // 2)
        stats = chain.stats()
        assert (stats["hits"], stats["taken"]) == (3, 1)


def test_allocations_that_outlive_their_step_avoid_planned_addresses() -> None:
    with Chain("slab system", 0) as chain:
        chain.install(GRAPH, slots((OP, 0, -2), ("other", 0, 0)))
        lasting = [chain.allocate(MIB, op=(GRAPH, OP, 0)) for _ in range(3)]
        inside = chain.allocate(MIB, op=(GRAPH, "other", 0))
        assert all(not inside - MIB < block < inside + MIB for block in lasting)
        stats = chain.stats()
        assert (stats["hits"], stats["missed"], stats["lasting"]) == (1, 0, 3)
        assert stats["slab_claimed_bytes"] == 4 * MIB
        # The lowest free address is used first, whatever its size was.
        chain.free(lasting[0])
        assert chain.allocate(MIB // 2, op=(GRAPH, OP, 0)) == lasting[0]
        for block in (inside, lasting[0], *lasting[1:]):
            chain.free(block)


def test_a_small_block_without_a_place_keeps_no_chunk_of_the_slab() -> None:
    with slab_chain() as chain:
        small = chain.allocate(8192)
        assert chain.stats()["slab_bytes"] == 0
        large = chain.allocate(98_304)
        assert chain.stats()["slab_bytes"] == 2 * 65_536
        chain.free(small)
        chain.free(large)


def test_misses_are_counted_by_cause() -> None:
    with slab_chain(budget=MIB) as chain:
        outside = [chain.allocate(98_304), chain.allocate(98_304, op=(GRAPH, "unknown", 0))]
        wrong = chain.allocate(16_384, op=(GRAPH, "other", 0))
        no_room = chain.allocate(MIB, op=(GRAPH, OP, 0), retry=False)
        assert no_room == 0
        stats = chain.stats()
        assert (stats["unplanned"], stats["other_size"], stats["no_room"]) == (2, 1, 1)
        assert chain.allocate(100) != 0  # small allocations are not counted
        for block in (*outside, wrong):
            chain.free(block)


def test_idle_pages_make_room_for_other_allocations() -> None:
    with slab_chain(budget=2 * MIB) as chain:
        block = chain.allocate(MIB, op=(GRAPH, OP, 0))
        chain.free(block)
        assert chain.stats()["budget_in_use"] == chain.stats()["slab_bytes"] == MIB
        held = chain.allocate(2 * MIB)
        assert held and chain.stats()["budget_in_use"] == chain.stats()["slab_bytes"] == 2 * MIB
        chain.free(held)
        block = chain.allocate(MIB, op=(GRAPH, OP, 0))
        assert chain.stats()["budget_in_use"] == chain.stats()["slab_bytes"] == 2 * MIB
        chain.free(block)


def test_a_free_slab_range_is_used_when_the_budget_has_no_room() -> None:
    with slab_chain(budget=MIB + MIB // 2) as chain:
        first = chain.allocate(MIB, op=(GRAPH, OP, 1))
        chain.free(first)
        small = chain.allocate(8192, op=(GRAPH, "other", 0))
        # The small block is in its slot; there is no room outside either.
        moved = chain.allocate(MIB, op=(GRAPH, OP, 0), retry=False)
        assert moved and chain.stats()["moved"] == 1
        chain.free(moved)
        chain.free(small)


def test_a_planned_allocation_waits_for_memory_at_its_address() -> None:
    with slab_chain(budget=2 * MIB) as chain:
        first = chain.allocate(MIB, op=(GRAPH, OP, 0))
        chain.free(first)
        held = [chain.allocate(MIB // 4) for _ in range(8)]
        assert all(held) and chain.allocate(MIB, op=(GRAPH, OP, 0), retry=False) == 0

        def free() -> None:
            for block in held:
                time.sleep(0.01)
                chain.free(block)

        thread = threading.Thread(target=free)
        thread.start()
        again = chain.allocate(MIB, op=(GRAPH, OP, 0))
        thread.join()
        assert again == first
        stats = chain.stats()
        assert (stats["hits"], stats["missed"]) == (2, 1)
        chain.free(first)


def test_a_removed_layout_releases_its_memory() -> None:
    with slab_chain() as chain:
        block = chain.allocate(MIB, op=(GRAPH, OP, 0))
        chain.install(GRAPH, "")
        chain.free(block)
        assert chain.allocate(MIB, op=(GRAPH, OP, 0)) != block
        held = chain.allocate(BUDGET - MIB, retry=False)
        assert held


def test_the_check_finds_writes_to_freed_memory() -> None:
    with slab_chain() as chain:
        chain.check(True)
        block = chain.allocate(MIB, op=(GRAPH, OP, 0))
        fill(block, MIB, 1)
        chain.free(block)
        block = chain.allocate(MIB, op=(GRAPH, OP, 0))
        assert chain.stats()["faults"] == 0
        chain.free(block)
        fill(block + 5000, 1, 7)
        chain.free(chain.allocate(MIB, op=(GRAPH, OP, 0)))
        assert chain.stats()["faults"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "op\t0\t0\t0",
        "op\t3\t0\t0\t1024",
        "op\t0\t-1\t0\t1024",
        "op\t0\t99999\t0\t1024",
        "op\t0\t0\t1\t1024",
        "op\t0\t0\t-1024\t1024",
        "op\t0\t0\t0\t0",
        "op\t0\t0\t0\t99999999999999999999",
        "\t0\t0\t0\t1024",
        "op\t0\t0\t-3\t1024",
        "#\nop",
    ],
)
def test_an_invalid_layout_is_refused(text: str) -> None:
    with Chain("slab system", 0) as chain, pytest.raises(ValueError, match="is not a slot"):
        chain.install(GRAPH, text)


def test_a_layout_of_too_many_shapes_is_refused() -> None:
    with Chain("slab system", 0) as chain, pytest.raises(ValueError, match="1001 shapes"):
        chain.install(GRAPH, "#\n" * 1000)


@pytest.mark.parametrize("names", ["", "budget", "system budget", "slab slab system", "x system"])
def test_an_invalid_chain_is_refused(names: str) -> None:
    with pytest.raises(ValueError):
        Chain(names, 0)


def test_sizes_tell_for_which_shapes_a_graph_runs() -> None:
    small, large = 64 * 1024, MIB
    full = slots(("x", 0, 0, large), ("weights", 0, large, small), ("y", 0, 2 * large, large))
    last = slots(("x", 0, 0, small), ("weights", 0, small, small), ("y", 0, 4 * small, small))
    with Chain("slab system", 0) as chain:
        chain.install(GRAPH, f"{full}\n#\n{last}")

        def run(size: int) -> list[int]:
            sizes = {"x": size, "weights": small, "y": size}
            blocks = [chain.allocate(sizes[op], op=(GRAPH, op, 0)) for op in sizes]
            for block in blocks:
                chain.free(block)
            return [block - blocks[0] for block in blocks]

        for _ in range(3):
            assert run(large) == [0, large, 2 * large]
            assert run(small) == [0, small, 4 * small]
        stats = chain.stats()
        assert stats["hits"] == 18 and stats["other_size"] == 0
        # A shape without a layout gets addresses elsewhere.
        run(2 * large)
        assert chain.stats()["other_size"] == 2


def test_many_layouts_share_one_slab() -> None:
    with Chain("slab system", 0) as chain:
        for graph in range(3):
            chain.install(f"g{graph}", slots((OP, 0, graph * 2048, 8192)))
        blocks = [chain.allocate(8192, op=(f"g{graph}", OP, 0)) for graph in range(3)]
        assert len(set(blocks)) == 3
        assert json.dumps(chain.stats()["hits"]) == "1"
        for block in blocks:
            chain.free(block)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_replaced_layouts_leave_nothing_behind() -> None:
    layouts = ["\n".join(f"op{i}\t0\t{i % 2}\t{8192 * i}\t8192" for i in range(20_000))] * 2
    layouts[1] = layouts[1].replace("op", "other")
    with Chain("slab system", 0) as chain:

        def replace(times: int) -> int:
            for number in range(times):
                chain.install(GRAPH, layouts[number % 2])
            return resident_bytes()

        before = replace(10)
        assert replace(60) < before + 20 * MIB
        block = chain.allocate(8192, op=(GRAPH, "other1", 1))
        chain.install(GRAPH, layouts[0])
        assert chain.allocate(8192, op=(GRAPH, "op2", 0)) == block + 8192
        chain.install(GRAPH, "")
