"""Turns: two processes that measure run in turns, so that both see the same machine."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Turns:
    """One process's side of two that take turns.

    Its other side has the same folder and the other number; both begin when both are made. A side
    that ends does not delay the other.

    Args:
        folder: A folder in which `make` was called.
        number: 0, which begins, or 1.
    """

    def __init__(self, folder: str, number: int) -> None:
        self._waited_s = 0.0
        # Opening blocks until the other side opens the other end.
        ends = [
            os.open(Path(folder, str(pipe)), os.O_RDONLY if pipe == number else os.O_WRONLY)
            for pipe in (0, 1)
        ]
        self._mine, self._other = ends[number], ends[1 - number]
        if number == 1:
            self._wait()

    @staticmethod
    def make(folder: str) -> None:
        """Prepare a folder for two sides."""
        for pipe in (0, 1):
            os.mkfifo(Path(folder, str(pipe)))

    def clock_s(self) -> float:
        """Return the time in seconds, without the other side's turns."""
        return time.perf_counter() - self._waited_s

    def pass_on(self) -> None:
        """Let the other side run until it passes the turn on or ends."""
        try:
            os.write(self._other, b".")
        except BrokenPipeError:
            return  # it has ended
        self._wait()

    def end(self) -> None:
        """Take no further turns."""
        os.close(self._other)
        os.close(self._mine)

    def _wait(self) -> None:
        begun_s = time.perf_counter()
        os.read(self._mine, 1)
        self._waited_s += time.perf_counter() - begun_s
