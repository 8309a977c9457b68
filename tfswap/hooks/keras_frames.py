"""Find the running `fit` of a Keras model from one of its callbacks.

Keras calls no callback when `fit` fails. Its end is detected from its frames instead: the list of
callbacks is destroyed with them, and a `fit` that is on no thread's stack has ended.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

# Maximal number of frames between a callback's method and `fit`.
_MAX_FRAMES = 9


@dataclass(frozen=True)
class FitCall:
    """One call of `fit`.

    Attributes:
        thread: The thread that it runs in.
        code: Code object of `fit`.
        callbacks: Identity of the list of callbacks, which tells nested calls apart.
    """

    thread: int
    code: CodeType
    callbacks: int

    def is_running(self) -> bool:
        """Return whether the thread is still in this call."""
        frame = sys._current_frames().get(self.thread)
        while frame is not None:
            if frame.f_code is self.code and id(frame.f_locals.get("callbacks")) == self.callbacks:
                return True
            frame = frame.f_back
        return False


def find_fit(model: Any, ended: Callable[[], None]) -> FitCall | None:
    """Find the `fit` of `model` that this callback is called from.

    Args:
        model: The Keras model.
        ended: Called when the list of callbacks of that `fit` is destroyed.

    Returns:
        The call; None if it is not among the nearest frames.
    """
    for frame in _callers():
        owner = frame.f_locals.get("self")
        if type(owner).__name__ == "CallbackList":
            weakref.finalize(owner, ended)
        if owner is model:
            callbacks = id(frame.f_locals.get("callbacks"))
            return FitCall(threading.get_ident(), frame.f_code, callbacks)
    return None


def batches_of_fit(model: Any) -> Any:
    """Return what Keras takes the batches of the running `fit` of `model` from; None if unknown."""
    for frame in _callers():
        if frame.f_locals.get("self") is model and "epoch_iterator" in frame.f_locals:
            return getattr(frame.f_locals["epoch_iterator"], "data_adapter", None)
    return None


def _callers() -> Iterator[FrameType]:
    """Yield the nearest frames that call the function that iterates."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES + 1):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return
        yield frame
