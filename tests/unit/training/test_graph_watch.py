"""Which graphs of a training get plans of their own."""

from __future__ import annotations

from tfswap.training.graph_watch import FIRST_PAUSE, LOOKS, GraphWatch


def test_a_graph_that_runs_often_and_moves_is_due() -> None:
    watch = GraphWatch()
    for _ in range(7):
        watch.ran("other", True, False)
        watch.ran("first", True, True)
    assert watch.due() is None
    watch.ran("other", True, False)
    assert watch.due() == "other"


def test_a_planned_graph_is_never_due() -> None:
    watch = GraphWatch()
    for _ in range(100):
        watch.ran("first", True, True)
    assert watch.due() is None


def test_one_that_runs_rarely_is_not() -> None:
    watch = GraphWatch()
    for step in range(1000):
        watch.ran("last batch" if step % 20 == 0 else "first", True, step % 20 != 0)
    assert watch.due() is None


def test_one_that_moves_nothing_is_not() -> None:
    watch = GraphWatch()
    for _ in range(50):
        watch.ran("small", False, False)
    assert watch.due() is None


def test_one_that_was_refused_is_not() -> None:
    watch = GraphWatch()
    watch.refuse("other")
    for _ in range(50):
        watch.ran("other", True, False)
    assert watch.due() is None


def test_steps_are_looked_at_only_where_there_is_something_to_see() -> None:
    watch, asked, looked = GraphWatch(), 0, 0
    for _ in range(10_000):
        asked += watch.step_ended()
        looked += watch.wants
    assert asked <= 15 and looked == 0
    watch = GraphWatch()
    for step in range(10_000):
        if watch.step_ended():
            watch.has_unplanned = True
        if watch.wants:
            assert step >= FIRST_PAUSE - 1
            watch.ran("first", True, True)
            looked += 1
    assert LOOKS <= looked <= 0.06 * 10_000
