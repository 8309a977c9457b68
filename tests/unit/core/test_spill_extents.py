"""Where a buffer is in a spill file, and how the file grows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from spill_files import BLOCK, GROWTH, MIB

from tfswap._core import Extents, SpillFile


def reference_take(free: list[bool], count: int) -> int:
    """Return the first of the smallest runs of free blocks that are long enough."""
    runs, begin = [], 0
    for i in range(len(free) + 1):
        if i == len(free) or not free[i]:
            if i - begin >= count:
                runs.append((i - begin, begin))
            begin = i + 1
    return min(runs)[1] if runs else -1


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 9)),
            st.tuples(st.just("give back"), st.integers(0, 30)),
            st.tuples(st.just("grow"), st.integers(1, 20)),
        ),
        max_size=80,
    )
)
def test_extents_equal_those_of_a_simple_search(turns: list[tuple[str, int]]) -> None:
    extents, free = Extents(), [False] * 0
    held: list[tuple[int, int]] = []
    for what, number in turns:
        if what == "grow":
            extents.grow(number)
            free += [True] * number
        elif what == "take":
            offset = extents.take(number)
            assert offset == reference_take(free, number)
            if offset >= 0:
                free[offset : offset + number] = [False] * number
                held.append((offset, number))
        elif held:
            offset, count = held.pop(number % len(held))
            extents.give_back(offset, count)
            free[offset : offset + count] = [True] * count
        runs = "".join(".#"[not each] for each in free).split("#")
        assert extents.end == len(free) and extents.free_bytes == sum(free)
        assert extents.free_bytes_at_end == len(runs[-1])
        assert extents.largest_free_bytes == max(map(len, runs))


def test_a_repeated_step_uses_the_same_extents(folder: str) -> None:
    file = SpillFile(folder)
    kept = file.allocate(3 * MIB + 1)
    turns = np.random.default_rng(2).integers(1, 20 * MIB, 40)

    def step() -> list[int]:
        offsets, held = [], []
        for i, size in enumerate(map(int, turns)):
            offsets.append(file.allocate(size))
            held.append((offsets[-1], size))
            if i % 3 == 2:
                file.free(*held.pop(i % len(held)))
        for each in held:
            file.free(*each)
        return offsets

    first = step()
    after_first = file.stats().file_bytes
    assert [step() for _ in range(3)] == [first] * 3
    assert file.stats().file_bytes == after_first
    file.free(kept, 3 * MIB + 1)
    assert file.allocate(after_first) == 0  # one free extent again


def test_the_file_grows_in_large_steps_and_blocks_are_exact(folder: str) -> None:
    file = SpillFile(folder)
    assert file.stats().file_bytes == 0
    assert [file.allocate(size) for size in (1, BLOCK, BLOCK + 1)] == [0, BLOCK, 2 * BLOCK]
    assert file.stats().file_bytes == GROWTH
    assert file.stats().bytes_in_use == 4 * BLOCK
    assert file.allocate(GROWTH) == 4 * BLOCK  # the free blocks at the end count
    assert file.stats().file_bytes == 2 * GROWTH
    file.free(0, 1)
    stats = file.stats()
    assert (stats.bytes_in_use, stats.peak_bytes_in_use) == (GROWTH + 3 * BLOCK, GROWTH + 4 * BLOCK)
    file.reset_peak()
    assert file.stats().peak_bytes_in_use == GROWTH + 3 * BLOCK


def test_freeing_an_unknown_extent_changes_nothing(folder: str) -> None:
    file = SpillFile(folder)
    offset = file.allocate(2 * MIB)
    for wrong in [(offset + BLOCK, MIB), (offset, MIB), (offset + 8 * MIB, 2 * MIB)]:
        file.free(*wrong)
    assert file.stats().bytes_in_use == 2 * MIB
    file.free(offset, 2 * MIB)
    file.free(offset, 2 * MIB)
    assert file.stats().bytes_in_use == 0


def test_the_limit_applies_to_the_file(folder: str) -> None:
    file = SpillFile(folder, 10 * MIB + 1)
    first, second = file.allocate(4 * MIB), file.allocate(4 * MIB)
    assert min(first, second) >= 0
    assert file.stats().file_bytes == 10 * MIB and file.stats().limit_bytes == 10 * MIB + 1
    assert file.allocate(3 * MIB) == -1
    assert file.problem == (
        f"no space for 3.0 MiB in the spill file in {folder}: it is limited to 10.0 MiB, 8.0 MiB "
        "of its 10.0 MiB are in use, and the largest free stretch is 2.0 MiB. Raise its limit or "
        "host_limit"
    )
    assert file.allocate(2 * MIB) == 8 * MIB
    file.free(first, 4 * MIB)
    assert file.allocate(3 * MIB) == first
    assert SpillFile(folder, 100).allocate(1) == -1
