"""Fits measured times to what they are made of: least squares with coefficients that cannot be negative."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

PRIOR: Final = 0.003
"""How strongly every quantity but the first is held at zero, as a share of what was seen of it: what the
measurements do not tell apart counts for the first, instead of for what their noise suggests."""

MAX_SURPRISE: Final = 3.0
"""Most that one measurement may be above what was expected. A process that was stopped for a minute then
counts as little as a slow step; what is slower from now on is believed step by step."""


class NonNegativeFit:
    """Learns c in `seconds = c[0] * x[0] + c[1] * x[1] + …` from one measurement after the other.

    Older measurements count less and less. Errors are taken relative to the seconds, so that short steps
    count as much as long ones, and a first step that was a thousand times too slow is outweighed by the
    second. (Recursive least squares with forgetting, as in any textbook of adaptive filters; of all
    subsets of quantities, which are few, the best that needs no negative coefficient.)
    """

    def __init__(self, num_quantities: int, memory: float, solve_every: int = 1) -> None:
        """`memory` is what a measurement still counts when the next one is there; the coefficients are
        computed anew for each of the first measurements, then for every `solve_every`-th."""
        self._memory = memory
        self._solve_every = solve_every
        self._num_measured = 0
        size = range(num_quantities)
        # The normal equations.
        self._matrix = [[0.0 for _ in size] for _ in size]
        self._target = [0.0 for _ in size]
        self.coefficients: Sequence[float] = [0.0 for _ in size]
        """Seconds for one of each quantity; zeros before the first measurement."""

    def predict(self, quantities: Sequence[float]) -> float:
        """Seconds that are expected; 0 before the first measurement."""
        return sum(c * x for c, x in zip(self.coefficients, quantities, strict=True))

    def observe(self, quantities: Sequence[float], seconds: float) -> None:
        """So much took `seconds`, which is positive; at least one of the quantities is."""
        expected = self.predict(quantities)
        if expected > 0:
            seconds = min(seconds, MAX_SURPRISE * expected)
        scale = min(seconds, expected) if expected > 0 else seconds
        weight = 1.0 / (scale * scale)
        for i, x in enumerate(quantities):
            row, weighted = self._matrix[i], weight * x
            for j, y in enumerate(quantities):
                row[j] = self._memory * row[j] + weighted * y
            self._target[i] = self._memory * self._target[i] + weighted * seconds
        self._num_measured += 1
        if self._num_measured <= self._solve_every or self._num_measured % self._solve_every == 0:
            self.coefficients = self._solve()

    def _solve(self) -> Sequence[float]:
        matrix = [row.copy() for row in self._matrix]
        for i in range(1, len(matrix)):
            matrix[i][i] *= 1 + PRIOR
        everything = range(len(matrix))
        solution = _solve(matrix, self._target, tuple(everything))
        if solution is not None:
            return solution
        # The unconstrained optimum is not allowed, so that one quantity at least counts nothing.
        subsets = (s for size in everything for s in combinations(everything, size))
        allowed = (_solve(matrix, self._target, subset) for subset in subsets)
        return max(_present(allowed), key=self._explained, default=self.coefficients)

    def _explained(self, coefficients: Sequence[float]) -> float:
        """By how much an optimum over a subset makes the squared error smaller."""
        return sum(c * t for c, t in zip(coefficients, self._target, strict=True))


def _present(solutions: Iterator[Sequence[float] | None]) -> Iterator[Sequence[float]]:
    return (solution for solution in solutions if solution is not None)


def _solve(
    matrix: Sequence[Sequence[float]], target: Sequence[float], subset: Sequence[int]
) -> Sequence[float] | None:
    """The optimum where only the subset counts, by elimination; None when a coefficient is negative."""
    rows = [[*(matrix[i][j] for j in subset), target[i]] for i in subset]
    size = len(rows)
    for i, row in enumerate(rows):
        if row[i] <= 0:
            # Never seen, or lost by rounding.
            return None
        for below in rows[i + 1 :]:
            factor = below[i] / row[i]
            for j in range(i, size + 1):
                below[j] -= factor * row[j]
    found = [0.0] * len(target)
    for i in reversed(range(size)):
        known = sum(rows[i][j] * found[subset[j]] for j in range(i + 1, size))
        found[subset[i]] = (rows[i][size] - known) / rows[i][i]
        if found[subset[i]] < 0:
            return None
    return found
