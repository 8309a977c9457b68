"""How long an allocation waits for memory."""

from __future__ import annotations

from collections.abc import Callable

from tfswap._core import AllocationWaitPolicy

_NAP_S = 0.002
_MAX_S = 100.0


def _waits_s(
    look_s: float = _NAP_S,
    cores: float = 0.0,
    others_are_runnable: bool = False,
    released: Callable[[float], bool] = lambda now_s: False,
    alive: Callable[[float], bool] = lambda now_s: False,
    stopped: tuple[float, float] = (_MAX_S, 0.0),
) -> float:
    """Return for how long an allocation waits that checks at intervals.

    Args:
        look_s: Seconds between two checks.
        cores: Number of cores on which the process's threads work.
        others_are_runnable: Whether other threads are runnable.
        released: Return whether memory was freed, by time.
        alive: Return whether a kernel runs, by time.
        stopped: When the process is stopped, and for how long.
    """
    patience = AllocationWaitPolicy(0, 0)
    now_s = worked_s = 0.0
    stop_s, paused_s = stopped
    while now_s < _MAX_S:
        now_s += look_s
        worked_s += cores * look_s
        if now_s >= stop_s:
            now_s, stop_s = now_s + paused_s, _MAX_S
        if patience.ends_at(
            int(now_s * 1e9),
            int(worked_s * 1e9),
            released=released(now_s),
            alive=alive(now_s),
            others_are_runnable=others_are_runnable,
        ):
            return now_s
    return _MAX_S


def test_the_wait_is_short_when_nothing_runs() -> None:
    assert 0.2 <= _waits_s() < 0.3


def test_a_running_kernel_may_free_memory() -> None:
    assert 3.2 <= _waits_s(alive=lambda now_s: now_s < 3) < 3.3


def test_the_wait_ends_without_a_release() -> None:
    assert 60 <= _waits_s(alive=lambda now_s: True) < 61
    assert _waits_s(alive=lambda now_s: True, released=lambda now_s: now_s < 30) > 85


def test_busy_threads_are_waited_for_up_to_a_limit() -> None:
    assert 5 <= _waits_s(cores=1.0, others_are_runnable=True) < 6


def test_threads_without_a_core_are_waited_for() -> None:
    assert 60 <= _waits_s(cores=0.01, others_are_runnable=True) < 61
    assert _waits_s(look_s=0.5, cores=0.01, others_are_runnable=True) > 50


def test_a_stopped_process_continues_as_before() -> None:
    alive = lambda now_s: now_s < 2 or 92 < now_s < 93  # noqa: E731
    assert 93.2 <= _waits_s(alive=alive, stopped=(1.99, 90.0)) < 93.4
    # A thread that could free memory may get a core later than the waiting one.
    starving = _waits_s(cores=0.01, others_are_runnable=True, stopped=(0.1, 30.0))
    assert 85 < starving < _MAX_S
