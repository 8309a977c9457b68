"""What is said in the course of a training: printed, and kept."""

from __future__ import annotations

import warnings


class TrainingLog:
    """Says things.

    Args:
        notes: Where they are kept.
        says: Whether progress is printed too.
        name: Put before all that is printed; "" where nothing else speaks.

    Attributes:
        name: Likewise.
    """

    def __init__(self, notes: list[str], says: bool, name: str = "") -> None:
        self.name = name
        self._notes = notes
        self._says = says
        self._prefix = f"{name}: " if name else ""

    def say(self, text: str) -> None:
        """Prints progress."""
        if self._says:
            print(f"\ntfswap: {self._prefix}{text}", flush=True)

    def note(self, text: str) -> None:
        """Prints and keeps."""
        self._notes.append(text)
        self.say(text)

    def warn(self, text: str) -> None:
        """Warns and keeps."""
        self._notes.append(text)
        warnings.warn(f"tfswap: {self._prefix}{text}", stacklevel=3)

    def lines(self, lines: list[str]) -> None:
        """Prints and keeps a block of lines that begin as they are to be read."""
        for place, line in enumerate(lines):
            self._notes.append(line)
            if self._says:
                line = line.replace("tfswap: ", f"tfswap: {self._prefix}", 1)
                print(line if place else f"\n{line}", flush=True)
