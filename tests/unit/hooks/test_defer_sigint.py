"""Ctrl-C during clean-up: it is deferred, and not lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tfswap.hooks.defer_sigint import defer_sigint


@pytest.fixture(autouse=True)
def handled_by_python() -> Iterator[None]:
    """Install Python's own handler, whatever the parent process has done with Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_is_delivered_at_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):
        with defer_sigint():
            press()
            done.append("inside")
            with defer_sigint():
                press()
            done.append("still inside")
    assert done == ["inside", "still inside"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_inside_is_chained_to_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as interrupt:
        with defer_sigint():
            press()
            raise ValueError("why")
    assert isinstance(interrupt.value.__context__, ValueError)


def test_a_custom_handler_is_called_at_the_end() -> None:
    told = []
    before = signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
    try:
        with defer_sigint():
            press()
            assert told == []
        assert told == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with defer_sigint():
            press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_no_handler() -> None:
    seen = []

    def work() -> None:
        with defer_sigint():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
