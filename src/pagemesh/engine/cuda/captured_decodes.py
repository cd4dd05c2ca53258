"""A runner's captured decodes: none before they are captured, and of some models never any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import torch

from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.capturing import TrialSpace, capture_decodes
from pagemesh.engine.cuda.decode_graphs import DecodeGraphs, DecodeInputs, PaddedDecode
from pagemesh.engine.cuda.token_inputs import LastTokens
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.engine.paged_model import PagedModel, paged_sequences
from pagemesh.engine.step_inputs import StepInputs

_SHARING: Final = 4
"""Block tables of a captured decode may together be so much longer than the cache; others run eagerly."""


class DecodeLimits(NamedTuple):
    """How large a decode can be."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    """Of the KV cache."""
    block_size: int


class CapturedDecodes:
    """Runs those decodes that were captured."""

    def __init__(
        self,
        model: PagedModel,
        transfers: Transfers,
        last_tokens: LastTokens,
        limits: DecodeLimits,
    ) -> None:
        self._model = model
        self._transfers = transfers
        self._last_tokens = last_tokens
        self._limits = limits
        self._graphs: DecodeGraphs | None = None

    def capture(
        self,
        accelerator: Accelerator,
        sizes: Sequence[int],
        clear: Callable[[Iterable[int]], None],
    ) -> None:
        """Capture decodes of these sizes, ascending; see `capture_decodes`. All blocks are left empty."""
        limits = self._limits
        space = TrialSpace(limits.num_blocks, limits.block_size, limits.vocab_size, clear)
        self._graphs = capture_decodes(accelerator, self._make, sizes, space)
        clear(range(min(sizes[-1], limits.num_blocks)))

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Logits of decodes, [N, vocab], there until the next run; None when they were not captured."""
        if self._graphs is None:
            return None
        rows = self._last_tokens.rows(len(inputs.sequences), inputs.unknown, inputs.previous_rows)
        paged = paged_sequences(inputs.sequences)
        return self._graphs.run(DecodeInputs(inputs.columns, rows, paged))

    def _make(self, size: int) -> PaddedDecode:
        longest = -(-self._limits.max_model_len // self._limits.block_size)
        # Sequences may share blocks, but with so many that are shared they would hardly all be long.
        max_num_blocks = min(size * longest, _SHARING * self._limits.num_blocks)
        return PaddedDecode(self._model, self._transfers, self._last_tokens, size, max_num_blocks)
