"""The slab allocator: planned addresses, what has none, and layouts."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from chains import BUDGET, GRAPH, MIB, OP, fill, slots

from tests.support.allocators import Chain


@pytest.fixture(autouse=True)
def clean_device() -> None:
    """Do nothing: these tests leave TensorFlow's own device alone."""


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


def test_a_large_block_without_a_place_begins_with_a_chunk() -> None:
    with slab_chain() as chain:
        lower, large = chain.allocate(98_304), chain.allocate(MIB)
        assert large - lower == 2 * 65_536
        assert chain.stats()["slab_bytes"] == 2 * 65_536 + MIB
        # Smaller blocks begin anywhere.
        longer, last = chain.allocate(MIB + 1), chain.allocate(98_304)
        assert (longer - large, last - longer) == (MIB, MIB + 1024)
        for block in (lower, large, longer, last):
            chain.free(block)


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
