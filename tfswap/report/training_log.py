"""TrainingLog: messages of one training, printed and kept in its report."""

from __future__ import annotations

import warnings


class TrainingLog:
    """Print messages and keep those that the report shows.

    Args:
        notes: The list that keeps them.
        prints: Whether to print.
        name: Prefix of printed lines, which tells functions apart; "" for none.
    """

    def __init__(self, notes: list[str], prints: bool, name: str = "") -> None:
        self.name = name
        self._notes = notes
        self._prints = prints
        self._prefix = f"{name}: " if name else ""

    def say(self, text: str) -> None:
        """Print progress."""
        if self._prints:
            print(f"\ntfswap: {self._prefix}{text}", flush=True)

    def note(self, text: str) -> None:
        """Print and keep a message."""
        self._notes.append(text)
        self.say(text)

    def warn(self, text: str) -> None:
        """Warn and keep the message."""
        self._notes.append(text)
        warnings.warn(f"tfswap: {self._prefix}{text}", stacklevel=3)

    def lines(self, lines: list[str]) -> None:
        """Print and keep lines that begin with "tfswap: " already."""
        for place, line in enumerate(lines):
            self._notes.append(line)
            if self._prints:
                line = line.replace("tfswap: ", f"tfswap: {self._prefix}", 1)
                print(line if place else f"\n{line}", flush=True)
