"""Compares a model over paged KV with the same model by transformers alone, on a few tokens.

Finds what watching a model cannot: states beside the KV, tokens that read their neighbours, positions
that are counted otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from pagemesh.kernels.paged_attention import (
    AttentionShape,
    LayerAttention,
    PagedSequence,
    make_paged_attention,
)
from pagemesh.kernels.write_kv import Turn, make_kv_writer
from pagemesh.models.interface import CausalModel, ModelShape
from pagemesh.models.transformers_backend.attention import PAGED, UnservableError

_BLOCK_SIZE: Final = 4
_BLOCKS: Final = ((3, 0), (1, 2))
"""Block tables of two sequences."""
_LENGTHS: Final = (7, 5)
_STEPS: Final = (((0, 4), (0, 1)), ((4, 6), (1, 4)), ((6, 7), (4, 5)))
"""Tokens of each sequence that each step computes: chunks first, then decodes."""

_TOLERANCES: Final = {torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}
"""Distance of two tokens' logits as a share of their length. What is wrong is off by about 1."""

_ROUNDED_TOLERANCE: Final = 0.5
"""Where a product takes rows of activations as codes of 8 bits, of which each is off by up to a thirtieth."""

_MIN_SHARE: Final = 0.75
"""Tokens that must be so close. In short types a few may not be, where a router of experts turned."""


def own_logits(model: Any, vocab_size: int) -> torch.Tensor:
    """What transformers alone gives for the tokens of the check, float32 [tokens, vocab].

    Raises UnservableError when they are not finite. The model has the `PAGED` attention afterwards.
    """
    model.set_attn_implementation("eager")
    logits = torch.cat(
        [
            model(input_ids=token_ids.unsqueeze(0), use_cache=False).logits.squeeze(0)
            for token_ids in _token_ids(vocab_size)
        ]
    ).float()
    model.set_attn_implementation(PAGED)
    if not torch.isfinite(logits).all():
        raise UnservableError("has weights that give logits that are not finite")
    return logits


def check_logits(
    paged: CausalModel,
    expected: torch.Tensor,
    shape: ModelShape,
    layers: Sequence[LayerAttention],
    dtype: torch.dtype,
    device: torch.device,
    *,
    rounds_rows: bool = False,
) -> None:
    """Raise UnservableError unless a model on a device gives the logits that it should.

    `expected` is what `own_logits` says of the model behind `paged`, which computes with rows as they are; `rounds_rows`
    says that `paged` may not.
    """
    cache = _TinyCache(shape, layers, dtype, device)
    found = _run_paged(paged, _token_ids(shape.vocab_size), cache)
    ours, theirs = torch.cat(found).float().cpu(), expected
    distances = torch.linalg.vector_norm(ours - theirs, dim=-1)
    shares = distances / torch.linalg.vector_norm(theirs, dim=-1)
    worst = float(torch.quantile(shares, _MIN_SHARE))
    if not worst <= (_ROUNDED_TOLERANCE if rounds_rows else _TOLERANCES[dtype]):
        why = "it must keep more than keys and values"
        if dtype != torch.float32:
            why += f", or suffer from the rounding of {dtype}, which --dtype float32 would tell"
        raise UnservableError(
            f"gives other logits when its prompts are cut and batched (off by {worst:.0%}): {why}"
        )


def _token_ids(vocab_size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocab_size, (length,), generator=generator) for length in _LENGTHS]


def _run_paged(
    paged: CausalModel, sequences: Sequence[torch.Tensor], cache: _TinyCache
) -> list[torch.Tensor]:
    logits: list[list[torch.Tensor]] = [[] for _ in sequences]
    for step in _STEPS:
        spans = list(enumerate(step))
        # Decodes stand before chunks in every step.
        spans.sort(key=lambda item: item[1][1] - item[1][0] > 1)
        token_ids = torch.cat([sequences[index][begin:end] for index, (begin, end) in spans])
        positions = torch.cat([torch.arange(begin, end) for _, (begin, end) in spans])
        cache.begin_step(spans)
        hidden = paged.forward(
            token_ids.to(cache.device),
            positions.to(cache.device),
            cache,
            torch.arange(len(token_ids), device=cache.device),
        )
        row = 0
        for index, (begin, end) in spans:
            logits[index].append(paged.logits(hidden[row : row + end - begin]))
            row += end - begin
    return [torch.cat(parts) for parts in logits]


class _TinyCache:
    """`ForwardContext` over a few blocks."""

    def __init__(
        self,
        shape: ModelShape,
        layers: Sequence[LayerAttention],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.device = device
        num_blocks = sum(map(len, _BLOCKS))
        self._features = layers
        self._layers = torch.zeros(
            shape.num_layers,
            2,
            num_blocks,
            _BLOCK_SIZE,
            shape.num_kv_heads,
            shape.head_dim,
            dtype=dtype,
            device=device,
        ).unbind(0)
        self._writer = make_kv_writer(device)
        self._attention = make_paged_attention(
            AttentionShape(
                shape.num_heads,
                shape.num_kv_heads,
                shape.head_dim,
                num_blocks,
                _BLOCK_SIZE,
                dtype,
            ),
            device,
        )

    def begin_step(self, spans: Sequence[tuple[int, tuple[int, int]]]) -> None:
        slots = [
            _BLOCKS[index][position // _BLOCK_SIZE] * _BLOCK_SIZE + position % _BLOCK_SIZE
            for index, (begin, end) in spans
            for position in range(begin, end)
        ]
        num_slots = sum(map(len, _BLOCKS)) * _BLOCK_SIZE
        self._slot_mapping = self._writer.slot_mapping(
            torch.tensor(slots, device=self.device), num_slots
        )
        self._plan = self._attention.plan(
            [PagedSequence(end - begin, end, _BLOCKS[index]) for index, (begin, end) in spans]
        )

    def write(self, layer: int, heads: torch.Tensor, turn: Turn | None) -> None:
        self._writer.write(self._layers[layer], heads, self._slot_mapping, turn=turn)

    def attend(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        return self._plan.attend(query, self._layers[layer], self._features[layer])
