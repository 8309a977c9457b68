"""The updated load under a selection equals the load computed from scratch."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import crowded_timelines, timelines

from tfswap import _core
from tfswap.machine.machine import Machine
from tfswap.planning.planners.candidates import find_candidates
from tfswap.planning.planners.tight_load import TightLoad, tight_load
from tfswap.planning.simulator import core_tiers
from tfswap.step.timeline import Timeline

LINK = core_tiers(Machine("link", 1e9, 1e9))[0]


@settings(max_examples=200, deadline=None)
@given(st.one_of(timelines(), crowded_timelines()), st.data())
def test_max_follows_removals_and_restores(timeline: Timeline, data: st.DataObject) -> None:
    candidates = find_candidates(timeline, LINK, 1)
    selected = np.ones(len(candidates), dtype=np.bool_)
    load = TightLoad(candidates, selected)
    for _ in range(6 if len(candidates) else 0):
        candidate = data.draw(st.integers(0, len(candidates) - 1))
        if selected[candidate]:
            load.remove(candidate)
        else:
            load.restore(candidate)
        selected[candidate] = not selected[candidate]
        assert load.max_bytes == tight_load(candidates, selected).max()


@given(
    st.lists(st.integers(-50, 50), max_size=40),
    st.lists(st.tuples(st.integers(-3, 45), st.integers(-3, 45), st.integers(-9, 9)), max_size=20),
)
def test_max_tree(values: list[int], changes: list[tuple[int, int, int]]) -> None:
    array = np.array(values, dtype=np.int64)
    tree = _core.MaxTree(array)
    for begin, end, delta in changes:
        tree.add(begin, end, delta)
        array[max(begin, 0) : max(end, 0)] += delta
        assert tree.max() == (array.max() if len(array) else 0)
