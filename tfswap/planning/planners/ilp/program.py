"""A mixed-integer linear program (MILP) under construction."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Terms = Iterable[tuple[int, float]]

# The solver's tolerance is 1e-6.
SLACK = 2e-6


class Program:
    """A MILP under construction. Rows are slightly relaxed, because bounds must be safe."""

    def __init__(self) -> None:
        self._integer: list[int] = []
        self._high: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._rows: list[tuple[float, float]] = []

    def variable(self, high: float = 1.0, integer: bool = False) -> int:
        """Add a variable with lower bound 0 and return its index."""
        self._integer.append(integer)
        self._high.append(high)
        return len(self._high) - 1

    def row(self, terms: Terms, low: float = -np.inf, high: float = np.inf) -> None:
        """Add the constraint ``low <= sum of coefficient * variable <= high``."""
        self._entries += [(len(self._rows), variable, factor) for variable, factor in terms]
        self._rows.append((low - SLACK, high + SLACK))

    def ascending(self, variables: list[int]) -> None:
        """Constrain each variable to be at most its successor."""
        for before, after in zip(variables, variables[1:], strict=False):
            if before != after:
                self.row([(before, 1.0), (after, -1.0)], high=0.0)

    def solve(self, time_limit_s: float) -> tuple[bool, Floats | None]:
        """Return whether the program is proven infeasible, and a solution if one was found."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        if not self._entries:
            impossible = any(low > 0 or high < 0 for low, high in self._rows)
            return impossible, None if impossible else np.zeros(len(self._high))
        row, column, factor = zip(*self._entries, strict=True)
        matrix = csr_matrix((factor, (row, column)), shape=(len(self._rows), len(self._high)))
        low, high = zip(*self._rows, strict=True)
        outcome = milp(
            np.zeros(len(self._high)),
            integrality=np.array(self._integer),
            bounds=Bounds(0.0, np.array(self._high)),
            constraints=LinearConstraint(matrix, low, high),
            options={"time_limit": time_limit_s},
        )
        infeasible = 2
        return outcome.status == infeasible, outcome.x


def summed(terms: Terms) -> list[tuple[int, float]]:
    """Return the terms with each variable once."""
    total: dict[int, float] = {}
    for variable, factor in terms:
        total[variable] = total.get(variable, 0.0) + factor
    return list(total.items())
