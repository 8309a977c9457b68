"""The trainings that are under way in this process."""

from __future__ import annotations

from typing import Any, Protocol


class Run(Protocol):
    """A training."""

    def state(self) -> dict[str, Any]:
        """Return its state, for `tfswap.status()`."""


_runs: list[Run] = []


def add(run: Run) -> None:
    """Enter a training that begins."""
    _runs.append(run)


def remove(run: Run) -> None:
    """Remove a training that ended; harmless when called again."""
    if run in _runs:
        _runs.remove(run)


def states() -> list[dict[str, Any]]:
    """Return the state of each training."""
    return [run.state() for run in _runs]
