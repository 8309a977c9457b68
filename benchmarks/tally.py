"""Count the lines of each kind by outcome."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tally:
    """A table of counts.

    Attributes:
        kind: Key of the rows, also the table's first heading.
        outcome: Key of the columns.
        kinds, outcomes: The first ones, in order; others follow if they occur.
    """

    kind: str
    outcome: str
    kinds: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()

    def rows(self, lines: Sequence[dict[str, Any]]) -> list[list[str]]:
        """Return cells: a head, a row of each kind, and totals; nothing without lines."""
        if not lines:
            return []
        counts = collections.Counter((line[self.kind], line[self.outcome]) for line in lines)
        met = dict.fromkeys(line[self.kind] for line in lines)
        kinds = [kind for kind in dict.fromkeys((*self.kinds, *met)) if kind in met]
        outcomes = list(dict.fromkeys((*self.outcomes, *sorted({each for _, each in counts}))))
        found = [[self.kind, "count", *outcomes]]
        for kind in kinds:
            each = [counts[kind, outcome] for outcome in outcomes]
            found.append([kind, str(sum(each)), *map(str, each)])
        together = [sum(counts[kind, outcome] for kind in kinds) for outcome in outcomes]
        return [*found, ["all", str(sum(together)), *map(str, together)]]
