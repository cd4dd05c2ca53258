"""What the scheduler expects: the cost of a step, the growth of running requests, the cheaper way back for preempted KV.

Costs are learnt from every step, by least squares with coefficients that cannot be negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple, Protocol

from pagemesh.core.load import PrefillRate, num_pairs
from pagemesh.scheduler.batch import Batch
from pagemesh.scheduler.request import Request

STEP_MEMORY: Final = 0.98
"""What a step still counts when the next of its kind is there: about the last fifty decide."""

SOLVE_EVERY: Final = 16
"""Steps of decodes alone that come together before they count: they are short, and many."""


class _Contents(NamedTuple):
    """What a batch computes."""

    num_prompt_tokens: int
    num_prompt_pairs: int
    num_decodes: int
    num_decode_pairs: int


class StepCosts:
    """Learns the costs of one engine's steps; belongs to the engine's thread.

    A step is `tokens * a + pairs * b + c`, and what its decodes cost beside that, which steps without
    prompts tell. How a step's seconds are measured is the loop's affair.
    """

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._max_num_batched_tokens = max_num_batched_tokens
        # Quantities: tokens, pairs, steps.
        self._prompts = NonNegativeLeastSquares(3, STEP_MEMORY)
        self._decodes = NonNegativeLeastSquares(3, STEP_MEMORY, SOLVE_EVERY)
        self._prompt_tokens = 0.0
        self._prompt_pairs = 0.0
        self._pairs_per_decode = 0.0

    def observe(self, batch: Batch, seconds: float) -> None:
        """A batch was computed in so many seconds."""
        if seconds <= 0 or not batch.sequences:
            return
        tokens, pairs, num_decodes, decode_pairs = _contents_of(batch)
        if num_decodes:
            self._pairs_per_decode = decode_pairs / num_decodes
        if not tokens:
            self._decodes.observe((num_decodes, decode_pairs, 1.0), seconds)
            return
        self._prompt_tokens = STEP_MEMORY * self._prompt_tokens + tokens
        self._prompt_pairs = STEP_MEMORY * self._prompt_pairs + pairs
        decode_seconds = self._decodes.predict((num_decodes, decode_pairs, 0.0))
        if decode_seconds:
            # Noise must not leave nothing for the prompt: half of its share by tokens is its own.
            least = seconds * tokens / (tokens + num_decodes) / 2
            seconds = max(seconds - decode_seconds, least)
        else:
            # Until steps without prompts were seen, a decode is a token like others.
            tokens, pairs = tokens + num_decodes, pairs + decode_pairs
        self._prompts.observe((tokens, pairs, 1.0), seconds)

    def rate(self, num_decodes: int = 0) -> PrefillRate:
        """What prompts cost while so many decodes run."""
        if not self._prompt_tokens:
            return PrefillRate()
        per_token, per_pair, per_step = self._prompts.coefficients
        decode_pairs = num_decodes * self._pairs_per_decode
        return PrefillRate(
            per_token,
            per_pair,
            per_step + self._decodes.predict((num_decodes, decode_pairs, 0.0)),
            max(1, self._max_num_batched_tokens - num_decodes),
            self._prompt_pairs / self._prompt_tokens,
        )


def _contents_of(batch: Batch) -> _Contents:
    tokens = pairs = num_decodes = decode_pairs = 0
    for sequence in batch.sequences:
        num_tokens = len(sequence.token_ids)
        if num_tokens == 1:
            num_decodes += 1
            decode_pairs += sequence.start + 1
        else:
            tokens += num_tokens
            pairs += num_pairs(num_tokens, sequence.start)
    return _Contents(tokens, pairs, num_decodes, decode_pairs)


PRIOR_LENGTH: Final = 256.0
"""Expected tokens of an answer before any has ended: about what chats have."""

LENGTH_MEMORY: Final = 0.98
"""What a measured length still counts when the next answer ends: about the last fifty decide."""

SHARE: Final = 0.2
"""Of an answer's expected length, the part for which every running request should find room.

Not the whole of it: before all of them are as long, some have ended and given their blocks back.
Measured by `benchmarks/scheduler.py`; see docs/decisions/0014-admission-leaves-room-to-grow.md.
"""


class GrowthForecast(Protocol):
    """Predicts how much room requests need besides what they have, from the answers that ended."""

    def observe(self, num_tokens: int) -> None:
        """An answer ended by itself, with so many tokens."""
        ...

    def num_growth_tokens(self, request: Request) -> int:
        """Tokens for which room should be left; at most what the request may still generate."""
        ...


class MeanLength:
    """Implements `GrowthForecast`: a share of the decayed mean length of answers, for each the same.

    How long an answer is already says little about how long it will go on: lengths vary about as much
    as they are long.
    """

    def __init__(self) -> None:
        self._mean = PRIOR_LENGTH

    def observe(self, num_tokens: int) -> None:
        self._mean = LENGTH_MEMORY * self._mean + (1 - LENGTH_MEMORY) * num_tokens

    def num_growth_tokens(self, request: Request) -> int:
        return min(round(SHARE * self._mean), request.max_total_tokens - request.num_tokens)


SWAP_MEMORY: Final = 0.9
"""What a measurement still counts when the next one is there: about the last ten decide."""

PRIOR_SECONDS: Final = 0.005
"""Weight of the assumed speed of copies, as if it had been measured for so long."""

PRIOR_BYTES_PER_SECOND: Final = 1e9
"""Assumed speed of copies before any was measured; on the low side for host memory."""


class PreemptionPolicy(Protocol):
    """Chooses between swap and recompute, and is told what steps cost."""

    def should_swap(self, num_tokens: int, num_blocks: int) -> bool:
        """Whether to swap a request that has KV of so many tokens in so many blocks.

        Asked only when the swap space has room; without it, the KV is computed again.
        """
        ...

    def observe(self, batch: Batch, move_seconds: float) -> None:
        """A step took so long for its moves."""
        ...


class SwapOrRecompute:
    """Implements `PreemptionPolicy`: whichever is predicted to take less time, from measured rates.

    To compute again takes what a prompt of so many tokens does; to swap takes two copies of the blocks.
    (vLLM's first scheduler had the two ways as fixed modes; the choice by cost is InferCept's, Abhyankar
    et al. 2024.) What the prefix cache may still hold by then is not counted: the cache is full, or
    nobody would be preempted.
    """

    def __init__(self, num_block_bytes: int, costs: StepCosts) -> None:
        self._num_block_bytes = num_block_bytes
        self._costs = costs
        self._num_moved_bytes = 0.0
        self._move_seconds = 0.0

    def should_swap(self, num_tokens: int, num_blocks: int) -> bool:
        """See `PreemptionPolicy`. Until a prefill was measured: swap."""
        num_bytes = 2 * num_blocks * self._num_block_bytes
        swap_seconds = num_bytes / self._move_rate()
        recompute_seconds = self._costs.rate().seconds(num_tokens, 0)
        if recompute_seconds is None:
            return True
        # A bad measurement must not stand for ever because nothing is swapped any more.
        self._num_moved_bytes *= SWAP_MEMORY
        self._move_seconds *= SWAP_MEMORY
        return swap_seconds < recompute_seconds

    def observe(self, batch: Batch, move_seconds: float) -> None:
        moves = batch.moves
        num_moved = len(moves.swap_outs) + len(moves.swap_ins) + len(moves.copies)
        if num_moved:
            self._num_moved_bytes = (
                SWAP_MEMORY * self._num_moved_bytes + num_moved * self._num_block_bytes
            )
            self._move_seconds = SWAP_MEMORY * self._move_seconds + move_seconds

    def _move_rate(self) -> float:
        """Bytes per second."""
        num_bytes = self._num_moved_bytes + PRIOR_SECONDS * PRIOR_BYTES_PER_SECOND
        return num_bytes / (self._move_seconds + PRIOR_SECONDS)


PRIOR: Final = 0.003
"""How strongly every quantity but the first is held at zero, as a share of what was seen of it: what the
measurements do not tell apart counts for the first, instead of for what their noise suggests."""

MAX_SURPRISE: Final = 3.0
"""Most that one measurement may be above what was expected. A process that was stopped for a minute then
counts as little as a slow step; what is slower from now on is believed step by step."""


class NonNegativeLeastSquares:
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
