"""GraphWatch: which graphs of a training get their own plans."""

from __future__ import annotations

from tfswap.training.graph_watch import FIRST_PAUSE, LOOKS, OFTEN, GraphWatch


def ran(watch: GraphWatch, steps: int, fingerprint: str, moved: bool, planned: bool) -> GraphWatch:
    for _ in range(steps):
        watch = watch.ran(fingerprint, moved, planned)
    return watch


def test_a_graph_that_runs_often_and_swaps_is_due() -> None:
    watch = GraphWatch()
    for _ in range(OFTEN - 1):
        watch = watch.ran("other", True, False).ran("first", True, True)
    assert not watch.is_due("other")
    assert watch.ran("other", True, False).is_due("other")


def test_a_planned_graph_is_never_due() -> None:
    assert not ran(GraphWatch(), 100, "first", True, True).is_due("first")


def test_a_graph_that_runs_rarely_is_not_due() -> None:
    watch = GraphWatch()
    for step in range(1000):
        is_last = step % 20 == 0
        watch = watch.ran("last batch" if is_last else "first", True, not is_last)
    assert not watch.is_due("last batch")


def test_a_graph_that_swaps_nothing_is_not_due() -> None:
    assert not ran(GraphWatch(), 50, "small", False, False).is_due("small")


def test_a_refused_graph_is_not_due() -> None:
    assert not ran(GraphWatch().refuse("other"), 50, "other", True, False).is_due("other")


def test_a_graph_is_profiled_for_larger_tensors_at_most_four_times() -> None:
    watch = GraphWatch()
    for profiles in range(1, 5):
        watch = ran(watch, 50, "first", True, False)
        assert watch.is_due("first"), profiles
        watch = watch.profiled_larger("first")
    assert not ran(watch, 50, "first", True, False).is_due("first")


def test_steps_beyond_the_plan_are_a_reason_to_look() -> None:
    watch = GraphWatch()
    for _ in range(OFTEN):
        watch, _ = watch.step_ended(needed_more=True)
    assert watch.looked(False).has_unplanned
    assert not watch.looked(False).looked(False).has_unplanned


def test_steps_are_observed_only_if_there_is_an_unplanned_graph() -> None:
    watch, looks, observed = GraphWatch(), 0, 0
    for _ in range(10_000):
        watch, is_time = watch.step_ended(False)
        looks += is_time
        observed += watch.observes
    assert looks <= 15 and observed == 0
    watch = GraphWatch()
    for step in range(10_000):
        watch, is_time = watch.step_ended(False)
        if is_time:
            watch = watch.looked(True)
        if watch.observes:
            assert step >= FIRST_PAUSE - 1
            watch = watch.ran("first", True, True)
            observed += 1
    assert LOOKS <= observed <= 0.06 * 10_000
