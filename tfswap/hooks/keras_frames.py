"""The call of a Keras model's `fit` that is under way, found from one of its callbacks.

Keras calls no callback when `fit` fails, so what must happen then hangs on its frames: the list of
callbacks dies with them, and a `fit` that no thread runs any more has ended.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

# Frames between a callback's method and `fit`, at most.
_MAX_FRAMES = 9


@dataclass(frozen=True)
class FitCall:
    """One call of `fit`.

    Attributes:
        thread: The thread that it runs in.
        code: Of `fit`.
        callbacks: Identity of the list of callbacks, which tells nested calls apart.
        epoch_iterator: Keras's iterator of an epoch; None if there is none yet.
    """

    thread: int
    code: CodeType
    callbacks: int
    epoch_iterator: Any

    def is_running(self) -> bool:
        """Return whether the thread still is inside of this call."""
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
    frame: FrameType | None = sys._getframe()
    for _ in range(_MAX_FRAMES + 1):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        if type(owner).__name__ == "CallbackList":
            weakref.finalize(owner, ended)
        if owner is model:
            named = frame.f_locals
            callbacks, epoch_iterator = named.get("callbacks"), named.get("epoch_iterator")
            return FitCall(threading.get_ident(), frame.f_code, id(callbacks), epoch_iterator)
    return None
