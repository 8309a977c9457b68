"""A budget limits what the allocator below hands out, not only what is requested."""

from __future__ import annotations

import pytest

from tests.support.allocators import Chain
from tfswap.ops import library

MIB = 1 << 20
BUDGET = 64 * MIB


@pytest.fixture(autouse=True)
def clean_device() -> None:
    """Do nothing: these tests leave TensorFlow's own device alone."""


def test_a_budget_counts_whole_chunks_of_bfc() -> None:
    library.load()
    with Chain("statistics budget bfc", BUDGET) as chain:
        block = chain.allocate(40 * MIB)  # BFC splits only chunks of twice the size
        stats = chain.stats()
        assert (stats["bytes_in_use"], stats["budget_in_use"]) == (40 * MIB, BUDGET)
        assert chain.allocate(MIB, retry=False) == 0
        chain.free(block)
        chain.set_budget(50 * MIB)
        assert chain.allocate(40 * MIB, retry=False) == 0
        assert chain.stats()["budget_in_use"] == 0
        block = chain.allocate(30 * MIB)
        assert chain.stats()["budget_in_use"] == 30 * MIB
        chain.free(block)
