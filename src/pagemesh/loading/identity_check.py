"""Whether hidden states and logits are the same bits alone, in company and in pieces: looked at when a model is
loaded, with its own weights, on the machine that will compute it.

Kernels are made so that they are; what cannot be seen from here is a compiler, a driver or a processor that
does not do what it says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pagemesh.engine.runner import Runner, compute_step
from pagemesh.models.loader import LoadedModel
from pagemesh.scheduler.batch import Batch, ScheduledSequence

NUM_PROMPTS: Final = 3
PROMPT_TOKENS: Final = 37
"""Of each: more than a block of most sizes and than a tile of rows, and odd."""

States = list[npt.NDArray[np.float32]]
"""Of each prompt: its tokens' hidden states."""

Pieces = Sequence[tuple[int, int, int]]
"""Of a step: prompt, and which of its tokens are computed."""

_WHOLE: Final[Pieces] = tuple((prompt, 0, PROMPT_TOKENS) for prompt in range(NUM_PROMPTS))

_ALONE: Final[Sequence[Pieces]] = [[piece] for piece in _WHOLE]

_IN_PIECES: Final[Sequence[Pieces]] = (
    ((0, 0, 1), (1, 0, 16), (2, 0, 30)),
    ((0, 1, 2), (1, 16, 17), (2, 30, 31)),
    ((0, 2, 3), (1, 17, 18), (2, 31, PROMPT_TOKENS)),
    ((0, 3, 20), (1, 18, PROMPT_TOKENS)),
    ((0, 20, PROMPT_TOKENS),),
)
"""As chunks and decodes beside each other have it; a decode is one token."""


def num_blocks_of_check(block_size: int) -> int:
    """Blocks that `find_difference` wants of a cache."""
    return NUM_PROMPTS * -(-PROMPT_TOKENS // block_size)


def find_difference(
    runner: Runner,
    model: LoadedModel,
    block_size: int,
    logits: Callable[[torch.Tensor], torch.Tensor],
) -> str | None:
    """What differs in its bits, as part of a sentence; None when all is the same.

    Computes with the first blocks of the runner's cache, which must be nobody's. `logits` takes rows of hidden
    states, float32 on the host.
    """
    prompts = _Prompts(runner, model, block_size)
    expected = prompts.states([_WHOLE])
    ways: dict[str, Sequence[Pieces]] = {"alone": _ALONE}
    if model.shape.causal:
        ways["in chunks and decodes"] = _IN_PIECES
    for name, steps in ways.items():
        if any(map(_differs, prompts.states(steps), expected)):
            return f"the hidden states of a prompt {name} differ from those in a batch"
    if model.generates:
        rows = torch.from_numpy(np.concatenate(expected))
        together = logits(rows)
        for first, last in ((0, 1), (1, 3), (0, len(rows) // 2)):
            if not torch.equal(logits(rows[first:last]), together[first:last]):
                return f"the logits of {last - first} tokens differ from those in a batch"
    return None


class _Prompts:
    """Random ones, computed in any pieces."""

    def __init__(self, runner: Runner, model: LoadedModel, block_size: int) -> None:
        self._runner = runner
        self._length = min(PROMPT_TOKENS, model.max_model_len)
        draw = random.Random(1)
        self._token_ids = [
            draw.choices(range(model.vocab_size), k=self._length) for _ in range(NUM_PROMPTS)
        ]
        block_ids = list(range(num_blocks_of_check(block_size)))
        draw.shuffle(block_ids)
        each = len(block_ids) // NUM_PROMPTS
        self._tables = [block_ids[i * each : (i + 1) * each] for i in range(NUM_PROMPTS)]

    def states(self, steps: Sequence[Pieces]) -> States:
        """Hidden states of all tokens, computed step by step."""
        found: list[list[npt.NDArray[np.float32]]] = [[] for _ in self._token_ids]
        for pieces in steps:
            scheduled = list(self._scheduled(pieces))
            if scheduled:
                result = compute_step(self._runner, Batch(scheduled))
                for sequence in scheduled:
                    states = result.pooled_states[sequence.request_id]
                    found[int(sequence.request_id)].append(states)
        return [np.concatenate(each) for each in found]

    def _scheduled(self, pieces: Pieces) -> Iterator[ScheduledSequence]:
        for prompt, first, last in pieces:
            token_ids = self._token_ids[prompt][first:last]
            if token_ids:
                yield ScheduledSequence(
                    request_id=str(prompt),
                    token_ids=token_ids,
                    start=first,
                    block_ids=self._tables[prompt],
                    sampling=None,
                    pooled=range(len(token_ids)),
                )


def _differs(mine: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> bool:
    return not np.array_equal(mine.view(np.int32), other.view(np.int32))
