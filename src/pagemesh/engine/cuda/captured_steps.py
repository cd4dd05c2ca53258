"""A runner's captured steps: none before they are captured, and of some models never any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import torch

from pagemesh.engine.accelerator import Accelerator
from pagemesh.engine.cuda.step_graphs import (
    Compute,
    GraphInputs,
    PaddedStep,
    Results,
    StepGraphs,
    TrialSpace,
    capture_steps,
    chunk_sizes,
    decode_sizes,
)
from pagemesh.engine.cuda.steps import LastTokens
from pagemesh.engine.cuda.transfers import Transfers
from pagemesh.engine.paged_model import KvFiniteCheck, PagedModel, paged_sequences
from pagemesh.engine.step_inputs import StepInputs
from pagemesh.kernels.paged_attention import AttentionPlan, Capacity

_SHARING: Final = 4
"""Block tables of a captured step may together be so much longer than the cache; others run eagerly."""


class StepLimits(NamedTuple):
    """How large a step can be."""

    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    """Of the KV cache."""
    block_size: int


class CapturedSteps:
    """Runs those steps that were captured: decodes, and steps with chunks of prompts that are not long."""

    def __init__(
        self,
        model: PagedModel,
        transfers: Transfers,
        last_tokens: LastTokens,
        limits: StepLimits,
    ) -> None:
        self._model = model
        self._transfers = transfers
        self._last_tokens = last_tokens
        self._limits = limits
        self._decodes: StepGraphs | None = None
        self._chunks: StepGraphs | None = None

    def capture(
        self,
        accelerator: Accelerator,
        clear: Callable[[Iterable[int]], None],
        num_sequences: Sequence[int] | None,
        num_tokens: Sequence[int] | None,
    ) -> None:
        """Capture decodes of so many sequences and other steps of so many tokens, both ascending, or of all sizes that
        there are; see `capture_steps`. All blocks are left empty.
        """
        limits = self._limits
        if num_sequences is None:
            num_sequences = decode_sizes(limits.max_num_seqs)
        if num_tokens is None:
            num_tokens = chunk_sizes(limits.max_num_batched_tokens)
        space = TrialSpace(
            limits.num_blocks, limits.block_size, limits.max_model_len, limits.vocab_size, clear
        )
        chunks = [self._capacity(min(size, limits.max_num_seqs), size) for size in num_tokens]
        decodes = [self._capacity(size, None) for size in num_sequences]
        # Those with chunks are the largest, see `StepGraphs`.
        make_chunks = partial(self._make, self._compute_states)
        self._chunks = capture_steps(accelerator, make_chunks, chunks, space)
        make_decode = partial(self._make, self._compute_logits)
        self._decodes = capture_steps(accelerator, make_decode, decodes, space)

    def decode(self, inputs: StepInputs) -> torch.Tensor | None:
        """Logits of decodes, [N, vocab], there until the next run; None when they were not captured."""
        results = self._run(self._decodes, inputs)
        return None if results is None else results[0]

    def run(self, inputs: StepInputs) -> Results | None:
        """Of any tokens the hidden states, [T, hidden], and `KvFiniteCheck.sums`, there until the next run; None when their
        step was not captured."""
        return self._run(self._chunks, inputs)

    def _run(self, graphs: StepGraphs | None, inputs: StepInputs) -> Results | None:
        if graphs is None:
            return None
        num_mixed = inputs.unknown[-1] + 1 if inputs.unknown else 0
        rows = self._last_tokens.rows(num_mixed, inputs.unknown, inputs.previous_rows)
        return graphs.run(GraphInputs(inputs.columns, rows, paged_sequences(inputs.sequences)))

    def _capacity(self, num_sequences: int, chunk_tokens: int | None) -> Capacity:
        limits = self._limits
        longest = -(-limits.max_model_len // limits.block_size)
        # Sequences may share blocks, but with so many that are shared they would hardly all be long.
        num_blocks = min(num_sequences * longest, _SHARING * limits.num_blocks)
        return Capacity(num_sequences, num_blocks, chunk_tokens)

    def _make(self, compute: Compute, capacity: Capacity) -> PaddedStep:
        plan = self._model.make_reusable_plan(capacity)
        return PaddedStep(compute, self._transfers, self._last_tokens, plan, capacity)

    def _compute_logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        plan: AttentionPlan,
    ) -> Results:
        hidden = self._model.forward(token_ids, positions, slots, plan, None)
        return (self._model.logits(hidden),)

    def _compute_states(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        plan: AttentionPlan,
    ) -> Results:
        probe = KvFiniteCheck(())
        hidden = self._model.forward(token_ids, positions, slots, plan, None, probe=probe)
        return hidden, probe.sums
